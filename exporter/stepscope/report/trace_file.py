"""Writes slices and counters as a Chrome trace, which ui.perfetto.dev and chrome://tracing read.

Source: the Trace Event Format, "JSON Object Format" (events of the phases X, C and M). Slices of one thread
must be nested: a slice that begins in another one and ends after it goes to another thread of its track.
"""

import gzip
import json
from functools import lru_cache
from math import inf, isfinite
from typing import Any, BinaryIO

MICRO = 1e6
DIGITS = 3  # of microseconds
LONGEST_NAME = 300  # characters


class TraceFile:
    """The events that are written to `file`. Times are seconds since the epoch, shown since `start`.

    Events before or after `between` are left out.
    """

    def __init__(self, file: BinaryIO, start: float, between: tuple[float, float] = (-inf, inf)) -> None:
        self._file = gzip.GzipFile("", "wb", 6, file, 0)
        self._start = start
        self._first, self._last = between
        self._processes = self._threads = 0
        self._before = '{"displayTimeUnit": "ms", "traceEvents": [\n'  # what comes before the next event

    def process(self, name: str) -> int:
        """Returns the number of a new group of tracks; they are shown in this order."""
        self._processes += 1
        self._describe("process", name, self._processes)
        return self._processes

    def track(self, process: int, name: str) -> "Track":
        """Returns a new row of slices."""
        return Track(self, process, name)

    def thread(self, process: int, name: str) -> int:
        self._threads += 1
        self._describe("thread", name, process, self._threads)
        return self._threads

    def slice(
        self, process: int, thread: int, name: str, start: float, end: float, about: dict[str, Any] | None
    ) -> None:
        if end < self._first or start > self._last:
            return
        begin, until = self._moment(start), self._moment(end)
        arguments = f', "args": {json.dumps(about)}' if about else ""
        self._add(
            f'{{"ph": "X", "name": {_name(name)}, "pid": {process}, "tid": {thread}, '
            f'"ts": {begin}, "dur": {round(until - begin, DIGITS)}{arguments}}}'
        )

    def counter(self, process: int, name: str, time: float, value: float) -> None:
        """Adds a value, which holds until the next one."""
        if isfinite(value) and self._first <= time <= self._last:
            self._add(
                f'{{"ph": "C", "name": {_name(name)}, "pid": {process}, "ts": {self._moment(time)}, '
                f'"args": {{"value": {float(f"{value:.6g}")}}}}}'
            )

    def close(self, about: dict[str, Any]) -> None:
        """Ends the document. `about`: values of `otherData`."""
        self._file.write(f'\n], "otherData": {json.dumps(about)}}}\n'.encode())
        self._file.close()

    def _moment(self, time: float) -> float:
        return round((time - self._start) * MICRO, DIGITS)

    def _describe(self, what: str, name: str, process: int, thread: int = 0) -> None:
        place = f'"pid": {process}, "tid": {thread}'
        order = thread or process
        self._add(f'{{"ph": "M", "name": "{what}_name", {place}, "args": {{"name": {_name(name)}}}}}')
        self._add(f'{{"ph": "M", "name": "{what}_sort_index", {place}, "args": {{"sort_index": {order}}}}}')

    def _add(self, event: str) -> None:
        self._file.write(f"{self._before}{event}".encode())
        self._before = ",\n"


class Track:
    """A row of slices, which come in the order of their starts."""

    def __init__(self, file: TraceFile, process: int, name: str) -> None:
        self._file, self._process, self._name = file, process, name
        self._lanes: list[_Lane] = []

    def add(self, name: str, start: float, end: float, about: dict[str, Any] | None = None) -> None:
        lane = next((lane for lane in self._lanes if lane.takes(start, end)), None)
        if lane is None:
            number = len(self._lanes) + 1
            title = self._name if number == 1 else f"{self._name} ({number})"
            lane = _Lane(self._file.thread(self._process, title))
            self._lanes.append(lane)
            lane.takes(start, end)
        self._file.slice(self._process, lane.thread, name, start, end, about)


class _Lane:
    """A thread with nested slices."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self._open: list[float] = []  # ends, the innermost last
        self._last = -float("inf")

    def takes(self, start: float, end: float) -> bool:
        """Returns whether a slice is nested here, and notes it."""
        if start < self._last:
            return False
        while self._open and self._open[-1] <= start:
            self._open.pop()
        if self._open and end > self._open[-1]:
            return False
        self._open.append(end)
        self._last = start
        return True


@lru_cache(100_000)
def _name(name: str) -> str:
    return json.dumps(name[:LONGEST_NAME])
