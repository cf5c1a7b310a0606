"""Why the training command ended."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGKILL

from stepscope.common.signals import name_of
from stepscope.exporter.ledgers.endings import FINISHED, OUT_OF_MEMORY
from stepscope.exporter.processes.cgroup import Hierarchies, oom_kills

PROCFS, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class OutOfMemory:
    """Compares the kernel's kills in the cgroup of this process, which the command shares."""

    def __init__(self, procfs: Path = PROCFS, cgroups: Path = CGROUPS) -> None:
        self._procfs, self._cgroups = procfs, cgroups
        self._before = self._kills()

    def happened(self) -> bool:
        """Returns whether the kernel killed a process because memory ran out; False if that is unknown."""
        return self._kills() > self._before

    def _kills(self) -> float:
        try:
            return oom_kills(Hierarchies(self._procfs, self._cgroups).of(os.getpid()).memory)
        except (OSError, ValueError):
            return float("nan")


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
