"""The processes of each run on this node: those that hold its ledgers, and all that these started."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from stepscope.exporter.ledgers.run_totals import Ledger, RunKey
from stepscope.exporter.processes.tree import Namespaces, ProcessTrees
from stepscope.exporter.sampling.sample import RankProcess, RunSample

RETRY_SECONDS = 60.0  # between two searches for processes of which only the ledger is in sight


class Command(NamedTuple):
    """The command of `stepscope run`, which may hold no ledger: its run, and the process that started it."""

    run: str
    started_by: int


class RunProcesses:
    """Finds them in a procfs. Nothing here raises: a process that is out of sight has no pid."""

    def __init__(
        self,
        procfs: Path = Path("/proc"),
        clock: Callable[[], float] = monotonic,
        command: Command | None = None,
    ) -> None:
        self.command = command
        self._trees = ProcessTrees(procfs, clock)
        self._namespaces = Namespaces(procfs)
        self._clock = clock
        self._search_due = 0.0
        self._unknown: set[Ledger] = set()

    def of(self, ledgers: Iterable[Ledger], labels: Mapping[RunKey, str]) -> dict[str, RunSample]:
        """Returns the runs whose ledgers are held, by label, and that of the command."""
        alive = [ledger for ledger in ledgers if ledger.alive]
        self._find_pids(alive)
        runs: dict[str, RunSample] = {}
        for ledger in alive:
            run = runs.setdefault(labels[ledger.key], RunSample(name=ledger.header.name))
            run.processes.append(_rank_process(ledger))
        of_command = self._of_command()
        if self.command and of_command and not runs:
            runs[self.command.run] = RunSample()
        processes = [process for run in runs.values() for process in run.processes]
        known = [process.pid for process in processes if process.pid is not None]
        trees = self._trees.of([*known, *of_command])
        for run in runs.values():
            for process in run.processes:
                process.pids = trees.get(process.pid, frozenset())
            run.pids = frozenset().union(*(process.pids for process in run.processes))
        if self.command and self.command.run in runs:
            of_run = runs[self.command.run]
            of_run.pids = of_run.pids.union(*(trees[pid] for pid in of_command))
        return runs

    def _of_command(self) -> list[int]:
        """Returns what `stepscope run` has started, without this process."""
        if self.command is None or not self._namespaces.own:
            return []
        found = [pid for pid in self._trees.children(self.command.started_by) if pid != os.getpid()]
        if not found:  # not started yet: a look on a busy machine is rare, and may be the last of a short run
            self._trees.hurry()
        return found

    def _find_pids(self, alive: list[Ledger]) -> None:
        unknown = {ledger for ledger in alive if ledger.pid is None}
        if self._namespaces.own:
            for ledger in unknown:
                ledger.pid = _holder(ledger)
            unknown = {ledger for ledger in unknown if ledger.pid is None}
        now = self._clock()
        if unknown <= self._unknown and now < self._search_due:
            return
        self._unknown, self._search_due = unknown, now + RETRY_SECONDS
        holders = self._namespaces.lock_holders() if unknown else {}
        for ledger in unknown:
            reader = ledger.reader
            ledger.pid = holders.get(reader.inode) or self._namespaces.find(reader.header.pid, reader.owner)


def _holder(ledger: Ledger) -> int | None:
    try:
        pid = ledger.reader.holder()
    except OSError:
        return None
    return pid if pid is not None and pid > 0 else None


def _rank_process(ledger: Ledger) -> RankProcess:
    header = ledger.header
    return RankProcess(
        pid=ledger.pid,
        rank=header.rank,
        local_rank=header.local_rank,
        world_size=header.world_size,
        owner=ledger.key.owner,
        devices=header.devices,
        visible_devices=header.visible_devices,
        contained=ledger.pid != header.pid,
    )
