"""Holds the decisions of a rule on a view, and tallies them over all scans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.measure import Subject
from trainwatch.measurements.state import State
from trainwatch.runs.model import Times

Booleans = NDArray[np.bool_]
Values = NDArray[np.floating[Any]]


class Condition(NamedTuple):
    """One way for a rule to fire: the compared value, and where it is beyond its threshold.

    The arrays have the shape of the view. The rule's alerts are in the order of its conditions.
    """

    value: Values
    holds: Booleans


@dataclass(frozen=True)
class Judgement:
    """A rule's decision on each element of a view: scans, nodes, GPUs or ranks.

    `enough` marks elements with enough data to decide. Conditions hold only there.
    """

    enough: Booleans
    conditions: tuple[Condition, ...]

    @property
    def fired(self) -> Booleans:
        """Returns where any condition holds."""
        fired: Booleans = np.logical_or.reduce([condition.holds for condition in self.conditions])
        return fired


def judgement(enough: Any, *conditions: tuple[Any, Any]) -> Judgement:
    """Returns a judgement of (value, holds) pairs; a condition holds only where there is enough."""
    enough = np.asarray(enough, bool)
    return Judgement(
        enough, tuple(Condition(np.asarray(value), enough & holds) for value, holds in conditions)
    )


class Tally(State):
    """How often a rule was able to decide on one subject, and how often it fired, over all scans.

    `conditions[i]` counts the scans in which condition i held. `elements` counts every pair or row that
    fired, which is `triggered` if a view has one element per scan.
    """

    def __init__(self) -> None:
        self.judged = self.triggered = self.elements = 0
        self.conditions: tuple[int, ...] = ()
        self.last_fired = np.nan  # seconds since the epoch, if the view has times

    def add(self, judged: Judgement, new: Booleans | None = None, times: Times | None = None) -> None:
        """Counts the scans of a block; `new` leaves out scans without new data."""
        counts = np.ones(judged.enough.shape[0], bool) if new is None else new
        fired_elements = judged.fired
        enough, fired = _by_scan(judged.enough) & counts, _by_scan(fired_elements) & counts
        self.judged += int(np.count_nonzero(enough))
        self.triggered += int(np.count_nonzero(fired))
        self.elements += int(np.count_nonzero(fired_elements[counts]))
        held = [np.count_nonzero(_by_scan(condition.holds) & counts) for condition in judged.conditions]
        before = self.conditions or (0,) * len(held)
        self.conditions = tuple(int(scans + more) for scans, more in zip(before, held, strict=True))
        if times is not None and fired.any():
            self.last_fired = float(times[fired][-1])


NOTHING = Tally()


class Tallies:
    """The tallies of one rule, by node and subject."""

    def __init__(self, tallies: Mapping[str, Mapping[Subject, Tally]]) -> None:
        self._tallies = tallies

    def of(self, node: str, subject: Subject = "") -> Tally:
        """Returns the tally of a subject, which is empty if it was never judged."""
        return self._tallies.get(node, {}).get(subject, NOTHING)

    @property
    def judged(self) -> int:
        return sum(tally.judged for node in self._tallies.values() for tally in node.values())

    @property
    def triggered(self) -> int:
        return sum(tally.triggered for node in self._tallies.values() for tally in node.values())


def _by_scan(elements: Booleans) -> Booleans:
    """Returns, for each scan, whether any of its elements is true."""
    if elements.ndim == 1:
        return elements
    return np.asarray(elements.any(axis=tuple(range(1, elements.ndim))))
