"""Reads the files of traces: large ones in processes, as many at a time as there are cores and memory.

A process sends the number of bytes that it read, and in the end its captures, through a pipe.
It ends when its parent ends. If it dies, it costs only its own file.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import psutil

from stepscope.common.errors import UserError
from stepscope.common.fresh_python import fresh_python
from stepscope.exporter.processes.cgroup import Hierarchies, cpu_limit, memory
from stepscope.runs.model import Progress
from stepscope.runs.traces.capture import Capture, captures_of

WORTHWHILE = 32 << 20  # bytes of text; fewer are read before a process has started
COMPRESSION = 8  # bytes of text in one of a compressed trace, at least
MEMORY = 0.5  # bytes that a process needs per byte of text, at most
PROCFS, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# With it glibc returns the memory of a large array when it is freed.
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
Read = Callable[[Path, int], None]  # a file, bytes of it read since the last call
Found = list[Capture] | UserError


def read_files(paths: Sequence[Path], progress: Progress | None = None) -> list[Found]:
    """Returns what is in each file, or why it cannot be read."""
    sizes = {path: path.stat().st_size for path in paths}
    done, total = dict.fromkeys(paths, 0), sum(sizes.values())

    def read(path: Path, count: int) -> None:
        done[path] += count
        if progress is not None:
            progress(sum(done.values()), total)

    texts = {path: size * (COMPRESSION if path.suffix == ".gz" else 1) for path, size in sizes.items()}
    large_last = sorted(paths, key=lambda path: sizes[path])
    in_processes = partial(_in_processes, most=_at_a_time(max(texts.values(), default=0)))
    found = {}
    for path, result in (in_processes if sum(texts.values()) >= WORTHWHILE else _here)(large_last, read):
        found[path] = result
        read(path, sizes[path] - done[path])
    return [found[path] for path in paths]


def _here(paths: list[Path], read: Read) -> Iterator[tuple[Path, Found]]:
    for path in paths:
        yield path, _read(path, partial(read, path))


def _at_a_time(text: int) -> int:
    """Returns how many processes may read files of `text` bytes each, on the cores and in the memory here."""
    cores, free = float(len(os.sched_getaffinity(0))), float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):
        groups = Hierarchies(PROCFS, CGROUPS).of(os.getpid())
        held = memory(groups.memory)
        cores = min(cores, cpu_limit(groups.cpu).cores)  # NaN, no limit, changes nothing
        free = min(free, held.limit_bytes - held.used_bytes)
    return max(int(min(cores, free / max(MEMORY * text, 1))), 1)


def _in_processes(paths: list[Path], read: Read, most: int) -> Iterator[tuple[Path, Found]]:
    """Yields what is in the files when it is known, those at the end of the list first."""
    readers: list[_Reader] = []
    try:
        while paths or readers:
            while paths and len(readers) < most:
                readers.append(_Reader(paths.pop()))
            ready = wait([reader.connection for reader in readers])
            for reader in [reader for reader in readers if reader.connection in ready]:
                message = reader.receive()
                if isinstance(message, int):
                    read(reader.path, message)
                else:
                    readers.remove(reader)
                    reader.end()
                    yield reader.path, message
    finally:
        for reader in readers:
            reader.end()


def _read(path: Path, read: Callable[[int], None]) -> Found:
    try:
        return captures_of(path, read)
    except UserError as error:
        return error
    except MemoryError:
        return UserError(f"{path}: too little memory to read it; free some, or capture fewer steps")


class _Reader:
    """A process that reads a file. Ctrl-C does not reach it: this process ends it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection, theirs = Pipe(duplex=False)
        with theirs:
            self._process = subprocess.Popen(
                fresh_python(__name__, str(theirs.fileno()), str(path)),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **ALLOCATION},
            )

    def receive(self) -> int | Found:
        """Returns the bytes that were read, or in the end what is in the file."""
        try:
            message: int | Found = self.connection.recv()
        except (EOFError, OSError):
            status = self._process.wait()
            return UserError(
                f"{self.path}: the process that reads it ended with status {status}; it may need more memory"
            )
        return message

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()


def child(pipe: str, path: str) -> None:
    """Reads the file at `path`, and sends what it finds through the pipe."""
    connection = Connection(int(pipe), readable=False)
    with suppress(BrokenPipeError):  # nobody waits any more
        connection.send(_read(Path(path), connection.send))
