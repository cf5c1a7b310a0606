"""A run that Prometheus has scraped, read back by its HTTP API."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np

from trainwatch.errors import UserError
from trainwatch.runs.model import NodeSamples, RunFacts, Source, Steps, Times
from trainwatch.runs.prometheus.address import Address
from trainwatch.runs.prometheus.api import Api, Series, quoted
from trainwatch.runs.prometheus.facts import OF_NODE, OF_RUN, LastValues
from trainwatch.runs.prometheus.scrapes import Scrapes
from trainwatch.runs.prometheus.snapshots import NodeSnapshots
from trainwatch.runs.prometheus.steps import RankSteps, ranks_of

SAMPLES = "trainwatch_samples_total"
CHUNK_SECONDS = 600.0  # of one node are read at a time: about 1 MB, or 3 of a node with 192 cores
DAY = 86400.0
LOOKED_THROUGH = 3650 * DAY  # seconds before now in which a run is looked for
POINTS = 10_000  # of a query over time; Prometheus refuses more than 11,000
SAME_START = 60.0  # seconds: a rank or node that joined later may make the run's start a little other
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
    snapshots: NodeSnapshots
    ranks: dict[int, RankSteps] = field(default_factory=dict)
    last: LastValues | None = None

    @property
    def name(self) -> str:
        return self.snapshots.node


class PrometheusRun(Source):
    """The run at `prometheus+http://host:9090?run=NAME&start=TIME&end=TIME`; it is read once.

    A chunk of time of one node is in memory at a time. Raises UserError where the server cannot be reached
    or refuses, and where there is no such run.
    """

    def __init__(self, text: str, environment: Mapping[str, str] | None = None) -> None:
        address = Address.parse(text, environment)
        self._api = Api(address)
        self._run = self._chosen(address)
        self._selector = f"run={quoted(self._run)}"
        self._start, self._end = self._time(address)
        self._nodes = self._targets(address.url)
        self._between = self._scrape_interval()
        self._read = False
        self._note_last_values()

    @property
    def facts(self) -> RunFacts:
        known = [node.last for node in self._nodes if node.last is not None]
        starts = [start for last in known if (start := last.moment("start")) is not None]
        ends = [last.moment("end") for last in known]
        ended = [end for end in ends if end is not None]
        return RunFacts(
            name=self._run,
            start=min(starts, default=self._start if known else None),
            end=max(ended) if ended and len(ended) == len(ends) else None,
            interval=self._sample_interval,
            samples_missed=sum(node.snapshots.missed for node in self._nodes),
            versions={name: text for last in known for name, text in last.versions().items()},
            nodes=tuple(
                node.last.facts(node.snapshots.cpus, node.snapshots.gpus) for node in self._nodes if node.last
            ),
            ranks=tuple(rank for last in known for rank in last.ranks()),
            unknowns=tuple(self._unknowns()),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Everything, about in the order of time; nothing when called again."""
        if self._read:
            return
        self._read = True
        start = self._start
        while start < self._end:
            end = min(start + CHUNK_SECONDS, self._end)
            for node in self._nodes:
                yield from self._chunk(node, start, end)
            start = end
        self._api.close()

    def _chunk(self, node: _Node, start: float, end: float) -> Iterator[NodeSamples | Steps]:
        of_run = self._api.samples(self._of(node, COUNTED, self._selector), start, end)
        times = [one.times for one in of_run if one.name == SAMPLES]
        if not times:
            return
        scrapes = Scrapes(
            np.unique(np.concatenate(times)),
            [*of_run, *self._api.samples(self._of(node, READ), start, end)],
            node.target,
        )
        samples = node.snapshots.add(scrapes, self._run)
        if samples is not None:
            yield samples
        for rank in ranks_of(scrapes, self._run):
            if rank not in node.ranks:
                first = node.last.moment("first_step") if node.last else None
                node.ranks[rank] = RankSteps(node.name, rank, not node.snapshots.before, first)
            steps = node.ranks[rank].add(scrapes, self._run)
            if steps is not None:
                yield steps

    def _chosen(self, address: Address) -> str:
        runs = self._api.runs()
        if not runs:
            raise UserError(
                f"{address.url}: has no series of Trainwatch; does it scrape `trainwatch exporter`?"
            )
        there = f"there {'are' if len(runs) > 1 else 'is'} {', '.join(runs)}"
        if address.run is None:
            if len(runs) > 1:
                raise UserError(f"{address.url}: give a run with ?run=NAME; {there}")
            return runs[0]
        if address.run not in runs:
            raise UserError(f"{address.url}: has no run {address.run}; {there}")
        return address.run

    def _time(self, address: Address) -> tuple[float, float]:
        """The time of the run's scrapes, to some minutes, and no more of it than was asked for."""
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
        first, last = (
            self._api.values(f"{which}({which}_over_time({series}))", end) for which in ("min", "max")
        )
        if first and last and float(last[0].values[0]) - float(first[0].values[0]) > SAME_START:
            starts = " and ".join(_utc(float(one[0].values[0])) for one in (first, last))
            raise UserError(
                f"{address.url}: more than one run is called {self._run}: they began at {starts}; "
                "choose one with &start=TIME and &end=TIME"
            )

    def _targets(self, url: str) -> list[_Node]:
        expression = f"last_over_time({SAMPLES}{{{self._selector}}}[{round(self._end - self._start) + 1}s])"
        nodes: dict[str, _Node] = {}
        for one in self._api.values(expression, self._end):
            target = {name: value for name, value in one.labels.items() if name != "run"}
            name = target.get("instance", "node")
            if name in nodes:
                raise UserError(
                    f"{url}: scrapes {name} twice; make its labels job and instance those of one target"
                )
            nodes[name] = _Node(target, NodeSnapshots(name, 0.5))
        return [nodes[name] for name in sorted(nodes)]

    def _scrape_interval(self) -> float:
        """Seconds; also notes how often each exporter samples."""
        between = []
        for node in self._nodes:
            times, counts = self._last_scrapes(node)
            if len(times) > 1:
                seconds, samples = np.diff(times), np.diff(counts)
                between.append(float(np.median(seconds)))
                if (samples > 0).any():
                    took = float(np.median(seconds[samples > 0] / samples[samples > 0]))
                    node.snapshots.sample_interval = min(SAMPLE_INTERVALS, key=lambda one: abs(one - took))
        return max(between, default=15.0)

    def _last_scrapes(self, node: _Node) -> tuple[Times, Times]:
        """The times of a node's last scrapes of the run, and the samples that were counted by then."""
        end = self._end
        while end > self._start:
            found = self._api.samples(self._of(node, SAMPLES, self._selector), end - 2 * CHUNK_SECONDS, end)
            if found:
                return found[0].times, found[0].values
            end -= 2 * CHUNK_SECONDS
        return np.empty(0), np.empty(0)

    def _note_last_values(self) -> None:
        window = f"[{round(self._end - self._start) + 1}s]"
        for node in self._nodes:
            series: list[Series] = []
            for selector in (self._of(node, OF_RUN, self._selector), self._of(node, OF_NODE)):
                series += self._api.values(f"last_over_time({selector}{window})", self._end)
            scraped, _ = self._last_scrapes(node)
            node.last = LastValues(node.name, series, float(scraped[-1]) if len(scraped) else self._end)

    def _of(self, node: _Node, names: str, *matchers: str) -> str:
        its = [f"{name}={quoted(value)}" for name, value in sorted(node.target.items())]
        return f"{{{', '.join([f'__name__=~{quoted(names)}', *its, *matchers])}}}"

    def _unknowns(self) -> Iterator[str]:
        one_in = max(1, round(self._between / self._sample_interval))
        yield (
            f"Read from Prometheus, which scraped each {self._between:g} s: one sample in {one_in}. The "
            "exporter counted every sample, so shares and patience are of all of them, with readings to 2 %; "
            "their order between two scrapes is not known, and cores, temperatures and clocks are known "
            "only at the scrapes."
        )
        if any(node.ranks for node in self._nodes):
            yield (
                "Single steps are not in Prometheus: durations are those of a histogram whose bounds are a "
                "factor of 1.8 apart, so percentiles and outliers are estimates, and components are spread "
                "evenly."
            )
        yield "Prometheus has no CPU time of loaders' workers: why data comes late is not known."
        yield "The command and its exit status are not in Prometheus."
        for node in self._nodes:
            if node.snapshots.before:
                yield (
                    f"{node.name}: {node.snapshots.before} samples of before the first scrape that is stored "
                    "are not looked at."
                )

    @property
    def _sample_interval(self) -> float:
        return min((node.snapshots.sample_interval for node in self._nodes), default=0.5)


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
