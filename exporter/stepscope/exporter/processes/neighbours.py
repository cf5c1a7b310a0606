"""Finds whose processes use the cores of a run next to its own."""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import NamedTuple

from stepscope.common.users import user_name
from stepscope.exporter.processes.used import Process, read_process, user_of

LOOK_SECONDS = 15.0  # between two looks at all processes of the node,
LONGEST_SHARE = 0.0005  # or as many as keep their cost below this share of a core
LEAST_SHARE = 0.05  # of a run's cores; while others use less, nobody looks who they are
MOST_USERS = 5  # that are named per run; the others are added up
OTHER_USERS = "others"


class OnCores(NamedTuple):
    """A run: its cores, its own processes, and what everything else has used of these cores."""

    cores: frozenset[str]
    own: Collection[int]
    other_cpu_seconds: float


class Neighbours:
    """The CPU seconds of other processes by user, for each run.

    A process counts where it ran last. If the sum exceeds what everything else used of the cores, because
    some of it ran elsewhere, each user counts by the share.
    """

    def __init__(self, procfs: Path, ticks: int) -> None:
        self._procfs, self._ticks = procfs, ticks
        self._elapsed, self._pause = 0.0, LOOK_SECONDS
        self._before: dict[int, Process] = {}
        self._others_before: dict[str, float] = {}
        self._seconds: dict[str, dict[str, float]] = {}

    def look(self, runs: Mapping[str, OnCores], elapsed: float) -> Mapping[str, Mapping[str, float]]:
        """Returns the seconds so far by user, for each run; `elapsed` are the seconds since the last call."""
        self._elapsed += elapsed
        if self._elapsed >= self._pause or not self._others_before:
            begin = thread_time()
            self._look(runs)
            self._pause = max(LOOK_SECONDS, (thread_time() - begin) / LONGEST_SHARE)
            self._elapsed = 0.0
        return self._seconds

    def forget(self, run: str) -> None:
        """Begins again at 0 with a later run of this name."""
        self._seconds.pop(run, None)

    def _look(self, runs: Mapping[str, OnCores]) -> None:
        now = {run: on.other_cpu_seconds for run, on in runs.items()}
        before, self._others_before = self._others_before, now
        gained = {run: seconds - before.get(run, seconds) for run, seconds in now.items()}
        least = LEAST_SHARE * self._elapsed
        crowded = [run for run, on in runs.items() if gained[run] > least * len(on.cores)]
        if not crowded:
            self._before = {}
            return
        users = self._used()
        for run in crowded:
            on = runs[run]
            of_user: dict[int, float] = {}
            for pid, (user, core, seconds) in users.items():
                if pid not in on.own and core in on.cores:
                    of_user[user] = of_user.get(user, 0.0) + seconds
            scale = min(1.0, gained[run] / sum(of_user.values())) if of_user else 0.0
            self._count(run, {user: scale * seconds for user, seconds in of_user.items()})

    def _used(self) -> dict[int, tuple[int, str, float]]:
        """Returns the user, the last core and the CPU seconds since the last look, by process."""
        before, self._before = self._before, {}
        found: dict[int, tuple[int, str, float]] = {}
        try:
            for pid in map(int, filter(str.isdigit, os.listdir(self._procfs))):
                process = read_process(self._procfs, pid)
                if process is None:
                    continue
                self._before[pid] = process
                earlier = before.get(pid)
                known = earlier.cpu_ticks if earlier and earlier.start == process.start else 0
                used = (process.cpu_ticks - known) / self._ticks
                if before and used:  # otherwise it is not known what was used since the last look
                    with suppress(OSError):
                        found[pid] = (user_of(self._procfs, pid), str(process.core), used)
        except OSError:  # too many open files: a process that was not read would seem new at the next look
            self._before, found = {}, {}
        return found

    def _count(self, run: str, of_user: Mapping[int, float]) -> None:
        counted = self._seconds.setdefault(run, {})
        for user, seconds in sorted(of_user.items(), key=lambda entry: -entry[1]):
            name = user_name(user)
            if name not in counted and len(counted) >= MOST_USERS:
                name = OTHER_USERS
            counted[name] = counted.get(name, 0.0) + seconds
