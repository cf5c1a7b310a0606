"""Space of the file systems in which training processes work: that of the working directory of each rank.

The exporter does not know where a run writes its checkpoints. A script that writes them to a relative path
writes them there. A network file system may not answer for long, so a thread per run asks, every minute.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from threading import Thread
from time import monotonic

from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import FamilyTable, LabelValues
from stepscope.exporter.sampling.sample import Sample

SECONDS = 60.0  # between two readings
LONGEST_SECONDS = 10.0  # that file systems may take to answer
MOST_THREADS = 32  # that may wait for file systems when others start
ESCAPED = re.compile(r"\\(\d{3})")  # a space in a mount point is \040
METRICS = """
gauge stepscope_run_file_system_free_bytes{run,mountpoint}
    Space that the run may still use where its processes have their working directory.
gauge stepscope_run_file_system_size_bytes{run,mountpoint}
    Its whole space.
"""


@collector
class FileSystemsCollector(Collector):
    """A file system that does not answer costs only its run's values, a process out of sight its own."""

    name = "file_systems"
    after = ("training",)
    settings = ("path_procfs",)

    def __init__(self, procfs: Path, clock: Callable[[], float] = monotonic) -> None:
        self._procfs, self._clock = procfs, clock
        self._due = 0.0
        self._asking: dict[str, tuple[Thread, float]] = {}  # by run, and since when
        self._spaces: dict[str, Mapping[LabelValues, tuple[float, float]]] = {}  # by run
        self.free, self.size = self.families = tuple(FamilyTable(METRICS).values())

    def collect(self, sample: Sample) -> None:
        pids = {
            label: {process.pid for process in run.processes if process.pid is not None}
            for label, run in sample.runs.items()
        }
        now = self._clock()
        asking = {label: asked for label, asked in self._asking.items() if asked[0].is_alive()}
        for label, (_, since) in asking.items():
            if now - since > LONGEST_SECONDS:
                self._spaces.pop(label, None)  # no value is better than a stale one
        if now >= self._due:
            self._due = now + SECONDS
            for label in self._spaces.keys() - pids.keys():
                del self._spaces[label]
            if len(asking) < MOST_THREADS:
                waiting = pids.keys() - asking.keys()
                asking |= {label: (self._started(label, pids[label]), now) for label in waiting}
        self._asking = asking
        known = [of_run for label, of_run in list(self._spaces.items()) if pids.get(label)]
        spaces = {labels: space for of_run in known for labels, space in of_run.items()}
        self.free.publish({labels: free for labels, (free, _size) in spaces.items()})
        self.size.publish({labels: size for labels, (_free, size) in spaces.items()})

    def wait(self) -> None:
        """Waits until the threads have asked; for tests."""
        for thread, _ in self._asking.values():
            thread.join()

    def _started(self, label: str, pids: set[int]) -> Thread:
        thread = Thread(target=self._ask, args=(label, pids), name="file systems", daemon=True)
        thread.start()
        return thread

    def _ask(self, label: str, pids: set[int]) -> None:
        found: dict[LabelValues, tuple[float, float]] = {}
        for pid in sorted(pids):
            try:
                folder = self._procfs / str(pid) / "cwd"
                mountpoint = writable_mount(self._procfs / str(pid) / "mountinfo", os.readlink(folder))
                if mountpoint is None or (label, mountpoint) in found:
                    continue
                space = os.statvfs(folder)
            except (OSError, IndexError):  # the process has ended, or is another user's
                continue
            if space.f_blocks:
                size = space.f_frsize * space.f_blocks
                found[label, mountpoint] = (float(space.f_frsize * space.f_bavail), float(size))
        self._spaces[label] = found


def writable_mount(mountinfo: Path, folder: str) -> str | None:
    """Returns the mount point of a folder, by proc(5)'s mountinfo; None if it is read-only."""
    above = {folder, *map(str, PurePosixPath(folder).parents)}
    mounts: dict[str, bool] = {}
    text = mountinfo.read_text(errors="surrogateescape")
    for line in filter(None, text.split("\n")):  # a name may have other ends of lines
        fields = line.split(" ")
        point = ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), fields[4])
        if point in above:
            # The mount and its file system have options. The last mount of a point hides the others.
            mounts[point] = all("rw" in options.split(",") for options in (fields[5], fields[-1]))
    nearest = max(mounts, key=len, default=None)
    return nearest if nearest is not None and mounts[nearest] else None
