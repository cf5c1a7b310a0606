"""What a rule says of a view, and how often it said it: judgements, and the tally of all scans."""

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
    """One way for a rule to fire: the value that is compared, and where it is beyond its threshold.

    Arrays of the shape of the view. The rule's alerts have the order of its conditions and show their values.
    """

    value: Values
    holds: Booleans


@dataclass(frozen=True)
class Judgement:
    """A rule's decision on a view: elementwise, whether the elements are scans, nodes, GPUs or ranks.

    `enough`: where there is enough to decide. Conditions hold only there.
    """

    enough: Booleans
    conditions: tuple[Condition, ...]

    @property
    def fired(self) -> Booleans:
        """Where any condition holds."""
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

    `conditions[i]` counts the scans in which condition i held, `elements` every pair or row that fired; where
    a view has one element per scan, that is `triggered`.
    """

    def __init__(self) -> None:
        self.judged = self.triggered = self.elements = 0
        self.conditions: tuple[int, ...] = ()
        self.last_fired = np.nan  # seconds since the epoch, where the view has times

    def add(self, judged: Judgement, new: Booleans | None = None, times: Times | None = None) -> None:
        """Counts the scans of a block; `new` leaves out those that saw nothing new."""
        counts = np.ones(judged.enough.shape[0], bool) if new is None else new
        enough, fired = _by_scan(judged.enough) & counts, _by_scan(judged.fired) & counts
        self.judged += int(np.count_nonzero(enough))
        self.triggered += int(np.count_nonzero(fired))
        self.elements += int(np.count_nonzero(judged.fired[counts]))
        held = [np.count_nonzero(_by_scan(one.holds) & counts) for one in judged.conditions]
        before = self.conditions or (0,) * len(held)
        self.conditions = tuple(int(one + more) for one, more in zip(before, held, strict=True))
        if times is not None and fired.any():
            self.last_fired = float(times[fired][-1])


NOTHING = Tally()


class Tallies:
    """The tallies of one rule, by node and subject."""

    def __init__(self, tallies: Mapping[str, Mapping[Subject, Tally]]) -> None:
        self._tallies = tallies

    def of(self, node: str, subject: Subject = "") -> Tally:
        """Returns an empty tally for what was never judged."""
        return self._tallies.get(node, {}).get(subject, NOTHING)

    @property
    def judged(self) -> int:
        return sum(one.judged for node in self._tallies.values() for one in node.values())

    @property
    def triggered(self) -> int:
        return sum(one.triggered for node in self._tallies.values() for one in node.values())


def _by_scan(elements: Booleans) -> Booleans:
    """Returns (scans,) whether any element of the scan is true."""
    if elements.ndim == 1:
        return elements
    return np.asarray(elements.any(axis=tuple(range(1, elements.ndim))))
