"""Finds memory that grows steadily, in PromQL and in what Prometheus has recorded."""

import math
from dataclasses import dataclass

import numpy as np

from stepscope.measurements.scraped import Labels, Moment, Vector, both, divided, highest, lowest
from stepscope.rules.parts.expressions import Expression, Record, time_span
from stepscope.rules.parts.judgement import Tally
from stepscope.rules.parts.promql import MINUTE, Scraping

EACH_PART = 0.5  # of a part's share of steady growth is the least that a part grows
LONGER = (1, 6, 36)  # times `patience`: how far Prometheus looks back
# Noise grows in each of 6 parts in 1 of 5040 cases (7!); in each of 4, in 1 of 120.
PARTS = 6


@dataclass(frozen=True)
class SteadyGrowth:
    """Memory that grew in each of several parts of some time: fewer jumps leave a part without growth.

    The gain of a part is recorded only if growth by `least` (a share of the memory) over the whole time is
    possible. So PromQL reads the past only for the few GPUs or runs whose memory grows, instead of reading
    `lows` of all 18 times.
    """

    lows: str  # the series of the lowest use of memory: level:metric:min_ratio
    parts: int
    part: float  # seconds
    least: float
    is_part: bool = False  # whether a longer time, of which this is a part, records its whole gain

    @property
    def seconds(self) -> float:
        return self.parts * self.part

    @property
    def each(self) -> float:
        """Returns the share of the growth that a part must have."""
        return EACH_PART / self.parts

    @property
    def records(self) -> list[Record]:
        """Returns the gain of a part, and that of all parts."""
        span = time_span(self.part)
        least = f"{self.each * self.least:.12g}"
        gain = Record(self._gain, f"{self.lows} - {self.lows} offset {span} > {least}")
        return [gain] if self.is_part else [gain, Record(self.total, " + ".join(self._gains))]

    @property
    def expression(self) -> str:
        """Returns the PromQL of the gain in all parts, if each has its share of it."""
        each = f"{self.each:.12g} * {self.total}"
        return "\n  and ".join([self.total, *(f"{gain} > {each}" for gain in self._gains)])

    def twice(self, reach: float) -> Record:
        """Returns the growth in twice the time, of what grows now; nothing if there was none.

        It is that above the highest of `lows` in the `reach` seconds before twice the time: memory that only
        fluctuates can grow in all parts, too, but it was as high before. What is not known to have grown
        before counts as none: a young run has the growth of all parts.
        """
        before = f"max_over_time({self.lows}[{time_span(reach)}] offset {time_span(2 * self.seconds)})"
        return Record(
            self.in_twice,
            f"{self.lows} - {before} > 0 and {self.total}\nor\n{self.total} unless {before}",
        )

    @property
    def in_twice(self) -> str:
        return f"{self.lows.rpartition(':')[0]}:growth{time_span(2 * self.seconds)}"

    def recorded_twice(self, now: Moment, reach: float) -> Vector:
        """Returns the values of `twice`."""
        before = highest(now.recorded_over(self.lows, reach, ago=2 * self.seconds))
        grown = both(now.recorded(self.lows), before, lambda late, early: late - early)
        found = {labels: grown.get(labels, total) for labels, total in now.recorded(self.total).items()}
        return {labels: growth for labels, growth in found.items() if growth > 0}

    @property
    def _gain(self) -> str:
        return f"{self.lows.rpartition(':')[0]}:gain{time_span(self.part)}"

    @property
    def total(self) -> str:
        name = "gain" if self.is_part else "growth"
        return f"{self.lows.rpartition(':')[0]}:{name}{time_span(self.seconds)}"

    @property
    def _gains(self) -> list[str]:
        """Returns the PromQL of the gain in each part, from the last to the first."""
        offsets = [time_span(number * self.part) for number in range(1, self.parts)]
        return [self._gain, *(f"{self._gain} offset {offset}" for offset in offsets)]

    def full_in(self, share: str, growth: str, times: int = 1) -> str:
        """Returns the PromQL of the seconds until memory is full, if it goes on to grow as in all parts.

        `growth` is that in `times` times as long.
        """
        return f"(1 - {share}) * {times * self.seconds:.12g} / {growth}"

    def recorded_full_in(self, shares: Vector, growth: Vector, times: int = 1) -> Vector:
        """Returns the values of `full_in`."""
        return both(shares, growth, lambda used, grew: divided((1 - used) * times * self.seconds, grew))

    def recorded(self, now: Moment) -> dict[str, Vector]:
        """Returns the values of `records`."""
        early, late = now.recorded(self.lows, ago=self.part), now.recorded(self.lows)
        gains = both(late, early, lambda high, low: high - low)
        least = float(f"{self.each * self.least:.12g}")
        found = {self._gain: {labels: gain for labels, gain in gains.items() if gain > least}}
        if not self.is_part:
            found[self.total] = {labels: sum(steps) for labels, steps in self._of_parts(now).items()}
        return found

    def grown(self, now: Moment) -> Vector:
        """Returns the values of `expression`."""
        each = float(f"{self.each:.12g}")
        return {
            labels: sum(steps)
            for labels, steps in self._of_parts(now).items()
            if min(steps) > each * sum(steps)
        }

    def _of_parts(self, now: Moment) -> dict[Labels, list[float]]:
        """Returns the gains of the parts, from the last to the first, of each series that has all of them."""
        gains = [now.recorded(self._gain, ago=number * self.part) for number in range(self.parts)]
        return {
            labels: [gain[labels] for gain in gains]
            for labels in gains[0]
            if all(labels in gain for gain in gains)
        }


@dataclass(frozen=True)
class LongGrowth:
    """Steady growth in the time of `patience` samples, or in 6 or 36 times as long.

    `share`, `lowest` and `growth` are series: the memory in use, its lowest use, and its growth in the
    longest of these times in which it was steady. `increase` is in percent, `warm_up` in minutes.

    A longer time counts only if the run's warm-up was over when it began: caches that filled then would be
    its growth. `samples` is the series that counts the run's.
    """

    share: str
    lowest: str
    growth: str
    increase: float
    patience: int
    warm_up: float
    samples: str

    def warmed_up(self, sample_interval: float) -> float:
        """Returns the samples of a run after which growth of the shortest time is all after its warm-up.

        That is never less than `patience`.
        """
        return 60 * self.warm_up / sample_interval + self.patience

    def _longer(self, scraping: Scraping) -> list[tuple[SteadyGrowth, float]]:
        """Returns the times but the shortest, and the samples of a run from which on each counts."""
        return [
            (window, round((60 * self.warm_up + window.seconds) / scraping.sample_interval))
            for window in self.windows(scraping)[1:]
        ]

    def windows(self, scraping: Scraping) -> list[SteadyGrowth]:
        """Returns the times, the longest last."""
        interval = max(MINUTE, scraping.interval)
        shortest = interval * max(PARTS, math.ceil(scraping.window(self.patience) / interval))
        parts = [shortest * factor / PARTS for factor in LONGER]
        return [
            SteadyGrowth(self.lowest, PARTS, part, self.increase / 100, PARTS * part in parts)
            for part in parts
        ]

    def every(self, scraping: Scraping) -> float:
        """Returns the evaluation interval in seconds."""
        return dividing(self.windows(scraping)[0].part, 4 * MINUTE)

    def records(self, share: Expression, scraping: Scraping) -> list[Record]:
        """Returns the recording rules; `share` is the memory in use."""
        windows = self.windows(scraping)
        span = time_span(scraping.reach(windows[0].part))
        samples = scraping.held(self.samples)
        grown = [windows[0].expression]
        grown += [
            f"{window.expression}\n  and {samples} > {least}" for window, least in self._longer(scraping)
        ]
        return [
            Record(self.share, share),
            Record(self.lowest, f"min_over_time({self.share}[{span}])"),
            *(record for window in windows for record in window.records),
            Record(self.growth, "\nor\n".join(f"({each})" for each in grown[::-1])),
        ]

    def recorded(self, now: Moment, scraping: Scraping) -> dict[str, Vector]:
        """Returns the values of `records` without the memory in use."""
        windows = self.windows(scraping)
        samples = now.held(self.samples, scraping.hold)
        longest = windows[0].grown(now)
        for window, least in self._longer(scraping):  # the longest one comes last
            longest |= {
                labels: grown
                for labels, grown in window.grown(now).items()
                if samples.get(labels, 0.0) > least
            }
        return {
            self.lowest: lowest(now.recorded_over(self.share, scraping.reach(windows[0].part))),
            **{name: values for window in windows for name, values in window.recorded(now).items()},
            self.growth: longest,
        }


def dividing(seconds: float, at_most: float) -> float:
    """Returns the longest evaluation interval, up to `at_most`, that divides `seconds`.

    A value recorded `seconds` ago was then recorded at exactly that moment.
    """
    return seconds / math.ceil(seconds / at_most)


def counts_of(tally: Tally, levelled: bool, growing: int = 0) -> dict[str, int]:
    """Returns the scans that fired, and those in which memory grew before it levelled off, which do not."""
    grew = tally.conditions[growing] if levelled and tally.conditions else 0
    return {"triggered": tally.triggered - grew, "levelled_off": grew}


def known(value: float) -> float | None:
    """Returns the value, or None for NaN, which JSON does not have."""
    return value if np.isfinite(value) else None
