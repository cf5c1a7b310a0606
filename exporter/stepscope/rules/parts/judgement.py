"""Holds the decisions of a rule on a view, and tallies them over all scans.

It decides early on a share that is clearly above or below its threshold, long before `patience` has passed.
Source: the score test of a share, which is Wilson's interval turned round: that interval leaves the threshold
out exactly where the share is further away from it than its margin. The same is one line of PromQL. Samples
500 ms apart are autocorrelated, so `CORRELATED` of them count as one: docs/heuristics.md says why.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import Portion, Subject
from stepscope.measurements.scraped import Scraped, Vector, column
from stepscope.measurements.state import State
from stepscope.rules.parts.parameters import ShareLimits, fraction, live_minimum
from stepscope.runs.model import Times

EARLY = 120.0  # seconds of samples before which nothing is decided, unless a rule's patience is shorter
CORRELATED = 10  # samples that count as one
DEVIATIONS = 3.0  # of the share's standard error: 99.7 % of a normal distribution is closer

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

    `enough` marks elements with enough data to decide. Conditions hold only there. `debugger` marks those
    that fire by Debugger's definition, if ours differs: its JSON counts them.
    """

    enough: Booleans
    conditions: tuple[Condition, ...]
    debugger: Booleans | None = None

    @property
    def fired(self) -> Booleans:
        """Returns where any condition holds."""
        fired: Booleans = np.logical_or.reduce([condition.holds for condition in self.conditions])
        return fired

    @property
    def last(self) -> "Judgement":
        """Returns the decision on the last element alone."""
        conditions = (Condition(met.value[-1:], met.holds[-1:]) for met in self.conditions)
        return Judgement(self.enough[-1:], tuple(conditions))


def judgement(enough: Any, *conditions: tuple[Any, Any], debugger: Booleans | None = None) -> Judgement:
    """Returns a judgement of (value, holds) pairs; a condition holds only where there is enough."""
    enough = np.asarray(enough, bool)
    return Judgement(
        enough, tuple(Condition(np.asarray(value), enough & holds) for value, holds in conditions), debugger
    )


def margin(threshold: float) -> float:
    """Returns how far one sample's share must be from its threshold (0 to 1) to be clear.

    With n samples it is n ** -0.5 of that.
    """
    return DEVIATIONS * math.sqrt(CORRELATED * threshold * (1 - threshold))


def is_clear(share: Values, samples: Times, threshold: float) -> NDArray[np.bool_]:
    """Returns where a share of that many samples is clearly above or below its threshold; never for NaN."""
    with np.errstate(divide="ignore"):
        clear = np.abs(share - threshold) > margin(threshold) * np.power(samples, -0.5)
    return np.asarray(clear)


def too_large(view: Portion, parameters: ShareLimits) -> Judgement:
    """Judges whether a part is more than `threshold` percent of its whole, after `patience`."""
    share = view.ratio
    return judgement(view.seen > parameters.patience, (share, share > fraction(parameters.threshold)))


def too_large_live(
    view: Portion, parameters: ShareLimits, sample_interval: float, early_seconds: float = EARLY
) -> Judgement:
    """Judges whether a part is more than `threshold` percent of the samples of a live window.

    It decides after `live_minimum`, or after `early_seconds` of samples if the share is surely on one side of
    the threshold.
    """
    share, limit = view.ratio, fraction(parameters.threshold)
    early = (view.seen >= early_seconds / sample_interval) & is_clear(share, view.seen, limit)
    enough = view.seen > live_minimum(parameters, sample_interval)
    return judgement(enough | early, (share, share > limit))


def view_of_shares(samples: Vector, shares: Vector) -> Scraped[Portion]:
    """Returns a view of recorded shares; `samples` is how many were seen."""
    labels = [series for series in shares if series in samples]
    return Scraped(labels, Portion(column(samples, labels), np.ones(len(labels)), column(shares, labels)))


class Tally(State):
    """How often a rule was able to decide on one subject, and how often it fired, over all scans.

    `conditions[i]` counts the scans in which condition i held. `elements` counts every pair or row that
    fired, which is `triggered` if a view has one element per scan.
    """

    def __init__(self) -> None:
        self.judged = self.triggered = self.elements = 0
        self.debugger_triggered = 0  # scans that fire by Debugger's definition, if the rule counts them
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
        if judged.debugger is not None:
            self.debugger_triggered += int(np.count_nonzero(_by_scan(judged.debugger) & counts))
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
