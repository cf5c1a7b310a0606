"""The raw series of a run at the moments at which a rule was evaluated."""

from __future__ import annotations

from collections.abc import Callable

from trainwatch.crosscheck.server import Grid, Labels, Milliseconds, Server, Vector


class Readings:
    """Reads each selector once for all moments.

    `delay`: read what is current as it was so long before. Prometheus gives a scrape the time at which it
    began; an evaluation while it was still under way has not seen it.
    """

    def __init__(self, server: Server, run: str, grid: Grid, delay: Milliseconds = 0) -> None:
        self._server, self._run = server, run
        self._grid, self._delay = grid, delay
        self._read: dict[tuple[str, Milliseconds], list[Vector]] = {}

    def at(self, index: int) -> Moment:
        return Moment(self, index)

    def time(self, index: int) -> float:
        """Seconds since the epoch."""
        return self._grid.time(index) / 1000

    def vector(self, index: int, name: str, matchers: str, ago: Milliseconds, of_run: bool) -> Vector:
        chosen = [run_matcher(self._run)] if of_run else []
        selector = f"{name}{{{','.join([*chosen, *([matchers] if matchers else [])])}}}"
        key = selector, ago
        if key not in self._read:
            self._read[key] = self._server.instants(selector, self._grid.earlier(ago or self._delay))
        return self._read[key][index]


class Moment:
    """What a rule sees that is evaluated at one moment."""

    def __init__(self, readings: Readings, index: int) -> None:
        self._readings, self._index = readings, index

    @property
    def time(self) -> float:
        """Seconds since the epoch."""
        return self._readings.time(self._index)

    def __call__(self, name: str, matchers: str = "", ago: float = 0.0, of_run: bool = True) -> Vector:
        """The values of a series, so many seconds ago; labels without its name."""
        return self._readings.vector(self._index, name, matchers, round(1000 * ago), of_run)


def run_matcher(run: str) -> str:
    """`run="..."`, with what PromQL's strings need escaped."""
    text = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'run="{text}"'


def without(labels: Labels, *names: str) -> Labels:
    return frozenset(label for label in labels if label[0] not in names)


def grouped(vector: Vector, *names: str) -> dict[Labels, list[float]]:
    """The values of series that are alike but for some labels."""
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(without(labels, *names), []).append(value)
    return groups


def dropped(vector: Vector, *names: str) -> Vector:
    """The same without some labels, which are the same in all of them."""
    return {without(labels, *names): value for labels, value in vector.items()}


def both(left: Vector, right: Vector, combine: Callable[[float, float], float]) -> Vector:
    """Combines the values of series that both have."""
    return {labels: combine(value, right[labels]) for labels, value in left.items() if labels in right}
