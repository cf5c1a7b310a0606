"""Reads small files of /proc. What this system does not show is empty, and its times are 0."""

from __future__ import annotations

import os

from stepscope.common.shared_files import Descriptor

MOST_BYTES = 512


class ProcFile:
    """A file that stays open, for what is read again and again."""

    def __init__(self, name: str) -> None:
        try:
            fd = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
            self._file: Descriptor | None = Descriptor(fd)
        except OSError:
            self._file = None

    def read(self) -> bytes:
        """Returns the content of now."""
        try:
            return os.pread(self._file.fd, MOST_BYTES, 0) if self._file is not None else b""
        except OSError:  # the process or thread has ended
            return b""

    def times(self) -> tuple[float, float]:
        """Returns the seconds for which a thread had a core, and for which it was ready but had none.

        The file is a `schedstat`. Kernels that were built without CONFIG_SCHED_INFO have none.
        """
        fields = self.read().split()
        return (int(fields[0]) / 1e9, int(fields[1]) / 1e9) if len(fields) > 1 else (0.0, 0.0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def __enter__(self) -> ProcFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __del__ = close


def read(name: str) -> bytes:
    """Returns the content of a file of now."""
    with ProcFile(name) as file:
        return file.read()


def thread_times(number: int | str) -> tuple[float, float]:
    """Returns `times` of a thread of this process."""
    with ProcFile(f"self/task/{number}/schedstat") as file:
        return file.times()
