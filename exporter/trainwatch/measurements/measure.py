"""Defines measurements of a node: a `Measure` asks for one, a `Measurement` contains the counts so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import NodeSamples, RunFacts, Steps

# What a view is about: a GPU's column, a rank and phase, "" for the node itself.
Subject = Hashable

V = TypeVar("V")
Views = Iterable[tuple[Subject, V]]


class Measurement(State, Generic[V]):
    """Counts the samples and steps of one node, given in blocks of rows, each row once, in time order.

    Both methods return views: for each subject, what was known at the end of each scan in the block, as
    arrays of one value per scan. Rules judge views.
    """

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[V]:
        """Adds samples; the columns may grow from block to block, and are NaN where missing."""
        return ()

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[V]:
        """Adds finished steps of one rank of the node."""
        return ()


class GpuMeasurement(State, Generic[V]):
    """The counts of one GPU."""

    @abstractmethod
    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> V:
        """Adds samples of the GPU in this column, and returns its view."""


G = TypeVar("G", bound=GpuMeasurement[Any])


class ByGpu(Measurement[V], Generic[V, G]):
    """A measurement per GPU of a node, made by `new` when its column is first seen; subjects are columns."""

    def __init__(self, new: Callable[[], G]) -> None:
        self.new = new
        self.gpus: list[G] = []

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[V]:
        while len(self.gpus) < samples.gpu.shape[1]:
            self.gpus.append(self.new())
        return [(column, gpu.observe(samples, column, scans)) for column, gpu in enumerate(self.gpus)]


M = TypeVar("M", bound=Measurement[Any])


class Measure(ABC, Generic[M]):
    """Asks for a measurement. A frozen dataclass: equal requests share one measurement."""

    @abstractmethod
    def new(self) -> M:
        """Returns an empty measurement."""


class NodeMeasurements(State):
    """All measurements of one node, by measure."""

    def __init__(self, measures: Iterable[Measure[Any]]) -> None:
        self._measurements: dict[Measure[Any], Measurement[Any]] = {one: one.new() for one in measures}

    def __getitem__(self, measure: Measure[M]) -> M:
        return cast("M", self._measurements[measure])

    def observe(self, samples: NodeSamples, scans: Scans) -> dict[Measure[Any], Views[Any]]:
        """Feeds one block of samples to every measurement, and returns their views."""
        return {measure: one.observe(samples, scans) for measure, one in self._measurements.items()}

    def observe_steps(self, steps: Steps, scans: Scans) -> dict[Measure[Any], Views[Any]]:
        """Feeds one block of steps to every measurement, and returns their views."""
        return {measure: one.observe_steps(steps, scans) for measure, one in self._measurements.items()}


@dataclass(frozen=True)
class RunMeasurements:
    """The measurements of a run by node, in the order of their names, and the run's facts."""

    facts: RunFacts
    nodes: Mapping[str, NodeMeasurements]

    def of(self, measure: Measure[M]) -> dict[str, M]:
        """Returns one measurement of each node, by node."""
        return {name: node[measure] for name, node in self.nodes.items()}
