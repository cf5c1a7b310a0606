"""Reads the raw series of a run at the moments at which a rule was evaluated."""

import numpy as np

from stepscope.measurements.scraped import Labels, Moment, Points, Selection, Vector
from stepscope.prometheus.crosscheck.server import Grid, Milliseconds, Server


class Readings:
    """Reads series from a server, each selection once for all moments.

    Current values are read as they were `delay` earlier: Prometheus stores a scrape under the time at which
    it began, so evaluations during the scrape miss it. `speed` is that of a simulated node: ages by the
    node's clock are divided by it.
    """

    def __init__(
        self, server: Server, run: str, grid: Grid, delay: Milliseconds = 0, speed: float = 1.0
    ) -> None:
        self._server, self._run = server, run
        self._grid, self._delay, self._speed = grid, delay, speed
        self._read: dict[tuple[str, Milliseconds], list[Vector]] = {}
        self._points: dict[tuple[str, Milliseconds], dict[Labels, Points]] = {}
        self._windows: dict[tuple[str, Milliseconds], dict[int, dict[Labels, Points]]] = {}

    def at(self, index: int) -> Moment:
        return Moment(self, index)

    def time(self, index: int) -> float:
        return self._grid.time(index) / 1000

    def recorded(self, index: int, chosen: Selection, ago: Milliseconds) -> Vector:
        """Returns the values of recorded series, which are never delayed."""
        selector = self._selector(chosen)
        key = selector, round(ago / self._speed)
        if key not in self._read:
            self._read[key] = self._server.instants(selector, self._grid.earlier(key[1]))
        return self._read[key][index]

    def held(self, index: int, chosen: Selection, ago: Milliseconds, hold: Milliseconds) -> Vector:
        """Returns the last values in a range; current ones are delayed."""
        selector = f"last_over_time({self._selector(chosen)}[{round(hold / self._speed)}ms])"
        key = selector, round(ago / self._speed) or self._delay
        if key not in self._read:
            self._read[key] = self._server.instants(selector, self._grid.earlier(key[1]))
        return self._read[key][index]

    def window(
        self, index: int, chosen: Selection, length: Milliseconds, is_raw: bool
    ) -> dict[Labels, Points]:
        length = round(length / self._speed)
        key = self._selector(chosen), length
        if key not in self._points:
            last = self._grid.time(self._grid.count - 1)
            self._points[key] = self._server.points(key[0], self._grid.start - length, last)
            self._windows[key] = {}
        if index not in self._windows[key]:
            self._windows[key][index] = self._cut(index, self._points[key], length, is_raw)
        return self._windows[key][index]

    def _cut(
        self, index: int, points: dict[Labels, Points], length: Milliseconds, is_raw: bool
    ) -> dict[Labels, Points]:
        end = self._grid.time(index)
        start = end - length + (0 if self._server.closed_on_the_left else 1)
        seen = end - (self._delay if is_raw else 0)
        found = {}
        for labels, (times, values) in points.items():
            first, after = np.searchsorted(times, (start, seen + 1))
            if first < after:
                ages = np.rint((end - times[first:after]) * self._speed).astype(np.int64)
                found[labels] = end - ages, values[first:after]
        return found

    def _selector(self, chosen: Selection) -> str:
        of_run = matcher("run", self._run) if chosen.of_run else ""
        return f"{chosen.name}{{{','.join(filter(None, (of_run, chosen.matchers)))}}}"


def matcher(label: str, value: str) -> str:
    """Returns `label="value"`, escaped as PromQL and OpenMetrics require."""
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{label}="{text}"'
