"""How long a thread was ready to run and waited for a core: tells a busy machine from slow storage."""

from __future__ import annotations

import os


class CoreWait:
    """The calling thread's time in the run queue, as Linux counts it (the second number of schedstat).

    0 throughout where the kernel does not count it (it was built without CONFIG_SCHED_INFO).
    A thread keeps its own one; after a fork the child needs another (`pid` tells).
    """

    __slots__ = ("_fd", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def seconds(self) -> float:
        """Seconds since the thread began."""
        if self._fd < 0:
            return 0.0
        try:
            return int(os.pread(self._fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
