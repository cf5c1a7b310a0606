"""What Prometheus would have scraped of a made-up run: the exporter's own counting and writing."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from stepscope.exporter.collectors import training
from stepscope.exporter.ledgers import run_totals
from stepscope.exporter.ledgers.reader import LoaderTotals
from stepscope.exporter.sampling.exposition import Exposition
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.sample import GpuSample, GpuUse, RunSample, Sample
from stepscope.exporter.sampling.sample_counters import SampleCounters
from stepscope.runs.model import COMPONENTS, PHASES, NodeSamples, Steps
from stepscope.training.layout import STEP_BOUNDS

from tests.support.source import INTERVAL, START

SCRAPE_SECONDS = 15
ROWS_A_SCRAPE = round(SCRAPE_SECONDS / INTERVAL)

Series = dict[str, list[float | None]]


def scraped_samples(
    samples: NodeSamples,
    run: str = "run",
    instance: str | None = None,
    rows_a_scrape: int = ROWS_A_SCRAPE,
    lag: int = 0,
) -> Series:
    """The sample counters of a run of which each scrape sees so many more rows, and all series of cores.

    The first scrape, at 0 s, sees none. With `lag` each scrape sees so many rows less.
    """
    counters = SampleCounters(None, lambda: {run})
    cores = Family("stepscope_cpu_utilization_ratio", "gauge", "", ("cpu",))
    cpus = Family("stepscope_cpus", "gauge", "")
    gpus = {str(gpu): GpuUse("node") for gpu in range(samples.gpu.shape[1])}  # also while one does not answer

    def scrapes() -> Iterator[Iterable[Family]]:
        row = 0
        for end in range(-lag, len(samples) + 1, rows_a_scrape):
            while row < end:
                taken = _sample(samples, row)
                taken.runs = {run: RunSample(gpus=gpus)}
                counters.count(taken)
                row += 1
            counters.publish()
            cores.publish({(str(cpu),): 0.5 for cpu in range(samples.cpu.shape[1])})
            cpus.publish({(): samples.cpu.shape[1]})
            yield (*counters.families, cores, cpus)

    return written(scrapes(), instance or samples.node)


def scraped_steps(
    steps: Sequence[Steps],
    scrapes: int,
    run: str = "run",
    instance: str = "node-a",
    end: float | None = None,
    loaders: Mapping[int, Sequence[LoaderTotals]] | None = None,
) -> Series:
    """The metrics of the ledgers of the ranks of a node and the samples taken, scrape by scrape.

    `end` of the run is in seconds.

    Times in the series are seconds since the first scrape, for that is where promtool's clock begins.
    """
    families = training.Families()
    counted = _Counted(steps)

    def all_scrapes() -> Iterator[Iterable[Family]]:
        for number in range(scrapes):
            now = number * SCRAPE_SECONDS
            totals = counted.until(now)
            seen: Any = _Run(steps, totals, now, None if end is None or now < end else end, loaders or {})
            families.publish({run: seen}, now, 0, {})
            yield families.values()

    taken = f'stepscope_samples_total{{job="stepscope",instance="{instance}",run="{run}"}}'
    samples: Series = {taken: [float(ROWS_A_SCRAPE * number) for number in range(scrapes)]}
    return {**written(all_scrapes(), instance), **samples}


def written(scrapes: Iterable[Iterable[Family]], instance: str) -> Series:
    """Series by name and labels, as a Prometheus that scrapes `instance` stores them."""
    exposition = Exposition()
    columns: dict[str, list[float | None]] = {}  # by what is before the value
    for number, families in enumerate(scrapes):
        for line in exposition.write(families, "text").decode().splitlines():
            if line.startswith("#"):
                continue
            name, _, value = line.rpartition(" ")
            values = columns.setdefault(name, [])
            values += [None] * (number - len(values))
            values.append(float(value))
    return {_with_target(name, instance): values for name, values in columns.items()}


def _with_target(series: str, instance: str) -> str:
    name, _, labels = series.removesuffix("}").partition("{")
    target = f'job="stepscope",instance="{instance}"'
    return f"{name}{{{target},{labels}}}" if labels else f"{name}{{{target}}}"


def of_run(series: Series, run: str) -> Series:
    """Returns the same series for a run of another name: what is counted does not depend on it."""
    return {re.sub(r'\brun="[^"]*"', f'run="{run}"', name): values for name, values in series.items()}


def only(series: Series, *names: str) -> Series:
    """The series of some metrics, for promtool to read no more; and the samples taken, for windows."""
    names = (*names, "stepscope_samples_total")
    return {key: values for key, values in series.items() if key.partition("{")[0].startswith(names)}


def _sample(samples: NodeSamples, row: int) -> Sample:
    gpus = {
        str(number): GpuSample(
            utilization_ratio=float(samples.gpu[row, number]),
            memory_used_bytes=float(samples.gpu_memory[row, number]),
            memory_total_bytes=1.0,
        )
        for number in range(samples.gpu.shape[1])
        if not np.isnan(samples.gpu[row, number])
    }
    return Sample(
        time=float(samples.times[row]),
        cpus=tuple(map(str, range(samples.cpu.shape[1]))),
        cpu_utilization_ratio=samples.cpu[row].tolist(),
        cpu_io_wait_ratio=samples.io_wait[row].tolist(),
        gpus=gpus,
    )


class _Run:
    """What the training collector knows of a run at one moment."""

    def __init__(
        self,
        steps: Sequence[Steps],
        totals: dict[int, run_totals.RankTotals],
        now: float,
        end: float | None,
        loaders: Mapping[int, Sequence[LoaderTotals]],
    ) -> None:
        self._steps, self._totals, self._now, self._end = steps, totals, now, end
        self.operators: dict[tuple[int, str], dict[str, float]] = {}
        self.flops_per_step: dict[int, float] = {}
        names = ("name", "framework", "framework_version", "scheduler", "scheduler_job", "namespace", "pod")
        header = SimpleNamespace(**dict.fromkeys(names, ""), start=0.0, attempt=0, world_size=1)
        self.ledgers = [SimpleNamespace(header=header, key=run_totals.RunKey("run", 0))]
        self._newest = {
            rank: SimpleNamespace(
                alive=True,
                totals=SimpleNamespace(loaders=its, gauges={}),
                ages=SimpleNamespace(phase="train", phase_began=0.0),
            )
            for rank, its in loaders.items()
        }

    def exception(self) -> None:
        return None

    def ranks(self) -> dict[int, run_totals.RankTotals]:
        return self._totals

    def launch_known(self) -> bool:
        return True

    def exemplars(self, rank: int, phase: str) -> None:
        return None

    def newest(self) -> dict[int, Any]:
        return self._newest

    def presences(self) -> dict[int, Any]:
        return {}

    def times(self) -> tuple[float, float | None, float | None]:
        starts = [steps.starts[self._finished(steps)] - START for steps in self._steps]
        ends = [(steps.starts + steps.durations)[self._finished(steps)] - START for steps in self._steps]
        first = min((float(its.min()) for its in starts if len(its)), default=None)
        last = max((float(its.max()) for its in ends if len(its)), default=None)
        return 0.0, first, last

    def began(self) -> float | None:
        return 0.0 if self._end is None else None

    def last_step(self) -> float | None:
        return self.times()[2] if self._end is None else None

    def end(self) -> float | None:
        return self._end

    def _finished(self, steps: Steps) -> Any:
        return _ended_until(steps, self._now)


class _Counted:
    """The totals of ranks, to which each scrape adds the steps that have ended since the one before."""

    def __init__(self, steps: Sequence[Steps]) -> None:
        self._rest = [(each, np.ones(len(each), np.bool_)) for each in steps]
        self._totals: dict[int, run_totals.RankTotals] = {}

    def until(self, now: float) -> dict[int, run_totals.RankTotals]:
        for steps, is_left in self._rest:
            totals = self._totals.setdefault(steps.rank, run_totals.RankTotals())
            for row in np.flatnonzero(is_left & _ended_until(steps, now)):
                _count(totals, steps, int(row))
                is_left[row] = False
        return self._totals


def _ended_until(steps: Steps, now: float) -> Any:
    """Returns (n,) whether each step has ended at `now`, in seconds since the first scrape."""
    return steps.starts + steps.durations - START <= now


def _count(totals: run_totals.RankTotals, steps: Steps, row: int) -> None:
    phase, took = PHASES[steps.phases[row]], float(steps.durations[row])
    totals.phase_seconds[phase] = totals.phase_seconds.get(phase, 0.0) + took
    counts = [0] * (len(STEP_BOUNDS) + 1)
    counts[bisect_left(STEP_BOUNDS, took)] = 1
    totals.steps.setdefault(phase, run_totals.Histogram([0] * len(counts))).add(counts, took)
    totals.squared_seconds[phase] = totals.squared_seconds.get(phase, 0.0) + took**2
    if phase == "train":
        own = max(0.0, took - float(steps.components[row, COMPONENTS.index("communication")]))
        totals.own_seconds += own
        totals.own_squared_seconds += own**2
    for component, seconds in zip(COMPONENTS, steps.components[row].tolist(), strict=True):
        totals.component_seconds[component] = totals.component_seconds.get(component, 0.0) + seconds
