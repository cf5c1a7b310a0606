"""Which training runs are active on this node at a tick."""

import time
from collections.abc import Collection, Iterable

_UNNAMED = "unnamed-{}T{}"  # a run whose processes do not use Stepscope: the date and time of its start
UNNAMED = _UNNAMED.format("[0-9]+", "[0-9]+")  # matches their names


class ActiveRuns:
    """A run is active while one of its ledgers is held, or while the exporter has `--run`.

    Without both, compute processes on GPUs make a run `unnamed-<UTC start>`, from the first such process
    to the end of the last. Processes that were on a GPU while a named run was active belong to that run:
    they make no unnamed run if they are slow to exit.
    """

    def __init__(self, run: str | None = None) -> None:
        self.run = run
        self._claimed: set[int] = set()
        self.unnamed: str | None = None
        self.unnamed_pids: frozenset[int] = frozenset()

    def resume(self, unnamed: str, pids: Iterable[int]) -> None:
        """Continues an unnamed run of an earlier exporter, if these processes still run."""
        self.unnamed = unnamed
        self.unnamed_pids = frozenset(pids)

    def at(self, now: float, of_ledgers: Collection[str], gpu_processes: Iterable[int]) -> set[str]:
        """Returns the names of the runs active at `now` (seconds since the epoch)."""
        named = {*of_ledgers, *([self.run] if self.run else [])}
        processes = set(gpu_processes)
        if named:
            self._claimed = processes or self._claimed  # none: the GPUs may not have been read
            self.unnamed = None
            return named
        self._claimed &= processes
        own = processes - self._claimed
        if self.unnamed and self.unnamed_pids.isdisjoint(own):
            self.unnamed = None
        if own and self.unnamed is None:
            self.unnamed = time.strftime(_UNNAMED.format("%Y%m%d", "%H%M%S"), time.gmtime(now))
        self.unnamed_pids = frozenset(own)
        return {self.unnamed} if self.unnamed else set()
