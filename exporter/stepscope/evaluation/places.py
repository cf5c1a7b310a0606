"""Adds up sampled lines by their place in the user's code: each place is named once, wherever it is shown."""

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.runs.model import LineTime, ThreadTime
from stepscope.training.line_names import last_parts

SHOWN = 40  # characters of a function of a library, at its end
LEAST_PLACE = 0.1  # of the time of lines: a place with less is not named
MAIN_THREADS = ("training", "script")  # roles of the processes whose lines are the run's wall time


@dataclass(frozen=True)
class Place:
    """A line of the user's code, or a function of a library that no line of the user's called."""

    line: LineTime  # that with most time, of those that only the called function distinguishes
    function: str  # that contains the line; "": not known, the module, or a lambda
    seconds: float
    share: float  # of the lines that were added up, 0..1

    @property
    def words(self) -> str:
        """Returns "load, data.py:14 (json.loads)", "data.py:3", or "import": in no line of the user's."""
        at, library = self.line.place, self.called
        if not at:
            return library or "other lines"
        function = f"{self.function}, " if self.function else ""
        return f"{function}{at}" + (f" ({library})" if library else "")

    @property
    def called(self) -> str:
        """Returns the last parts of the library function's name; "" if the line called none."""
        loop, colon, name = self.line.library.rpartition(": ")
        return loop + colon + last_parts(name, SHOWN - len(loop + colon), ".")

    @property
    def is_known(self) -> bool:
        """Returns whether it has a name: lines that are not among those with most time are one place."""
        return bool(self.line.place or self.line.library)

    @property
    def caller(self) -> str:
        """Returns "train.py:30 (main)"; "" if nobody is known."""
        line = self.line
        return f"{line.caller_place} ({line.caller})" if line.caller_place else ""


def worth_a_name(found: Iterable[Place]) -> list[Place]:
    """Returns the places that took long enough to be named."""
    return [place for place in found if place.share >= LEAST_PLACE and place.is_known]


def main_threads(threads: Iterable[ThreadTime], seconds: float) -> list[ThreadTime]:
    """Returns the threads whose time is that of a run of these seconds, as far as they were sampled.

    What processes of one rank spend at the same time counts once: their mean.
    """
    sampled = (thread for thread in threads if thread.role in MAIN_THREADS and thread.seconds > 0)
    return [thread.within(seconds) for thread in sampled]


def waits(line: LineTime) -> bool:
    """Returns whether a line mostly waits."""
    return line.running < line.total / 2


def places(lines: Iterable[LineTime], state: str = "") -> list[Place]:
    """Returns the places with most time first. `state`: counts only the time in that state of the thread."""
    by_place: dict[str, list[tuple[float, LineTime]]] = {}
    for line in lines:
        seconds = line.seconds.get(state, 0.0) if state else line.total
        if seconds > 0:
            by_place.setdefault(line.place or line.library, []).append((seconds, line))
    whole = sum(seconds for found in by_place.values() for seconds, _ in found)
    added = []
    for found in by_place.values():
        found.sort(key=lambda each: -each[0])
        seconds = sum(seconds for seconds, _ in found)
        named = (line.function for _, line in found if not line.function.startswith("<"))
        added.append(Place(found[0][1], next(named, ""), seconds, seconds / whole))
    return sorted(added, key=lambda place: -place.seconds)
