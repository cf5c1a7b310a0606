"""Counts the samples of a recorded node again, with the exporter's own counters."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf, isnan, nan
from pathlib import Path
from typing import NamedTuple

from stepscope.exporter.collectors.gpu_holders import GpuHoldersCollector
from stepscope.exporter.collectors.run_processes import RunProcessesCollector
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.sampling.families import Family, LabelValues
from stepscope.exporter.sampling.sample import RUN_QUANTITIES, GpuSample, GpuUse, HostUse, RunSample, Sample
from stepscope.exporter.sampling.sample_counters import SampleCounters
from stepscope.prometheus.crosscheck.replay.ranks import replayed_ledgers
from stepscope.runs.model import RUN_USE, NodeFacts, NodeSamples, RunFacts, Steps

# The recording has one counter for all heat, and the sum of all XIDs with the number of the last one.
HEAT = "sw_thermal"
READ = (
    *("times", "run_use", "cpu", "io_wait", "gpu", "gpu_memory", "gpu_thermal_throttle_seconds"),
    *("gpu_ecc_uncorrected_errors", "gpu_xid_errors", "gpu_last_xid", "gpu_compute_processes"),
)
PID = 1  # of the process on a GPU: the recording has only their number


class ReplayedNode:
    """The node's exporter, replayed forward in time; `directory` is an empty folder for this node alone."""

    def __init__(
        self,
        facts: NodeFacts,
        run: RunFacts,
        samples: Sequence[NodeSamples],
        steps: Sequence[Steps],
        directory: Path,
    ) -> None:
        self.name = facts.node
        ranks = [rank for rank in run.ranks if rank.node == facts.node]
        self._ledgers = replayed_ledgers(directory, run, ranks, steps)
        self._training = TrainingCollector(
            directory,
            procfs=directory / "proc",
            open_ledger=self._ledgers.__getitem__,
            state=lambda ledger: self._ledgers[ledger.reader.path].state,
        )
        self._run = run.label
        self._rows = _rows(facts, samples)
        self._next = next(self._rows, None)
        self._last: _Row | None = None
        self._now = -inf  # of the last sample
        self._own: dict[str, GpuUse] = {}  # the run's GPUs so far
        self._counters = SampleCounters(None, self._active)
        self._holders = GpuHoldersCollector(directory / "proc", lambda: self._now)
        self._host = _Host()
        self._use = RunProcessesCollector(directory / "proc", directory / "cgroup")

    def families(self, moment: float) -> list[Family]:
        """Returns what a scrape at the moment saw; nothing before the first sample."""
        while self._next is not None and self._next.sample.time <= moment:
            self._last = self._next
            self._now = self._last.sample.time
            # GPUs of others are not in the recording.
            self._own |= dict.fromkeys(self._last.sample.gpus, GpuUse("node"))
            self._last.sample.runs = {
                self._run: RunSample(pids=frozenset({PID}), gpus=self._own, host=self._last.use)
            }
            self._counters.count(self._last.sample)
            self._last.sample.gpu_processes = self._last.processes
            self._holders.collect(self._last.sample)
            self._host.count(self._last)
            self._next = next(self._rows, None)
        if self._last is None:
            return []
        for ledger in self._ledgers.values():
            ledger.advance(self._now)
        self._training.collect(Sample(time=self._now))
        self._counters.publish()
        self._host.publish(self._last)
        self._use.publish({self._run: self._last.use}, self._active())
        counted = (each for each in self._counters.families if each.name != "stepscope_run_gpu_info")
        families = [*self._host.families, *self._use.families, *self._training.families]
        families += self._holders.families
        return [*families, *counted]  # it lacks the ranks of each GPU

    def close(self) -> None:
        self._training.close()
        self._counters.close()

    def _active(self) -> list[str]:
        """Returns the run while a process of it is alive, or always if it was named by a flag."""
        ledgers = self._ledgers.values()
        alive = any(ledger.start <= self._now < ledger.until for ledger in ledgers)
        return [self._run] if alive or not ledgers else []


class _Row(NamedTuple):
    """A sample, and the driver's counters of each GPU by label."""

    sample: Sample
    heat_seconds: dict[str, float]
    ecc_errors: dict[str, float]
    xid_errors: dict[str, float]
    last_xid: dict[str, float]
    processes: dict[str, dict[int, float]]  # on each GPU, without their memory
    use: HostUse


def _rows(facts: NodeFacts, chunks: Iterable[NodeSamples]) -> Iterator[_Row]:
    labels = [gpu.gpu for gpu in facts.gpus]
    memory = [gpu.memory_bytes or 1.0 for gpu in facts.gpus]  # of an unknown size only the share counts

    def by_gpu(row: list[float]) -> dict[str, float]:
        return {label: value for label, value in zip(labels, row, strict=False) if not isnan(value)}

    for samples in chunks:
        columns = (getattr(samples, name).tolist() for name in READ)
        for time, use, cpu, io_wait, gpu, used, *counters in zip(*columns, strict=True):
            gpus = {
                label: GpuSample(load, share * size, size if not isnan(share) else nan)
                for label, load, share, size in zip(labels, gpu, used, memory, strict=False)
                if not (isnan(load) and isnan(share))  # both are missing if it did not answer
            }
            known = [core for core in zip(facts.cpus, cpu, io_wait, strict=False) if not isnan(core[1])]
            cpus, busy, waiting = zip(*known, strict=True) if known else ((), (), ())
            sample = Sample(
                time, cpus=cpus, cpu_utilization_ratio=list(busy), cpu_io_wait_ratio=list(waiting), gpus=gpus
            )
            heat, ecc, xids, last_xid, held = map(by_gpu, counters)
            processes = {gpu: {PID: nan} if held[gpu] else {} for gpu in held if gpu in gpus}
            of_run = dict(zip(RUN_USE, use, strict=True))
            waits = of_run["memory_waiting_seconds"]
            host = HostUse(
                cpus=facts.run_cpus,
                waiting_seconds={} if isnan(waits) else {"memory": waits},
                **{name: value for name, value in of_run.items() if name in RUN_QUANTITIES},
            )
            yield _Row(sample, heat, ecc, xids, last_xid, processes, host)


class _Host:
    """The families of cores and GPUs that rules read, and the sampler's."""

    def __init__(self) -> None:
        self.ticks = Family("stepscope_sampler_ticks_total", "counter", "")
        self.cores = Family("stepscope_cpus", "gauge", "")
        self.used = Family("stepscope_gpu_memory_used_bytes", "gauge", "", ("gpu",))
        self.total = Family("stepscope_gpu_memory_total_bytes", "gauge", "", ("gpu",))
        self.heat = Family("stepscope_gpu_throttle_seconds_total", "counter", "", ("gpu", "reason"))
        self.ecc = Family("stepscope_gpu_ecc_errors_total", "counter", "", ("gpu", "severity"))
        self.xids = Family("stepscope_gpu_xid_errors_total", "counter", "", ("gpu", "xid"))
        self.families = [self.ticks, self.cores, self.used, self.total, self.heat, self.ecc, self.xids]
        self._ticks = 0
        self._errors: dict[LabelValues, float] = {}  # by GPU and XID
        self._last_count: dict[str, float] = {}

    def count(self, row: _Row) -> None:
        """Counts the errors of a sample; those since the sample before have the last XID."""
        self._ticks += 1
        for gpu, count in row.xid_errors.items():
            before = self._last_count.get(gpu, 0.0)
            new = count - before if count >= before else count  # smaller: a new exporter counts from 0
            if new:
                key = gpu, f"{row.last_xid.get(gpu, 0):.0f}"
                self._errors[key] = self._errors.get(key, 0.0) + new
            self._last_count[gpu] = count

    def publish(self, row: _Row) -> None:
        """Publishes what a scrape sees if this is the last sample before it."""
        sample, gpus = row.sample, row.sample.gpus
        self.ticks.publish({(): self._ticks})
        self.cores.publish({(): len(sample.cpus)} if sample.cpus else {})
        self.used.publish({(gpu,): read.memory_used_bytes for gpu, read in gpus.items()})
        self.total.publish({(gpu,): read.memory_total_bytes for gpu, read in gpus.items()})
        self.heat.publish({(gpu, HEAT): seconds for gpu, seconds in row.heat_seconds.items()})
        self.ecc.publish({(gpu, "uncorrected"): errors for gpu, errors in row.ecc_errors.items()})
        self.xids.publish(dict(self._errors))
