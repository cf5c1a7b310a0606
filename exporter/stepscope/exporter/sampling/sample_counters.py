"""Counts every sample of every active run, and keeps the counts when the exporter is killed.

The rules count samples taken every 500 ms, but a scrape every 15 s sees only one in thirty. Counting
the samples here makes the answers exact at any scrape interval.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from pathlib import Path
from threading import Lock

from stepscope.common.errors import describe
from stepscope.common.shared_files import entries
from stepscope.exporter.sampling.active_runs import ActiveRuns
from stepscope.exporter.sampling.counted_run import CountedRun
from stepscope.exporter.sampling.exposition import number
from stepscope.exporter.sampling.families import FamilyTable, HistogramValue, LabelValues
from stepscope.exporter.sampling.limits import Choice, ReachedLimits
from stepscope.exporter.sampling.sample import GpuUse, RunSample, Sample
from stepscope.exporter.sampling.sample_tally import BOUNDS, CAUSES, GRID, SampleTally
from stepscope.exporter.sampling.state_file import StateFileError

logger = logging.getLogger(__name__)

SUFFIX = ".samples"


class SampleCounters:
    """The sample counters of all runs: two sinks of the sampler, and families that a scrape publishes.

    `runs_of_ledgers` returns the names of the runs whose ledgers are held now. `run` is the run of the
    exporter's flag `--run`. Each run has a file in `directory` (None: the counts are only in memory), which
    is removed `retention` seconds after the run's last sample.
    """

    def __init__(
        self,
        directory: Path | None,
        runs_of_ledgers: Callable[[], Collection[str]],
        run: str | None = None,
        retention: float = 300.0,
        now: float = 0.0,
        reached: ReachedLimits | None = None,
        owners: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._directory = directory
        self._runs_of_ledgers = runs_of_ledgers
        self._owners = owners  # the user of each run of a ledger
        self._retention = retention
        self._run = run
        self._active = ActiveRuns(run)
        self._reached = reached or ReachedLimits()
        self._choice = Choice[str]()
        self._runs: dict[str, CountedRun] = {}  # in the order of their start
        self._ended: list[CountedRun] = []  # their files are still there
        self.runs: dict[str, bool] = {}  # whether each is active, with the runs that the limit leaves out
        self._uuids: Mapping[str, str] = {}  # by GPU label
        self._unwritable: set[str] = set()
        self._lock = Lock()  # between a tick that counts, a slow disk and a scrape that publishes
        self._families = _Families()
        self.families = tuple(self._families.values())
        if self._directory:
            self._load(self._directory, now)

    def count(self, sample: Sample) -> None:
        """Counts a sample for each run that is active; ends those that were not for long."""
        pids = {pid for processes in sample.gpu_processes.values() for pid in processes}
        active = self._active.at(sample.time, self._runs_of_ledgers(), pids)
        with self._lock:
            self._uuids = {gpu: reading.uuid for gpu, reading in sample.gpus.items()} or self._uuids
            active = self._within_limit(active)
            for name in active:
                run = self._runs.get(name)
                if run is None:
                    run = self._runs[name] = CountedRun(name, self._path(name), sample.time)
                run.pids = sorted(self._active.unnamed_pids) if name == self._active.unnamed else ()
                run.count(sample, self._uses(name, sample, active))
            for name in self._runs.keys() - active:
                if self._runs[name].age(sample.time) > self._retention:
                    self._ended.append(self._runs.pop(name))

    def observe(self, run: str | None) -> None:
        """Counts for this run from now on, instead of that of the flag `--run`."""
        if run != self._run:
            with self._lock:
                if before := self._runs.pop(self._run or "", None):
                    self._ended.append(before)
                self._run = self._active.run = run

    def _uses(self, name: str, sample: Sample, active: set[str]) -> RunSample | None:
        """Returns what a run uses: None if it has ledgers, but they could not be read at this sample."""
        if name == self._active.unnamed:
            unnamed = self._active.unnamed_pids
            on_gpus = sample.gpu_processes.items()
            gpus = {gpu: GpuUse("processes") for gpu, pids in on_gpus if not unnamed.isdisjoint(pids)}
            return RunSample(gpus=gpus)
        if name in sample.runs or name != self._run:
            return sample.runs.get(name)
        return RunSample(gpus=dict.fromkeys(sample.gpus, GpuUse("node")) if active == {name} else {})

    def save(self, _: Sample) -> None:
        """Writes new counts to the files. It is apart from `count`, which continues while a disk hangs."""
        with self._lock:
            ended, self._ended = self._ended, []
            runs = list(self._runs.values())
        for run in ended:
            run.drop()
        for run in runs:
            self._save(run)

    def publish(self) -> None:
        """Publishes the current counts. Called by a scrape, because a tick must not pay for cumulating."""
        with self._lock:
            tallies = {name: run.published() for name, run in self._runs.items()}
            self._families.publish(tallies, {name: run.gpus for name, run in self._runs.items()})
            used: dict[LabelValues, float] = {
                (name, gpu, self._uuids.get(gpu, ""), ",".join(map(str, use.ranks)), use.by): 1
                for name, run in self._runs.items()
                for gpu, use in (run.uses.gpus if run.uses else {}).items()
            }
            self._families["run_gpu_info"].publish(used)

    def close(self) -> None:
        """Closes the files; the counts stay in them."""
        with self._lock:
            for run in self._runs.values():
                run.close()

    def _within_limit(self, active: set[str]) -> set[str]:
        """Returns the active runs that are counted: first that of `--run`, then those counted before."""
        first = [self._run] if self._run in active else []
        order = dict.fromkeys([*first, *self._runs, *sorted(active)])
        self.runs = {name: name in active for name in order}
        kept, left_out = self._choice.of(self.runs, self._reached.limits.runs, owners=self._owners())
        self._reached.report("runs", dict.fromkeys(left_out, 1))
        self._ended += [self._runs.pop(name) for name in left_out if name in self._runs]
        return active.intersection(kept)

    def _path(self, run: str) -> Path | None:
        if self._directory is None:
            return None
        readable = re.sub(r"[^A-Za-z0-9._-]", "_", run)[:60].lstrip(".")
        digest = sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:12]  # two names, two files
        return self._directory / f"{readable}-{digest}{SUFFIX}"

    def _save(self, run: CountedRun) -> None:
        with self._lock:
            unsaved = run.unsaved()
        if unsaved is None:
            return
        try:
            run.save(unsaved)
        except (OSError, StateFileError) as error:
            if run.name not in self._unwritable:  # warned once; the counting continues in memory
                logger.warning("%s: the sample counters cannot be kept: %s", run.path, describe(error))
                self._unwritable.add(run.name)
        else:
            self._unwritable.discard(run.name)

    def _load(self, directory: Path, now: float) -> None:
        try:
            paths = sorted(directory / each.name for each in entries(directory) if each.name.endswith(SUFFIX))
        except FileNotFoundError:
            return
        loaded = [CountedRun.load(path, now) for path in paths]
        for run in sorted(filter(None, loaded), key=lambda run: run.start):
            if run.age(now) > self._retention:
                run.drop()
                continue
            self._runs[run.name] = run
            if run.pids:
                self._active.resume(run.name, run.pids)


METRICS = """
counter stepscope_samples_total{run}
    Samples taken while the run was active.
histogram stepscope_gpu_utilization_samples{run,gpu}
    Samples of the run by the GPU's utilisation.
histogram stepscope_gpu_memory_samples{run,gpu}
    Samples of the run by the share of the GPU's memory in use.
histogram stepscope_cpu_utilization_samples{run}
    Samples of the run by the mean utilisation of the cores.
histogram stepscope_io_wait_samples{run}
    Samples of the run by the mean share of time in which the cores waited for I/O.
counter stepscope_gpu_starved_samples_total{run,cause,cause_above,gpu_below}
    Samples in which some core's utilisation (cause cpu) or I/O wait (cause io) was above cause_above
    and some GPU's utilisation below gpu_below.
counter stepscope_gpu_low_samples_total{run,gpu_below}
    Samples in which some GPU's utilisation was below gpu_below.
info stepscope_run_gpu_info{run,gpu,uuid,rank,by}
    The GPUs that the run uses, and how that is known (by); with its ranks there, where known.
"""
# Families of histograms of a run or of its GPUs by name, with the attribute of SampleTally.
OF_RUNS = {"cpu_utilization_samples": "cpu", "io_wait_samples": "io_wait"}
OF_GPUS = {"gpu_utilization_samples": "gpu", "gpu_memory_samples": "gpu_memory"}


class _Families(FamilyTable):
    """The metric families of the sample counters (design: "Sample counters")."""

    def __init__(self) -> None:
        super().__init__(METRICS, dict.fromkeys([*OF_RUNS, *OF_GPUS], BOUNDS))

    def publish(self, tallies: dict[str, SampleTally], gpus: Mapping[str, Collection[str]]) -> None:
        """Publishes all counts, but of GPUs only those that the run uses now (`gpus`)."""
        self["samples_total"].publish({(run,): tally.samples for run, tally in tallies.items()})
        for name, attribute in OF_RUNS.items():
            self[name].publish_histograms(
                {(run,): getattr(tally, attribute).value() for run, tally in tallies.items()}
            )
        for name, attribute in OF_GPUS.items():
            of_gpus: dict[LabelValues, HistogramValue] = {
                (run, gpu): histogram.value()
                for run, tally in tallies.items()
                for gpu, histogram in getattr(tally, attribute).items()
                if gpu in gpus[run]
            }
            self[name].publish_histograms(of_gpus)
        # Without the utilisation of a GPU, none is known to starve or not to. A zero of the first bound says
        # that it is known; those of other bounds are left out.
        with_gpus = {
            run: tally
            for run, tally in tallies.items()
            if any(gpu in gpus[run] and any(seen.counts) for gpu, seen in tally.gpu.items())
        }
        starved: dict[LabelValues, float] = {
            (run, cause, above, below): count
            for run, tally in with_gpus.items()
            for cause in CAUSES
            for above, counts in zip(_THRESHOLDS, tally.starved[cause].counts(), strict=True)
            for below, count in zip(_THRESHOLDS, counts, strict=True)
            if count or below == _THRESHOLDS[0]
        }
        self["gpu_starved_samples_total"].publish(starved)
        low: dict[LabelValues, float] = {
            (run, below): count
            for run, tally in with_gpus.items()
            for below, count in zip(_THRESHOLDS, tally.low.counts(), strict=True)
        }
        self["gpu_low_samples_total"].publish(low)


_THRESHOLDS = tuple(number(threshold) for threshold in GRID)
