"""Compares each scrape that Prometheus stored with the samples recorded until then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainwatch.crosscheck.hidden.archive import Archive, Series
from trainwatch.crosscheck.hidden.compared import Compared
from trainwatch.crosscheck.readings import matcher
from trainwatch.crosscheck.scrape_times import SAMPLES
from trainwatch.crosscheck.server import Milliseconds, Server
from trainwatch.crosscheck.stored import Window
from trainwatch.measurements.scraped import Labels, Points, Selection, Vector, without
from trainwatch.measurements.scraped import summed as sum_over

# A recording keeps the sum of some series: the label to sum over, and the series that count.
SUMMED = {
    "trainwatch_gpu_throttle_seconds_total": ("reason", 'reason=~"sw_thermal|hw_thermal"'),
    "trainwatch_gpu_xid_errors_total": ("xid", ""),
    "trainwatch_gpu_ecc_errors_total": ("severity", 'severity="uncorrected"'),
}
BUSY = 2000  # milliseconds: a sample may be this late even if scrapes are more frequent
# The exporter counts its ticks from its own start, not from the recording's. A recording has no pids.
OWN = {"trainwatch_sampler_ticks_total", "trainwatch_gpu_held_idle_seconds"}


class Scrapes:
    """The stored scrapes of a run. Raises UserError if the server fails.

    A scrape sees the last sample before it. It may see the sample before that, if one was just being taken,
    or one that was taken until the scrape was answered. `late` is the longest delay until a sample was seen:
    above 0 on a busy machine, and at most the time between scrapes.
    """

    def __init__(self, server: Server, archive: Archive, window: Window) -> None:
        self._server, self._archive, self._window = server, archive, window
        points = server.points(f"{SAMPLES}{{{matcher('run', window.run)}}}", window.start, window.end)
        self._points = {without(labels, "run"): series for labels, series in points.items()}
        late = max((self._lateness(target) for target in self._points), default=0)
        self.late = min(late, max(window.scrapes.mostly, BUSY))

    def compared(self) -> list[Compared]:
        """Returns one result per raw series that rules read."""
        return [self._compare(name) for name in self._archive.names if name not in OWN]

    def _lateness(self, target: Labels) -> Milliseconds:
        """Returns the age of the oldest sample that a scrape missed, by the number of samples it counted."""
        (series,) = (
            series
            for series in self._archive.choose(Selection(SAMPLES))
            if any(target <= labels for labels in series.labels)
        )
        times, counts = self._points[target]
        missed = np.searchsorted(np.nan_to_num(series.values[0]), counts, side="right")
        exists = missed < len(series.times)
        ages = times[exists] - series.times[missed[exists]]
        return int(max(ages.max(initial=0), 0))

    def _compare(self, name: str) -> Compared:
        found = Compared("samples", name)
        label, matchers = SUMMED.get(name, ("", ""))
        for series in self._archive.choose(Selection(name, matchers, of_run=False)):
            of_run = any(("run", self._window.run) in labels for labels in series.labels)
            chosen = ",".join(filter(None, (matcher("run", self._window.run) if of_run else "", matchers)))
            stored = self._server.points(f"{name}{{{chosen}}}", self._window.start, self._window.end)
            for target, (times, _) in self._points.items():
                if any(target <= labels for labels in series.labels):
                    of_target = {labels: points for labels, points in stored.items() if target <= labels}
                    theirs = _by_time(of_target, label)
                    for time in times.tolist():
                        self._compare_scrape(found, series, label, time, theirs.get(time, {}))
        return found

    def _compare_scrape(
        self, found: Compared, series: Series, summed: str, time: Milliseconds, theirs: Vector
    ) -> None:
        last = series.before(time)
        first = max(series.before(time - self.late) - 1, 0)
        columns = range(first, series.before(time + self._window.scrapes.unseen) + 1)
        states = [_vector(series, column, summed) for column in columns]
        if not states:
            return
        exact = _vector(series, last, summed) if last >= 0 else {}
        for labels in dict.fromkeys(labels for state in (*states, theirs) for labels in state):
            possible = [state[labels] for state in states if labels in state]
            must_be = len(possible) == len(states)
            found.add(time, labels, exact.get(labels), possible, theirs.get(labels), must_be)


def _by_time(stored: Mapping[Labels, Points], summed: str) -> dict[Milliseconds, Vector]:
    found: dict[Milliseconds, Vector] = {}
    for labels, (times, values) in stored.items():
        for time, value in zip(times.tolist(), values.tolist(), strict=True):
            vector = found.setdefault(time, {})
            key = without(labels, summed)
            vector[key] = vector.get(key, 0.0) + value
    return found


def _vector(series: Series, column: int, summed: str) -> Vector:
    vector = series.vector(column)
    return sum_over(vector, summed) if summed else vector
