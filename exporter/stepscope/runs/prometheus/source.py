"""A run that Prometheus has scraped, read through its HTTP API."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from stepscope.common.errors import UserError
from stepscope.exporter.sampling.sample import RUN_QUANTITIES
from stepscope.runs.malformed import naming
from stepscope.runs.model import GPU_READINGS, Gap, NodeSamples, RunFacts, Source, Steps, Times
from stepscope.runs.prometheus.address import Address
from stepscope.runs.prometheus.api import POINTS, Api, Series, newest_of
from stepscope.runs.prometheus.connection import TooMuchError, quoted
from stepscope.runs.prometheus.samples import SampleEstimator
from stepscope.runs.prometheus.series import OF_NODE, OF_RUN, LastValues, Scrapes
from stepscope.runs.prometheus.steps import RankSteps, ranks_of

SAMPLES = "stepscope_samples_total"
CHUNK_SECONDS = 600.0  # of one node are read at a time: about 1 MB, or 3 MB with 192 cores
DAY = 86400.0
LOOKED_THROUGH = 3650 * DAY  # seconds before now in which runs are searched
UNNOTICED = 60.0  # seconds without a scrape that also the rules bridge, and 1.5 scrape intervals
NOT_SCRAPED = "Prometheus has none; the counts after it include that time, but not its course"
SAME_START = 60.0  # seconds: a rank or node that joined later may change the run's start a little
SAMPLE_INTERVALS = (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)

_USE_OF_HOST = [each.column for each in RUN_QUANTITIES.values() if each.help and not each.full_only]
COUNTED = (
    "stepscope_(samples_total|(gpu_utilization|gpu_memory|cpu_utilization|io_wait)_samples(_(bucket|sum|count))?"
    "|gpu_low_samples_total|gpu_starved_samples_total|step_duration_seconds(_(bucket|sum|count))?"
    "|step_duration_squared_seconds_total|step_component_seconds_total"
    f"|run_cpus|run_pressure_waiting_seconds_total|{'|'.join(_USE_OF_HOST)})"
)
READ = (
    "stepscope_(cpu_utilization_ratio|cpu_io_wait_ratio|memory_used_bytes|memory_total_bytes"
    "|network_(receive|transmit)_bytes_total|disk_(read_bytes|written_bytes|operations)_total|sampler_ticks_missed_total"
    "|gpu_(info|throttle_seconds_total|energy_joules_total|up))|"
) + "|".join(reading.metric for reading in GPU_READINGS.values() if reading.help)


@dataclass
class _Node:
    """A target of Prometheus that has scraped the run."""

    target: Mapping[str, str]  # its labels: job, instance, ...
    samples: SampleEstimator
    between: float | None  # seconds between scrapes
    last: LastValues
    ranks: dict[int, RankSteps] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    read_until: float | None = None
    read_anything: bool = False

    def read(self, times: Times) -> None:
        """Notes the gaps between the last scrape and the next ones."""
        longest = UNNOTICED + 1.5 * (self.between or 0.0)
        for time in times.tolist():
            if self.read_until is not None and time - self.read_until > longest:
                self._miss(NOT_SCRAPED, self.read_until, time)
            self.read_until, self.read_anything = time, True

    def refused(self, reason: str, start: float, end: float) -> None:
        """Notes that the server does not answer for a part of the time."""
        self._miss(reason, start, end)
        self.read_until = end

    def _miss(self, reason: str, start: float, end: float) -> None:
        self.gaps.append(Gap("scrapes", reason, self.samples.node, start, end))


class PrometheusRun(Source):
    """The run at `prometheus+http://host:9090?run=NAME&start=TIME&end=TIME`; it is read once.

    A chunk of time of one node is in memory at a time. Raises UserError if the server cannot be reached
    or refuses, and if there is no such run.
    """

    def __init__(self, text: str) -> None:
        address = Address.parse(text)
        self.earlier = ""  # a line about other launches of the name, if a name was given
        self._url = address.access.url
        self._api = Api(address.access)
        with self._trusting_nothing():
            self._run = self._chosen(address)
            self._selector = f"run={quoted(self._run)}"
            if address.cluster is not None:
                self._selector += f", cluster={quoted(address.cluster)}"
            self._start, self._end = self._time(address)
            self._nodes = self._targets()
        self._refusal: TooMuchError | None = None
        self._chunks = self._everything()

    def _trusting_nothing(self) -> AbstractContextManager[None]:
        return naming(self._url, "answers of Prometheus", "is it the address of Prometheus?")

    @property
    def facts(self) -> RunFacts:
        with self._trusting_nothing():
            return self._facts()

    def _facts(self) -> RunFacts:
        last = [node.last for node in self._nodes]
        starts = [start for values in last if (start := values.moment("start")) is not None]
        ended = [end for values in last if (end := values.moment("end")) is not None]
        return RunFacts(
            name=next(filter(None, (values.name for values in last)), self._run),
            run=self._run,
            start=min(starts, default=self._start if last else None),
            end=max(ended) if ended and len(ended) == len(last) else None,
            interval=self._sample_interval,
            gaps=tuple(
                Gap("samples", "the sampler was late", node.samples.node, count=node.samples.missed)
                for node in self._nodes
                if node.samples.missed
            )
            + tuple(gap for node in self._nodes for gap in node.gaps),
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
        with self._trusting_nothing():
            while start < self._end:
                end = min(start + CHUNK_SECONDS, self._end)
                for node in self._nodes:
                    try:
                        yield from self._chunk(node, start, end)
                    except TooMuchError as error:
                        self._refusal = error
                        node.refused(str(error).removeprefix(f"{self._url}: "), start, end)
                start = end
        self._api.close()
        if self._refusal is not None and not any(node.read_anything for node in self._nodes):
            raise self._refusal

    def _chunk(self, node: _Node, start: float, end: float) -> Iterator[NodeSamples | Steps]:
        of_run = self._api.samples(self._of(node.target, COUNTED, self._selector), start, end)
        times = [series.times for series in of_run if series.name == SAMPLES]
        if not times:
            return
        of_node = self._api.samples(self._of(node.target, READ), start, end)
        scrapes = Scrapes(
            np.unique(np.concatenate(times)),
            [*of_run, *of_node],
            node.target,
        )
        node.read(scrapes.times)
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
        now = self._api.now()
        runs = self._api.runs(now - LOOKED_THROUGH, now)
        if not runs:
            raise UserError(f"{self._url}: has no series of Stepscope; does it scrape `stepscope exporter`?")
        if address.run in runs or (address.run is None and len(runs) == 1):
            return address.run or runs[0]
        if address.run is not None:
            matchers = "" if address.cluster is None else f", cluster={quoted(address.cluster)}"
            if starts := self._api.launches(address.run, *self._requested(address), matchers):
                run, self.earlier = newest_of(address.run, starts)
                return run
        why = "give a run with ?run=NAME" if address.run is None else f"has no run {address.run}"
        there = f"there {'are' if len(runs) > 1 else 'is'} {', '.join(runs)}"
        raise UserError(f"{self._url}: {why}; {there}")

    def _requested(self, address: Address) -> tuple[float, float]:
        now = self._api.now() + 1
        until = now if address.end is None else min(address.end, now)
        return until - LOOKED_THROUGH if address.start is None else address.start, until

    def _time(self, address: Address) -> tuple[float, float]:
        """Returns the time of the run's scrapes, to some minutes, within the requested time."""
        since, until = self._requested(address)
        for finest in (DAY, CHUNK_SECONDS):  # first the days, then the minutes
            step = max(finest, math.ceil((until - since) / POINTS))
            found = self._api.ranges(
                f"count(last_over_time({SAMPLES}{{{self._selector}}}[{round(step)}s]))",
                *(since, until + step, step),
            )
            if not found:
                raise UserError(f"{self._url}: has no scrape of run {self._run} in that time")
            since = max(since, float(found[0].times[0]) - step)
            until = min(until, float(found[0].times[-1]))
        self._check_it_is_one_run(address, since, until)
        return since, until

    def _check_it_is_one_run(self, address: Address, start: float, end: float) -> None:
        series = f"stepscope_run_start_time_seconds{{{self._selector}}}"
        lows = [found.values[0] for found in self._api.over_time("min", series, start, end)]
        highs = [found.values[0] for found in self._api.over_time("max", series, start, end)]
        starts = [float(min(lows)), float(max(highs))] if lows and highs else []
        if starts and starts[1] - starts[0] > SAME_START:
            raise UserError(
                f"{self._url}: more than one run is called {self._run}: they began at "
                f"{' and '.join(map(_utc, starts))}; choose one with &start=TIME and &end=TIME"
            )

    def _targets(self) -> list[_Node]:
        nodes: dict[str, _Node] = {}
        samples = f"{SAMPLES}{{{self._selector}}}"
        for series in self._api.over_time("last", samples, self._start, self._end):
            target = {name: value for name, value in series.labels.items() if name != "run"}
            name = target.get("instance", "node")
            if name in nodes:
                raise UserError(
                    f"{self._url}: scrapes {name} twice; choose one with &cluster=NAME, or give each target "
                    "its own instance"
                )
            nodes[name] = self._node(name, target)
            if nodes[name].last.is_lean:
                raise UserError(
                    f"{self._url}: {name} publishes too few metrics for a report (--metrics.profile=lean);"
                    " read a recording, or use the default profile"
                )
        return [nodes[name] for name in sorted(nodes)]

    def _node(self, name: str, target: Mapping[str, str]) -> _Node:
        """Returns a node with its last values; its last scrapes show how often it is scraped and sampled."""
        values: list[Series] = []
        for selector in (self._of(target, OF_RUN, self._selector), self._of(target, OF_NODE)):
            values += self._api.over_time("last", selector, self._start, self._end)
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
        if any(node.last.launch_unknown for node in self._nodes):
            yield (
                "Another launch of this run would look the same, because its nodes share no unique text: set "
                "STEPSCOPE_LAUNCH."
            )
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
        for warning in self._api.warnings:
            yield f"The server's answers may be incomplete. It warns: {warning.rstrip('.')}."
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
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
