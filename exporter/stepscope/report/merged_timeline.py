"""The merged timeline of a run: one trace with the steps, operators, samples and findings of all ranks.

Steps, samples and profile windows have the clock of their node. If several nodes have windows, their clocks
are aligned by the collectives that ranks leave together (measurements/arrivals.py).

The file is bounded: of the operators, the longest are kept; neighbouring steps and samples are joined.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from stepscope.common.errors import UserError
from stepscope.common.whole_file import replacing
from stepscope.common.words import capitalised, count, duration, number
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.problems import problems_of, small_problems
from stepscope.exporter.processes.cgroup import RESOURCES
from stepscope.measurements.arrivals import clocks_ahead
from stepscope.report.shares import NAMES
from stepscope.report.trace_file import TraceFile, Track
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    Floats,
    NodeSamples,
    RunFacts,
    Source,
    Steps,
    Times,
    gpu_labels,
)
from stepscope.runs.traces.events import MICRO, Trace, traces_of
from stepscope.runs.traces.source import place_of_trace

NAME = "timeline.json.gz"  # of a recording's own
# Events of the whole file: about 100 bytes each before compression, 5 to 15 after it.
MOST_STEPS, MOST_READINGS, MOST_OPERATORS = 40_000, 200_000, 600_000
UTILIZATION = "(%)"  # of a GPU
READINGS_OF_NODE, READINGS_OF_GPU = 6 + len(RESOURCES), 3


KINDS = FINDINGS, STEPS, SAMPLES, OPERATORS = "findings", "steps", "samples", "operators"


@dataclass(frozen=True)
class Chosen:
    """The part of a run that its timeline has; by default everything."""

    between: tuple[float, float] = (-inf, inf)  # seconds since the epoch
    kinds: Collection[str] = KINDS
    gpu_below: float | None = None  # a utilisation: also when each GPU was below it


EVERYTHING = Chosen()


@dataclass
class Written:
    """The counts of a timeline, and notes on what it leaves out."""

    steps: int = 0
    operators: int = 0
    notes: list[str] = field(default_factory=list)  # sentences


def write_timeline_file(
    out: Path, analysis: Analysis, source: Source, chosen: Chosen = EVERYTHING
) -> Written:
    """Replaces the file `out` by the timeline, as `write_timeline`. Raises UserError."""
    try:
        with replacing(out) as file:
            return write_timeline(file, analysis, source, chosen)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another file with -o") from error


def write_timeline(
    file: BinaryIO, analysis: Analysis, source: Source, chosen: Chosen = EVERYTHING
) -> Written:
    """Writes the timeline of a run that was evaluated; `source` is the same run, unread.

    Raises UserError if there is nothing with a date in it, and OSError.
    """
    start, end = analysis.date, analysis.last_seen
    if start is None or end is None:
        raise UserError(f"{analysis.name} has no dates: nothing in it can be aligned")
    written = Written()
    chunks = source.read()
    begun = list(islice(chunks, 1))  # then the clocks of nodes that were recorded apart are known
    traces = source.traces()
    has = chosen.kinds
    files = list(traces.trace_files()) if traces is not None and OPERATORS in has else []
    out = TraceFile(file, start, chosen.between)
    findings = out.process("Findings") if FINDINGS in has or chosen.gpu_below is not None else 0
    clocks = _Clocks(traces if len(files) > 1 else None, source, analysis, written)
    if FINDINGS in has:
        _add_findings(out, findings, analysis, clocks, start, end)
    ranks = _Ranks(out, clocks, _resolution(analysis, end - start, written))
    samples = _Samples(analysis, start, end, written)
    for chunk in chain(begun, chunks):
        if isinstance(chunk, NodeSamples):
            samples.add(chunk)
        elif STEPS in has:
            ranks.add_steps(chunk)
            written.steps += len(chunk)
    facts = source.facts
    if STEPS in has:
        ranks.add_stays(facts)
    if FINDINGS in has:
        track = out.track(findings, "Not recorded")
        spans = [(gap.start or start, gap.end or end, gap) for gap in facts.gaps]
        for begin, until, gap in sorted(spans, key=lambda span: span[:2]):
            track.add(f"{gap.what}: {gap.reason}", begin, max(begin, until), {"node": gap.node})
    if SAMPLES in has:
        samples.write(out, clocks, facts)
    if chosen.gpu_below is not None:
        samples.write_low(out, findings, clocks, facts, chosen.gpu_below)
    for path, ahead in files:
        try:
            for trace in traces_of(path):
                written.operators += ranks.add_operators(trace, ahead, MOST_OPERATORS // len(files), facts)
        except UserError as error:
            written.notes.append(f"{error}.")
    total, most = ranks.operators_seen, written.operators
    if most < total:
        written.notes.append(f"It has the {number(most)} longest of {number(total)} operators and kernels.")
    out.close({"run": analysis.run, "start": start, "notes": written.notes})
    return written


class _Clocks:
    """How far the clock of each node is ahead of the first one's, in seconds."""

    def __init__(self, traces: Source | None, source: Source, analysis: Analysis, written: Written) -> None:
        self.ahead: dict[str, float] = {}
        if traces is None or len(analysis.nodes) < 2:
            return
        for _ in traces.read():
            pass
        by_node: dict[str, list[float]] = {}
        nodes = {(window.rank): window.node for window in source.facts.windows}
        for rank, ahead in clocks_ahead(traces.facts.traces).items():
            by_node.setdefault(nodes.get(rank, ""), []).append(ahead)
        known = {node: median(values) for node, values in by_node.items() if node}
        first = next((known[node] for node in analysis.nodes if node in known), 0.0)
        self.ahead = {node: ahead - first for node, ahead in known.items()}
        if rest := [node for node in analysis.nodes if node not in known]:
            written.notes.append(
                f"No collective aligns the clocks of {count(len(rest), 'node')}: these have their own clock."
            )

    def of(self, node: str) -> float:
        return self.ahead.get(node, 0.0)


# -- findings ------------------------------------------------------------------------------------------


def _add_findings(
    out: TraceFile, process: int, analysis: Analysis, clocks: _Clocks, start: float, end: float
) -> None:
    """Adds a row per rule that found something, at times or over the whole run."""
    problems = [*problems_of(analysis), *small_problems(analysis)]
    found = [rule for problem in problems for rule in (problem.rule, *problem.also)]
    held = [rule for rule in analysis.rules if rule.bands]
    for rule in {rule.rule: rule for rule in (*held, *found)}.values():
        track = out.track(process, rule.rule)
        about = {"finding": rule.finding, "recommendation": rule.recommendation}
        for said, begin, until in _spans(rule, clocks) or [("whole run", start, end)]:
            track.add(f"{rule.rule}: {said}" if said else rule.rule, begin, until, about)


def _spans(rule: RuleResult, clocks: _Clocks) -> list[tuple[str, float, float]]:
    """Returns when a rule held: words, start and end."""
    return [
        (
            " ".join(word for word in (band.node, band.subject, band.words) if word),
            band.start - clocks.of(band.node),
            band.end - clocks.of(band.node),
        )
        for band in rule.bands
    ]


# -- ranks ---------------------------------------------------------------------------------------------


def _resolution(analysis: Analysis, seconds: float, written: Written) -> float:
    """Returns the seconds in which the steps of a rank become one slice; 0: each step has its own."""
    steps = sum(row.count for row in analysis.steps)
    if steps <= MOST_STEPS:
        return 0.0
    resolution = seconds * max(analysis.ranks, 1) / MOST_STEPS
    written.notes.append(
        f"It joins the steps of {duration(resolution)} into one slice, but not those of profile windows: the "
        f"run has {number(steps)} steps."
    )
    return resolution


class _Ranks:
    """The processes of the ranks: rows for steps, their parts, long stays and operators."""

    def __init__(self, out: TraceFile, clocks: _Clocks, resolution: float) -> None:
        self.operators_seen = 0
        self._out, self._clocks, self._resolution = out, clocks, resolution
        self._processes: dict[tuple[str, int], int] = {}
        self._tracks: dict[tuple[int, str], Track] = {}

    def add_steps(self, steps: Steps) -> None:
        """Adds the steps of one rank, and below each the lengths of its parts."""
        process = self._process(steps.node, steps.rank)
        track = self._track(process, "Steps")
        parts = self._track(process, "Parts of each step (measured length, in a fixed order)")
        ahead = self._clocks.of(steps.node)
        for first, last in self._groups(steps):
            begin, end = float(steps.starts[first]) - ahead, float(steps.ends[last]) - ahead
            name = f"{PHASES[steps.phases[first]]} {steps.numbers[first]}"
            about: dict[str, Any] = {}
            if last > first:
                longest = float(steps.durations[first : last + 1].max())
                name += f" to {steps.numbers[last]}"
                about = {"steps": last - first + 1, "longest step": duration(longest)}
            if steps.profiled[first]:
                about["profiled"] = True
            track.add(name, begin, end, about)
            sums = steps.components[first : last + 1].sum(axis=0).tolist()
            for component, seconds in zip(COMPONENTS, sums, strict=True):
                until = min(begin + seconds, end)
                if until > begin:
                    parts.add(NAMES[component], begin, until)
                begin = until

    def _groups(self, steps: Steps) -> Iterator[tuple[int, int]]:
        """Yields the first and last row of the steps that become one slice: never over a pause."""
        if not self._resolution:
            yield from ((row, row) for row in range(len(steps)))
            return
        rows = np.column_stack((steps.starts // self._resolution, steps.phases, steps.profiled))
        begins = (np.diff(rows, axis=0) != 0).any(axis=1) | steps.profiled[1:]
        begins |= np.diff(steps.starts) - steps.durations[:-1] > self._resolution
        firsts = np.flatnonzero(np.append(True, begins))
        yield from zip(firsts.tolist(), np.append(firsts[1:] - 1, len(steps) - 1).tolist(), strict=True)

    def add_stays(self, facts: RunFacts) -> None:
        """Adds where each rank was for a long time, as samples saw it."""
        for rank in facts.ranks:
            for stay in sorted(rank.stays, key=lambda stay: stay.start):
                ahead = self._clocks.of(rank.node)
                track = self._track(self._process(rank.node, rank.rank), "Long waits, as sampled")
                name = capitalised(NAMES.get(stay.component, stay.component))
                about = {"operation": stay.operation, "state": stay.state}
                track.add(name, stay.start - ahead, stay.end - ahead, about)

    def add_operators(self, trace: Trace, ahead: float, most: int, facts: RunFacts) -> int:
        """Adds the longest operators and kernels of a trace, whose clock is ahead. Returns how many."""
        node, rank = place_of_trace(trace, facts)
        process = self._process(node, rank)
        origin = trace.origin - ahead - self._clocks.of(node)
        self.operators_seen += len(trace)
        lengths = trace.ends - trace.starts
        rows = np.arange(len(trace))
        if len(rows) > most:
            rows = np.sort(np.argpartition(-lengths, most)[:most])
        starts = origin + trace.starts[rows] * MICRO
        ends = origin + trace.ends[rows] * MICRO
        columns = (trace.name_ids[rows], trace.thread_ids[rows], starts, ends)
        for name, thread, start, end in zip(*(column.tolist() for column in columns), strict=True):
            _, number, device = trace.threads[thread]
            lane = f"CPU thread {number}" if device == "cpu" else f"{device} stream {number}"
            self._track(process, lane).add(trace.names[name], start, end)
        return len(rows)

    def _process(self, node: str, rank: int) -> int:
        if (node, rank) not in self._processes:
            self._processes[node, rank] = self._out.process(f"Rank {rank} on {node}")
        return self._processes[node, rank]

    def _track(self, process: int, name: str) -> Track:
        if (process, name) not in self._tracks:
            self._tracks[process, name] = self._out.track(process, name)
        return self._tracks[process, name]


# -- samples -------------------------------------------------------------------------------------------


class _Reading(NamedTuple):
    """A counter of a node, or of one of its GPUs."""

    name: str
    gpu: int | None = None  # its column

    def title(self, facts: RunFacts, node: str) -> str:
        return self.name if self.gpu is None else f"{gpu_labels(facts, node, self.gpu + 1)[-1]} {self.name}"


class _Samples:
    """The readings of nodes and GPUs: one mean per reading and bucket of time."""

    def __init__(self, analysis: Analysis, start: float, end: float, written: Written) -> None:
        readings = sum(READINGS_OF_NODE + READINGS_OF_GPU * len(gpus) for gpus in analysis.gpus.values())
        self._start = start
        self._seconds = max(analysis.interval, (end - start) * max(readings, 1) / MOST_READINGS)
        self._sums: dict[tuple[str, _Reading], _Buckets] = {}
        self._waited: dict[tuple[str, str], tuple[float, float]] = {}
        if self._seconds > analysis.interval:
            written.notes.append(f"A reading is the mean of {duration(self._seconds)}.")

    def add(self, samples: NodeSamples) -> None:
        bucket = ((samples.times - self._start) // self._seconds).astype(np.int64)
        for reading, values in self._readings(samples):
            self._sums.setdefault((samples.node, reading), _Buckets()).add(bucket, values)

    def write(self, out: TraceFile, clocks: _Clocks, facts: RunFacts) -> None:
        processes: dict[str, int] = {}
        for (node, reading), buckets in self._sums.items():
            if node not in processes:
                processes[node] = out.process(f"Node {node}")
            name = reading.title(facts, node)
            for bucket, mean in buckets.means():
                time = self._start + bucket * self._seconds - clocks.of(node)
                out.counter(processes[node], name, time, mean)

    def write_low(self, out: TraceFile, process: int, clocks: _Clocks, facts: RunFacts, below: float) -> None:
        """Adds a row per GPU with the times in which its utilisation was below this ratio."""
        for (node, reading), buckets in self._sums.items():
            if reading.name != UTILIZATION:
                continue
            low = [bucket for bucket, mean in buckets.means() if mean < 100 * below]
            track = out.track(process, f"{node} {reading.title(facts, node)} below {100 * below:.0f} %")
            for _, group in groupby(enumerate(low), lambda each: each[1] - each[0]):  # without a gap
                together = [bucket for _, bucket in group]
                begin, end = (
                    self._start + bucket * self._seconds - clocks.of(node)
                    for bucket in (together[0], together[-1] + 1)
                )
                track.add("Low GPU utilisation", begin, end)

    def _readings(self, samples: NodeSamples) -> Iterator[tuple[_Reading, Floats | Times]]:
        yield _Reading("CPU, mean of cores (%)"), 100 * samples.cpu_mean
        busiest = np.fmax.reduce(samples.cpu, axis=1, initial=np.nan)
        yield _Reading("CPU, busiest core (%)"), 100 * busiest
        yield _Reading("I/O wait, mean of cores (%)"), 100 * samples.io_wait_mean
        yield _Reading("Memory (%)"), 100 * samples.memory
        yield _Reading("Network (MB/s)"), samples.network / 1e6
        yield _Reading("Disk (MB/s)"), samples.disk / 1e6
        for resource in RESOURCES:
            waiting = samples.of_run(f"{resource}_waiting_seconds")
            rate = self._rate(samples, resource, waiting)
            yield _Reading(f"Run waits for {resource} (% of time)"), rate
        for gpu in range(samples.gpu.shape[1]):
            yield _Reading(UTILIZATION, gpu), 100 * samples.gpu[:, gpu]
            yield _Reading("memory (%)", gpu), 100 * samples.gpu_memory[:, gpu]
            yield _Reading("power (W)", gpu), samples.gpu_power_watts[:, gpu]

    def _rate(self, samples: NodeSamples, resource: str, total: Times) -> Times:
        """Returns the gain of a total per second, in percent; NaN if it restarted."""
        key = samples.node, resource
        time, value = self._waited.get(key, (np.nan, np.nan))
        gain = np.diff(total, prepend=value)
        self._waited[key] = float(samples.times[-1]), float(total[-1])
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = 100 * gain / np.diff(samples.times, prepend=time)
        return np.where(gain < 0, np.nan, rate)


class _Buckets:
    """The sum and the number of the values of one reading in each bucket that has some."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, int]] = {}

    def add(self, bucket: np.ndarray[Any, Any], values: Floats | Times) -> None:
        known = np.isfinite(values) & (bucket >= 0)
        buckets, places, counts = np.unique(bucket[known], return_inverse=True, return_counts=True)
        sums = np.bincount(places, values[known], len(buckets))
        for each, more, number_of in zip(buckets.tolist(), sums.tolist(), counts.tolist(), strict=True):
            before, earlier = self._found.get(each, (0.0, 0))
            self._found[each] = before + more, earlier + number_of

    def means(self) -> Iterator[tuple[int, float]]:
        """Yields each bucket that has a value, and their mean, in the order of time."""
        for bucket, (total, number_of) in sorted(self._found.items()):
            yield bucket, total / number_of
