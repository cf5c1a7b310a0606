"""A run that Prometheus has scraped, read through its HTTP API."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np

from trainwatch.errors import UserError
from trainwatch.runs.model import NodeSamples, RunFacts, Source, Steps, Times
from trainwatch.runs.prometheus.api import Address, Api, Series, quoted
from trainwatch.runs.prometheus.samples import SampleEstimator
from trainwatch.runs.prometheus.series import OF_NODE, OF_RUN, LastValues, Scrapes
from trainwatch.runs.prometheus.steps import RankSteps, ranks_of

SAMPLES = "trainwatch_samples_total"
CHUNK_SECONDS = 600.0  # of one node are read at a time: about 1 MB, or 3 MB with 192 cores
DAY = 86400.0
LOOKED_THROUGH = 3650 * DAY  # seconds before now in which runs are searched
POINTS = 10_000  # of a query over time; Prometheus refuses more than 11,000
SAME_START = 60.0  # seconds: a rank or node that joined later may change the run's start a little
SAMPLE_INTERVALS = (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)

COUNTED = (
    "trainwatch_(samples_total|(gpu_utilization|gpu_memory|cpu_utilization|io_wait)_samples_(bucket|sum|count)"
    "|gpu_low_samples_total|gpu_starved_samples_total|step_duration_seconds_(bucket|sum|count)"
    "|step_duration_squared_seconds_total|step_component_seconds_total)"
)
READ = (
    "trainwatch_(cpu_utilization_ratio|cpu_io_wait_ratio|memory_used_bytes|memory_total_bytes"
    "|network_(receive|transmit)_bytes_total|disk_(read|written)_bytes_total|sampler_ticks_missed_total"
    "|gpu_(info|temperature_celsius|clock_hertz|throttle_seconds_total|ecc_errors_total|power_watts"
    "|energy_joules_total|xid_errors_total))"
)


@dataclass
class _Node:
    """A target of Prometheus that has scraped the run."""

    target: Mapping[str, str]  # its labels: job, instance, ...
    samples: SampleEstimator
    between: float | None  # seconds between scrapes
    last: LastValues
    ranks: dict[int, RankSteps] = field(default_factory=dict)


class PrometheusRun(Source):
    """The run at `prometheus+http://host:9090?run=NAME&start=TIME&end=TIME`; it is read once.

    A chunk of time of one node is in memory at a time. Raises UserError if the server cannot be reached
    or refuses, and if there is no such run.
    """

    def __init__(self, text: str) -> None:
        address = Address.parse(text)
        self._api = Api(address)
        self._run = self._chosen(address)
        self._selector = f"run={quoted(self._run)}"
        self._start, self._end = self._time(address)
        self._window = f"[{round(self._end - self._start) + 1}s]"
        self._nodes = self._targets(address.url)
        self._chunks = self._everything()

    @property
    def facts(self) -> RunFacts:
        last = [node.last for node in self._nodes]
        starts = [start for values in last if (start := values.moment("start")) is not None]
        ended = [end for values in last if (end := values.moment("end")) is not None]
        return RunFacts(
            name=self._run,
            start=min(starts, default=self._start if last else None),
            end=max(ended) if ended and len(ended) == len(last) else None,
            interval=self._sample_interval,
            samples_missed=sum(node.samples.missed for node in self._nodes),
            versions={name: text for values in last for name, text in values.versions().items()},
            nodes=tuple(node.last.facts(node.samples.cpus, node.samples.gpus) for node in self._nodes),
            ranks=tuple(rank for values in last for rank in values.ranks()),
            unknowns=tuple(self._unknowns()),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields everything, roughly in time order; nothing when called again."""
        return self._chunks

    def _everything(self) -> Iterator[NodeSamples | Steps]:
        start = self._start
        while start < self._end:
            end = min(start + CHUNK_SECONDS, self._end)
            for node in self._nodes:
                yield from self._chunk(node, start, end)
            start = end
        self._api.close()

    def _chunk(self, node: _Node, start: float, end: float) -> Iterator[NodeSamples | Steps]:
        of_run = self._api.samples(self._of(node.target, COUNTED, self._selector), start, end)
        times = [series.times for series in of_run if series.name == SAMPLES]
        if not times:
            return
        scrapes = Scrapes(
            np.unique(np.concatenate(times)),
            [*of_run, *self._api.samples(self._of(node.target, READ), start, end)],
            node.target,
        )
        samples = node.samples.add(scrapes, self._run)
        if samples is not None:
            yield samples
        for rank in ranks_of(scrapes, self._run):
            if rank not in node.ranks:
                first = node.last.moment("first_step")
                node.ranks[rank] = RankSteps(node.samples.node, rank, not node.samples.before, first)
            steps = node.ranks[rank].add(scrapes, self._run)
            if steps is not None:
                yield steps

    def _chosen(self, address: Address) -> str:
        runs = self._api.runs()
        if not runs:
            raise UserError(
                f"{address.url}: has no series of Trainwatch; does it scrape `trainwatch exporter`?"
            )
        if address.run in runs or (address.run is None and len(runs) == 1):
            return address.run or runs[0]
        why = "give a run with ?run=NAME" if address.run is None else f"has no run {address.run}"
        there = f"there {'are' if len(runs) > 1 else 'is'} {', '.join(runs)}"
        raise UserError(f"{address.url}: {why}; {there}")

    def _time(self, address: Address) -> tuple[float, float]:
        """Returns the time of the run's scrapes, to some minutes, within the requested time."""
        now = self._api.now() + 1
        until = now if address.end is None else min(address.end, now)
        since = until - LOOKED_THROUGH if address.start is None else address.start
        for finest in (DAY, CHUNK_SECONDS):  # first the days, then the minutes
            step = max(finest, math.ceil((until - since) / POINTS))
            found = self._api.ranges(
                f"count(last_over_time({SAMPLES}{{{self._selector}}}[{round(step)}s]))",
                *(since, until + step, step),
            )
            if not found:
                raise UserError(f"{address.url}: has no scrape of run {self._run} in that time")
            since = max(since, float(found[0].times[0]) - step)
            until = min(until, float(found[0].times[-1]))
        self._check_it_is_one_run(address, since, until)
        return since, until

    def _check_it_is_one_run(self, address: Address, start: float, end: float) -> None:
        series = f"trainwatch_run_start_time_seconds{{{self._selector}}}[{round(end - start) + 1}s]"
        starts = [
            float(found.values[0])
            for which in ("min", "max")
            for found in self._api.values(f"{which}({which}_over_time({series}))", end)
        ]
        if starts and starts[-1] - starts[0] > SAME_START:
            raise UserError(
                f"{address.url}: more than one run is called {self._run}: they began at "
                f"{' and '.join(map(_utc, starts))}; choose one with &start=TIME and &end=TIME"
            )

    def _targets(self, url: str) -> list[_Node]:
        nodes: dict[str, _Node] = {}
        expression = f"last_over_time({SAMPLES}{{{self._selector}}}{self._window})"
        for series in self._api.values(expression, self._end):
            target = {name: value for name, value in series.labels.items() if name != "run"}
            name = target.get("instance", "node")
            if name in nodes:
                raise UserError(
                    f"{url}: scrapes {name} twice; make its labels job and instance those of one target"
                )
            nodes[name] = self._node(name, target)
        return [nodes[name] for name in sorted(nodes)]

    def _node(self, name: str, target: Mapping[str, str]) -> _Node:
        """Returns a node with its last values; its last scrapes show how often it is scraped and sampled."""
        values: list[Series] = []
        for selector in (self._of(target, OF_RUN, self._selector), self._of(target, OF_NODE)):
            values += self._api.values(f"last_over_time({selector}{self._window})", self._end)
        times, counts = self._last_scrapes(target)
        last = LastValues(name, values, float(times[-1]) if len(times) else self._end)
        samples, between = SampleEstimator(name, 0.5), None
        if len(times) > 1:
            seconds, gained = np.diff(times), np.diff(counts)
            between = float(np.median(seconds))
            if (gained > 0).any():
                took = float(np.median(seconds[gained > 0] / gained[gained > 0]))
                samples.sample_interval = min(SAMPLE_INTERVALS, key=lambda interval: abs(interval - took))
        return _Node(target, samples, between, last)

    def _last_scrapes(self, target: Mapping[str, str]) -> tuple[Times, Times]:
        """Returns the times of a node's last scrapes of the run, and their counts of samples."""
        end = self._end
        while end > self._start:
            found = self._api.samples(self._of(target, SAMPLES, self._selector), end - 2 * CHUNK_SECONDS, end)
            if found:
                return found[0].times, found[0].values
            end -= 2 * CHUNK_SECONDS
        return np.empty(0), np.empty(0)

    def _of(self, target: Mapping[str, str], names: str, *matchers: str) -> str:
        labels = [f"{name}={quoted(value)}" for name, value in sorted(target.items())]
        return f"{{{', '.join([f'__name__=~{quoted(names)}', *labels, *matchers])}}}"

    def _unknowns(self) -> Iterator[str]:
        between = max((node.between for node in self._nodes if node.between is not None), default=15.0)
        yield (
            f"Read from Prometheus, which scraped every {between:g} s: one sample in "
            f"{max(1, round(between / self._sample_interval))}. The exporter counted every sample, so shares "
            "and patience cover all of them, with readings to 2 %; their order between two scrapes is not "
            "known, and cores, temperatures and clocks are known only at the scrapes."
        )
        if any(node.ranks for node in self._nodes):
            yield (
                "Single steps are not in Prometheus: durations come from a histogram whose bounds are a "
                "factor of 1.8 apart, so percentiles and outliers are estimates, and components are spread "
                "evenly."
            )
        yield "Prometheus has no CPU time of loaders' workers: why data comes late is not known."
        yield "The command and its exit status are not in Prometheus."
        for node in self._nodes:
            if node.samples.before:
                yield (
                    f"{node.samples.node}: {node.samples.before} samples before the first stored scrape are "
                    "ignored."
                )

    @property
    def _sample_interval(self) -> float:
        return min((node.samples.sample_interval for node in self._nodes), default=0.5)


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
