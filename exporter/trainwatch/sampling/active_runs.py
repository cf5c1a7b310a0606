"""Which training runs are active on this node at a tick."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable


class ActiveRuns:
    """A run is active while one of its ledgers is held, or the exporter was told it by `--run`.

    Where neither says so, a compute process on a GPU makes an `unnamed-<UTC start>` run, from when the
    first one appears until none is left. Processes that were on a GPU while a named run was active
    belong to that run: they make no unnamed one while they take their time to exit.
    """

    def __init__(self, told: str | None = None) -> None:
        self._told = told
        self._claimed: set[int] = set()
        self.unnamed: str | None = None
        self.unnamed_pids: frozenset[int] = frozenset()

    def resume(self, unnamed: str, pids: Iterable[int]) -> None:
        """Goes on with an unnamed run of an exporter before this one, if these processes still run."""
        self.unnamed = unnamed
        self.unnamed_pids = frozenset(pids)

    def at(self, now: float, of_ledgers: Collection[str], gpu_processes: Collection[int]) -> set[str]:
        """The names of the runs active at `now` (seconds since the epoch)."""
        named = {*of_ledgers, *([self._told] if self._told else [])}
        processes = set(gpu_processes)
        if named:
            self._claimed |= processes
            self.unnamed = None
            return named
        self._claimed &= processes
        own = processes - self._claimed
        if self.unnamed and self.unnamed_pids.isdisjoint(own):
            self.unnamed = None
        if own and self.unnamed is None:
            self.unnamed = time.strftime("unnamed-%Y%m%dT%H%M%S", time.gmtime(now))
        self.unnamed_pids = frozenset(own)
        return {self.unnamed} if self.unnamed else set()
