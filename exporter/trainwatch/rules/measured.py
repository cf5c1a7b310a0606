"""TEMPORARY base of rules that judge measurements; becomes Rule when all rules do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from trainwatch.measurements.measure import Measure, RunMeasurements
from trainwatch.measurements.scraped import Moment, Scraped
from trainwatch.measurements.state import NodeState
from trainwatch.rules.base import P, Rule, Verdict
from trainwatch.rules.judgement import Judgement, Tallies
from trainwatch.rules.promql import Scraping
from trainwatch.rules.topics import Effect

V = TypeVar("V")


class MeasuredRule(Rule[P, NodeState], Generic[P, V]):
    """A rule: its class's name is the rule's; its docstring says where the definition comes from."""

    @property
    @abstractmethod
    def measure(self) -> Measure[Any]:
        """What it decides by: the views of this measurement are judged at each scan."""

    @property
    def details_of(self) -> Sequence[Measure[Any]]:
        """What else its words and details are about."""
        return ()

    @abstractmethod
    def judge(self, view: V) -> Judgement:
        """Decides on each element of a view."""

    @abstractmethod
    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        """Says what became of all scans, in words and in numbers."""

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[V]:
        """Returns what it decides by as Prometheus has it at a moment, from the exporter's counters."""
        raise NotImplementedError

    def node(self) -> NodeState:
        return NodeState()


class Overview(MeasuredRule[P, None]):
    """Shows what the findings of other rules refer to, and never fires."""

    effect = Effect.OVERVIEW

    def judge(self, view: None) -> Judgement:
        raise TypeError(f"{self.name} decides nothing")
