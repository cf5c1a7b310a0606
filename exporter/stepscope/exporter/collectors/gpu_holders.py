"""GPUs that a process holds: who, and for how long without any work."""

from collections.abc import Callable
from math import isnan
from pathlib import Path
from time import monotonic

from stepscope.common.users import user_name
from stepscope.exporter.processes.used import user_of
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import FamilyTable, LabelValues
from stepscope.exporter.sampling.sample import Sample

LONGEST_GAP = 10.0  # seconds between two samples that count as seen
METRICS = """
gauge stepscope_gpu_held_idle_seconds{gpu,run,user,pid}
    For how long the GPU has done no work while this process holds memory of it; 0 if it works.
"""


@collector
class GpuHoldersCollector(Collector):
    """Names the process with the most memory on each GPU. A GPU without a process has no series.

    Seconds without work add up over samples with a utilisation of 0, on the exporter's own clock. They begin
    again with the next work, and with the next holder.
    """

    name = "gpu_holders"
    after = ("gpu", "training")
    settings = ("path_procfs",)

    def __init__(self, procfs: Path = Path("/proc"), clock: Callable[[], float] = monotonic) -> None:
        self._procfs = procfs
        self._clock = clock
        self._last = clock()
        self._idle: dict[str, tuple[int, float]] = {}  # by GPU: the holder, and its seconds without work
        (self._family,) = self.families = tuple(FamilyTable(METRICS).values())

    def collect(self, sample: Sample) -> None:
        now = self._clock()
        elapsed, self._last = min(now - self._last, LONGEST_GAP), now
        published: dict[LabelValues, float] = {}

        def look(gpu: str) -> None:
            processes, load = sample.gpu_processes[gpu], sample.gpus[gpu].utilization_ratio
            if not processes or isnan(load):
                return
            before, seconds = self._idle.get(gpu, (0, 0.0))
            largest = max(processes, key=lambda pid: (0.0 if isnan(processes[pid]) else processes[pid], -pid))
            holder = before if before in processes else largest
            seconds = seconds + elapsed if load == 0 and holder == before else 0.0
            self._idle[gpu] = holder, seconds
            run = next((name for name, run in sample.runs.items() if holder in run.pids), "")
            published[gpu, run, self._user(holder), str(holder)] = seconds

        shown = [gpu for gpu in sample.gpu_processes if gpu in sample.gpus]  # a limit may leave some out
        self.apart.each("GPU {}".format, shown, look)
        for gpu in self._idle.keys() - {labels[0] for labels in published}:
            if not sample.gpu_processes.get(gpu, True):  # it is known that the holder has left
                del self._idle[gpu]
        self._family.publish(published)

    def _user(self, pid: int) -> str:
        """Returns the user of a process; "" if it is out of sight."""
        try:
            return user_name(user_of(self._procfs, pid))
        except OSError:
            return ""
