"""The GPUs that each run uses: of its processes, as it reports them, or as its environment limits it.

docs/exporter.md describes the evidence and its order.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic

from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.sample import GpuUse, RankProcess, RunSample, Sample

KEPT_SECONDS = 60.0  # how long a GPU without a process stays its run's, as while a rank is started again


@collector
class RunGpusCollector(Collector):
    """Fills `RunSample.gpus`. A GPU may belong to several runs; a run without evidence has none."""

    name = "run_gpus"
    after = ("gpu", "training")
    settings = ("path_procfs",)

    def __init__(self, procfs: Path = Path("/proc"), clock: Callable[[], float] = monotonic) -> None:
        self._procfs = procfs
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, GpuUse]] = {}  # by run and GPU: when, and how
        self._before: dict[str, dict[str, GpuUse]] = {}  # at the last tick, by run

    def collect(self, sample: Sample) -> None:
        labels = {bare_uuid(gpu.uuid): label for label, gpu in sample.gpus.items() if gpu.uuid}
        own = frozenset().union(*(run.pids for run in sample.runs.values()))
        hidden = self._hides_strangers(sample)
        strangers = {gpu for gpu, pids in sample.gpu_processes.items() if self._strange(pids, own, hidden)}
        self.apart.each(
            "run {}".format, sample.runs, lambda name: self._find(name, sample, labels, strangers)
        )
        self._add_environments(sample, labels, strangers)
        answering = {gpu for gpu, reading in sample.gpus.items() if reading.lost != 1}
        for name, run in sample.runs.items():
            before = self._before.get(name, {})  # a GPU that does not answer stays with its run
            run.gpus.update({gpu: use for gpu, use in before.items() if gpu not in answering})
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in sample.runs}
        only = next(iter(sample.runs.values())) if len(sample.runs) == 1 else None
        if only is not None and not only.gpus and not strangers:
            only.gpus = dict.fromkeys(sample.gpus, GpuUse("node"))
        self._before = {name: run.gpus for name, run in sample.runs.items()}

    def _find(self, name: str, sample: Sample, labels: Mapping[str, str], strangers: set[str]) -> None:
        """Notes the GPUs of a run that its processes use, or report."""
        run = sample.runs[name]
        run.gpus = self._of_processes(name, run, sample.gpu_processes, strangers)
        rest = [each for each in run.processes if not _has_gpu(each, run.gpus)]
        devices = ((labels.get(bare_uuid(uuid)), each) for each in rest for uuid in each.devices)
        _add(run.gpus, "devices", devices)

    def _of_processes(
        self, name: str, run: RunSample, on_gpus: Mapping[str, Mapping[int, float]], strangers: set[str]
    ) -> dict[str, GpuUse]:
        """Returns the GPUs with a process of the run, now or a moment ago."""
        now = self._clock()
        for gpu, pids in on_gpus.items():
            ranks = tuple(sorted({each.rank for each in run.processes if not each.pids.isdisjoint(pids)}))
            if ranks:
                self._seen[name, gpu] = now, GpuUse("processes", ranks)
            elif gpu in strangers:
                self._seen.pop((name, gpu), None)
        return {
            gpu: use
            for (run_name, gpu), (at, use) in self._seen.items()
            if run_name == name and now - at < KEPT_SECONDS
        }

    def _add_environments(self, sample: Sample, labels: Mapping[str, str], strangers: set[str]) -> None:
        """Adds GPUs of CUDA_VISIBLE_DEVICES, unless others use them or claim them in the same way.

        Slurm numbers the GPUs of each job from 0 on: then several runs seem to have the first GPU.
        """
        used = strangers.union(*(run.gpus for run in sample.runs.values()))
        claims: dict[str, list[tuple[RunSample, RankProcess]]] = {}
        for run in sample.runs.values():
            for each in run.processes:
                if not _has_gpu(each, run.gpus):
                    for gpu in visible_gpus(each, labels, sample.gpus):
                        claims.setdefault(gpu, []).append((run, each))
        for gpu, claimed in claims.items():
            if gpu not in used and all(run is claimed[0][0] for run, _ in claimed):
                _add(claimed[0][0].gpus, "environment", ((gpu, each) for _, each in claimed))

    def _strange(self, pids: Iterable[int], own: frozenset[int], hidden: bool) -> bool:
        """Returns whether a process belongs to no run; `hidden`: those of other users are out of sight.

        Otherwise a pid that this procfs lacks may be of a run, as seen from outside of its container.
        """
        return any(pid not in own and (hidden or (self._procfs / str(pid)).exists()) for pid in pids)

    def _hides_strangers(self, sample: Sample) -> bool:
        """Returns whether this procfs hides processes of other users (hidepid), but none that trains."""
        if not (self._procfs / "self").exists() or (self._procfs / "1").exists():
            return False
        return all(each.pid is not None for run in sample.runs.values() for each in run.processes)


def visible_gpus(process: RankProcess, labels: Mapping[str, str], gpus: Iterable[str]) -> list[str]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES leaves a process: with a local rank its own, otherwise all.

    An entry is an index, or a UUID (of a GPU or a MIG device) that may be cut short. The first entry that
    names no GPU ends the list, as in CUDA. An index counts the GPUs of a process's own container.
    """
    listed: list[str] = []
    whole = [gpu for gpu in gpus if ":" not in gpu]
    for entry in filter(None, map(str.strip, process.visible_devices.split(","))):
        if entry.isascii() and entry.isdigit():
            found = [] if process.contained else [gpu for gpu in whole if gpu == str(int(entry))]
        else:
            wanted = bare_uuid(entry)
            found = [label for uuid, label in labels.items() if uuid.startswith(wanted)]
        if len(found) != 1:
            break
        listed += found
    if process.local_rank is None or len(listed) <= 1:
        return listed
    return listed[process.local_rank : process.local_rank + 1]


def bare_uuid(uuid: str) -> str:
    """Returns a UUID without its kind: "GPU-5a..." and "MIG-5a..." become "5a..."."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _has_gpu(process: RankProcess, gpus: Mapping[str, GpuUse]) -> bool:
    return any(process.rank in use.ranks for use in gpus.values())


def _add(gpus: dict[str, GpuUse], by: str, found: Iterable[tuple[str | None, RankProcess]]) -> None:
    """Adds GPUs with the ranks that use them; stronger evidence stays."""
    for gpu, process in found:
        if gpu is not None:
            known = gpus.get(gpu, GpuUse(by))
            gpus[gpu] = GpuUse(known.by, tuple(sorted({*known.ranks, process.rank})))
