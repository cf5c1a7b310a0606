"""When a rule held: the intervals in which its live window, not the whole run, met its condition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from stepscope.common.words import percent
from stepscope.measurements.state import State
from stepscope.rules.parts.judgement import Condition, Judgement, Tally
from stepscope.runs.model import Times

NOTHING = -1  # the number of no condition


def as_percent(ratio: float) -> str:
    return percent(100 * ratio)


@dataclass(frozen=True)
class Worst:
    """How the worst value of a condition is said: "{} of the samples"; `lowest` if smaller is worse."""

    words: str
    written: Callable[[float], str] = as_percent
    lowest: bool = False

    def of(self, condition: Condition) -> Times:
        """Returns (scans,) the worst value of each scan's elements that meet the condition, or NaN."""
        values = np.where(condition.holds, condition.value, np.nan)
        if values.ndim > 1:
            reduce = np.fmin.reduce if self.lowest else np.fmax.reduce
            values = reduce(values.reshape(len(values), -1), axis=1, initial=np.nan)
        return np.asarray(values, np.float64)

    def say(self, value: float) -> str:
        return self.words.format(self.written(value))


@dataclass(frozen=True)
class Bands:
    """The subject of a rule's bands, and how the worst value of each condition is said."""

    of: Literal["node", "GPU", "rank"]
    worst: Sequence[Worst]
    minutes: float = 15  # of the live window, if it is not the parameter `live_window`


class Held(NamedTuple):
    """An interval in which one of a rule's conditions held, from scan to scan; seconds since the epoch."""

    start: float
    end: float
    condition: int
    worst: float


@dataclass(frozen=True)
class Band:
    """A time in which a rule held, for the live window before as its alert does. Times are since the epoch.

    It begins with the first scan that fired and ends with the first that did not, or with the last scan.
    """

    node: str
    subject: str  # "GPU 0", "rank 3"; "" for the node
    start: float
    end: float
    lasts: bool  # until the end of what was seen
    worst: float
    words: str  # the worst value: "83 % of the samples"


class HeldSoFar(State):
    """When a rule held for one subject.

    As an alert does, an interval begins with the first scan that fires and ends with the first that does not.
    It also ends before a `gap` without scans, and where another condition of the rule takes over.
    """

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.ended: list[Held] = []
        self.lasting: Held | None = None
        self.last_scan = np.nan
        self.last: Judgement | None = None  # of the last scan

    def add(self, judged: Judgement, times: Times, worst: Sequence[Worst]) -> None:
        """Adds the scans of a block, which ended at `times`."""
        if not len(times):
            return
        self.last = judged.last
        if self.lasting is None and not any(met.holds.any() for met in judged.conditions):
            self.last_scan = float(times[-1])
            return
        values = np.stack([how.of(met) for how, met in zip(worst, judged.conditions, strict=True)])
        known = ~np.isnan(values)
        met = np.where(known.any(axis=0), known.argmax(axis=0), NOTHING)
        late = np.diff(times, prepend=times[0]) > self.gap
        starts = np.flatnonzero((np.diff(met, prepend=met[0]) != 0) | late).tolist()
        for first, end in zip([0, *starts], [*starts, len(times)], strict=True):
            self._scans(times[first:end], int(met[first]), values[met[first], first:end], worst)

    def _scans(self, times: Times, met: int, values: Times, worst: Sequence[Worst]) -> None:
        """Adds consecutive scans of which each met the same condition, or none."""
        begin, held = float(times[0]), self.lasting
        if held is not None and begin - self.last_scan > self.gap:
            self.ended.append(held)
            held = None
        if held is not None and met != held.condition:
            self.ended.append(held._replace(end=begin))
            held = None
        self.last_scan = float(times[-1])
        if met != NOTHING:
            value = float(values.min() if worst[met].lowest else values.max())
            if held is not None:
                value = min(value, held.worst) if worst[met].lowest else max(value, held.worst)
            held = Held(begin if held is None else held.start, self.last_scan, met, value)
        self.lasting = held

    def as_tally(self) -> Tally:
        """Returns the tally of the last scan alone."""
        tally = Tally()
        if self.last is not None:
            tally.add(self.last)
        return tally

    @property
    def intervals(self) -> list[Held]:
        """Returns all intervals; the last one may last until now."""
        return self.ended if self.lasting is None else [*self.ended, self.lasting]
