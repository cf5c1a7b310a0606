"""Why the training command ended."""

from __future__ import annotations

import os
from math import isnan, nan
from pathlib import Path
from signal import SIGKILL

from stepscope.common.signals import name_of
from stepscope.exporter.ledgers.presence import FINISHED, OUT_OF_MEMORY
from stepscope.exporter.processes.cgroup import Hierarchies, oom_kills

PROCFS, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class OutOfMemory:
    """Compares the kernel's kills in the cgroup of this process, which the command shares.

    A process in the root cgroup has no such count: then that of the whole node counts, if a SIGKILL ended the
    command.
    """

    def __init__(self, procfs: Path = PROCFS, cgroups: Path = CGROUPS) -> None:
        self._procfs, self._cgroups = procfs, cgroups
        self._before = self._kills(), self._kills_of_node()

    def happened(self, ended_by: int | None = None) -> bool:
        """Returns whether the kernel killed a process because memory ran out; False if that is unknown."""
        before, before_on_node = self._before
        if isnan(before) and ended_by == SIGKILL:
            return self._kills_of_node() > before_on_node
        return self._kills() > before

    def _kills(self) -> float:
        try:
            return oom_kills(Hierarchies(self._procfs, self._cgroups).of(os.getpid()).memory)
        except (OSError, ValueError):
            return nan

    def _kills_of_node(self) -> float:
        try:
            text = (self._procfs / "vmstat").read_text()
            return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))
        except (OSError, ValueError, StopIteration):
            return nan


def reason(status: int, ended_by: int | None, out_of_memory: bool) -> str:
    """Returns the reason in the words of `stepscope_run_ended_info`.

    A command that was asked to stop may end with any status. A launcher may end with any error if one of its
    ranks ran out of memory.
    """
    if status == 0:
        return FINISHED
    if ended_by is not None and not (out_of_memory and ended_by == SIGKILL):
        return f"signal {name_of(ended_by)}"
    return OUT_OF_MEMORY if out_of_memory else f"exit status {status}"
