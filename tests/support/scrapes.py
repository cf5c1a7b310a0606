"""What Prometheus would have scraped of a made-up run: the exporter's own counting and writing."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from trainwatch.collectors import training
from trainwatch.runs.model import COMPONENTS, PHASES, NodeSamples, Steps
from trainwatch.sampling.exposition import Exposition
from trainwatch.sampling.families import Family
from trainwatch.sampling.sample import GpuSample, Sample
from trainwatch.sampling.sample_counters import SampleCounters
from trainwatch.training.layout import STEP_BOUNDS
from trainwatch.training.reader import LoaderTotals

from tests.support.source import INTERVAL, START

SCRAPE_SECONDS = 15
ROWS_A_SCRAPE = round(SCRAPE_SECONDS / INTERVAL)

Series = dict[str, list[float | None]]
_LINE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")


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
    cores = Family("trainwatch_cpu_utilization_ratio", "gauge", "", ("cpu",))

    def scrapes() -> Iterator[Iterable[Family]]:
        row = 0
        for end in range(-lag, len(samples) + 1, rows_a_scrape):
            while row < end:
                counters.count(_sample(samples, row))
                row += 1
            counters.publish()
            cores.publish({(str(cpu),): 0.5 for cpu in range(samples.cpu.shape[1])})
            yield (*counters.families, cores)

    return written(scrapes(), instance or samples.node)


def scraped_steps(
    steps: Sequence[Steps],
    scrapes: int,
    run: str = "run",
    instance: str = "node-a",
    end: float | None = None,
    loaders: Mapping[int, Sequence[LoaderTotals]] | None = None,
) -> Series:
    """The metrics of the ledgers of the ranks of a node, scrape by scrape; `end` of the run in seconds.

    Times in the series are seconds since the first scrape, for that is where promtool's clock begins.
    """
    families = training._Families()

    def all_scrapes() -> Iterator[Iterable[Family]]:
        for number in range(scrapes):
            now = number * SCRAPE_SECONDS
            seen: Any = _Run(steps, now, None if end is None or now < end else end, loaders or {})
            families.publish({run: seen}, 0)
            yield families.all

    return written(all_scrapes(), instance)


def written(scrapes: Iterable[Iterable[Family]], instance: str) -> Series:
    """Series by name and labels, as a Prometheus that scrapes `instance` stores them."""
    exposition = Exposition()
    series: Series = {}
    for number, families in enumerate(scrapes):
        for line in exposition.write(families, "text").decode().splitlines():
            match = _LINE.fullmatch(line)
            if match is None:
                continue
            labels = ",".join(
                filter(None, ('job="trainwatch"', f'instance="{instance}"', match["labels"] or ""))
            )
            values = series.setdefault(f"{match['name']}{{{labels}}}", [])
            values += [None] * (number - len(values))
            values.append(float(match["value"]))
    return series


def only(series: Series, *names: str) -> Series:
    """The series of some metrics: promtool reads no more than a test needs."""
    return {key: values for key, values in series.items() if key.partition("{")[0].startswith(names)}


def _sample(samples: NodeSamples, row: int) -> Sample:
    gpus = {
        str(number): GpuSample(
            utilization=float(samples.gpu[row, number]),
            memory_used_bytes=float(samples.gpu_memory[row, number]),
            memory_total_bytes=1.0,
        )
        for number in range(samples.gpu.shape[1])
        if not np.isnan(samples.gpu[row, number])
    }
    return Sample(
        time=float(samples.times[row]),
        cpus=tuple(map(str, range(samples.cpu.shape[1]))),
        cpu_utilization=samples.cpu[row].tolist(),
        cpu_io_wait=samples.io_wait[row].tolist(),
        gpus=gpus,
    )


class _Run:
    """What the training collector knows of a run at one moment."""

    def __init__(
        self,
        steps: Sequence[Steps],
        now: float,
        end: float | None,
        loaders: Mapping[int, Sequence[LoaderTotals]],
    ) -> None:
        self._steps, self._now, self._end = steps, now, end
        header = SimpleNamespace(framework="", start=0.0, framework_version="", world_size=1)
        self.ledgers = [SimpleNamespace(header=header)]
        self._newest = {
            rank: SimpleNamespace(alive=True, totals=SimpleNamespace(loaders=its))
            for rank, its in loaders.items()
        }

    def ranks(self) -> dict[int, training.RankTotals]:
        totals: dict[int, training.RankTotals] = {}
        for steps in self._steps:
            its = totals.setdefault(steps.rank, training.RankTotals())
            for row in self._finished(steps):
                _count(its, steps, int(row))
        return totals

    def exemplars(self, rank: int, phase: str) -> None:
        return None

    def newest(self) -> dict[int, Any]:
        return self._newest

    def times(self) -> tuple[float, float | None, float | None]:
        starts = [steps.starts[self._finished(steps)] - START for steps in self._steps]
        ends = [(steps.starts + steps.durations)[self._finished(steps)] - START for steps in self._steps]
        first = min((float(its.min()) for its in starts if len(its)), default=None)
        last = max((float(its.max()) for its in ends if len(its)), default=None)
        return 0.0, first, last

    def end(self) -> float | None:
        return self._end

    def _finished(self, steps: Steps) -> Any:
        return np.flatnonzero(steps.starts + steps.durations - START <= self._now)


def _count(totals: training.RankTotals, steps: Steps, row: int) -> None:
    phase, took = PHASES[steps.phases[row]], float(steps.durations[row])
    counts = [0] * (len(STEP_BOUNDS) + 1)
    counts[bisect_left(STEP_BOUNDS, took)] = 1
    totals.steps.setdefault(phase, training.Histogram([0] * len(counts))).add(counts, took)
    totals.squared_seconds[phase] = totals.squared_seconds.get(phase, 0.0) + took**2
    for component, seconds in zip(COMPONENTS, steps.components[row].tolist(), strict=True):
        totals.component_seconds[component] = totals.component_seconds.get(component, 0.0) + seconds
