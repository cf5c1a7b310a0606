"""Traces of profilers as a source of steps, operators, kernels, data loading and collectives."""

import re
import zlib
from codecs import BOM_UTF8
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from stepscope.common.errors import UserError
from stepscope.common.words import listing
from stepscope.runs.debugger.files import natural
from stepscope.runs.malformed import is_date
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    ActivityTime,
    CollectiveTime,
    DeviceMemory,
    DeviceTime,
    Gap,
    GpuFacts,
    NodeFacts,
    NodeSamples,
    OperatorTime,
    PassTime,
    Progress,
    RankFacts,
    RankTrace,
    RunFacts,
    Source,
    Span,
    StepPicture,
    Steps,
    TimedEvent,
    TracedSteps,
    TransferTime,
    facts_of_steps,
    summed_transfers,
)
from stepscope.runs.traces.arrivals import joined
from stepscope.runs.traces.capture import Capture
from stepscope.runs.traces.events import COPY, KERNEL, MICRO, OPERATOR, Trace, traces_of
from stepscope.runs.traces.json_stream import COMPRESSED, beginning
from stepscope.runs.traces.moments import place_of, total_memory
from stepscope.runs.traces.nsight import is_export
from stepscope.runs.traces.reading import read_files
from stepscope.runs.traces.trace import NamedTime, StepTime, TraceSummary, flops_per_step, total_of

ENDINGS = (".json", ".json.gz", ".sqlite")
GZIP = 16 + zlib.MAX_WBITS  # of zlib, which reads what a file has before it is cut off
COPY_OF_JAX = "perfetto_trace.json.gz"  # of the trace in the same folder
BEGINNING = 1 << 20  # bytes, in which a trace's events begin
EVENTS = {OPERATOR: "operator", KERNEL: "kernel", COPY: "copy"}  # that `events` yields


def trace_files(place: Path) -> list[Path]:
    """Returns the traces in a directory and its folders, or the file itself. Skips pipes and the like.

    A damaged file counts if its path differs from that of a trace in numbers only: it may be another rank's.
    They are in the order of the numbers in their names: rank10.json comes after rank2.json.
    """
    if place.is_file():
        return [place]
    files = [path for path in place.rglob("*") if path.name.endswith(ENDINGS) and path.is_file()]
    alike = {_without_numbers(path) for path in files if is_trace(path)}
    found = [path for path in files if _without_numbers(path) in alike]
    found.sort(key=lambda path: [*map(natural, path.parts)])
    originals = {path.parent for path in found if path.name != COPY_OF_JAX}
    return [path for path in found if path.name != COPY_OF_JAX or path.parent not in originals]


def _without_numbers(path: Path) -> str:
    return re.sub(r"\d+", "", str(path))


def is_trace(path: Path) -> bool:
    """Returns whether a file is a trace by its beginning, or by a name that only traces have."""
    if path.name.removesuffix(".gz").endswith(".pt.trace.json"):
        return True
    text = beginning(path, BEGINNING)
    if text[:2] == COMPRESSED:  # it may be cut off
        with suppress(zlib.error):
            text = zlib.decompressobj(wbits=GZIP).decompress(text, BEGINNING)
    text = text.removeprefix(BOM_UTF8)
    array = text.lstrip()[:1] == b"[" and b'"ph"' in text
    return array or b'"traceEvents"' in text or is_export(path)


class KinetoTraces(Source):
    """One trace per rank, or several consecutive ones.

    Raises UserError if there is no trace, and while reading if none can be read.
    """

    judged_whole = True

    def __init__(self, place: Path, progress: Progress | None = None) -> None:
        self._place = place
        self._paths = trace_files(place)
        if not self._paths:
            raise UserError(f"{place} holds no trace (*.json or *.json.gz with traceEvents)")
        self._progress = progress
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._without_rank: list[str] = []
        self._doubtful: list[str] = []  # sentences on captures of the same rank and time
        self._unread: list[UserError] = []
        self._chunks = self._everything()

    @property
    def summaries(self) -> list[TraceSummary]:
        """Returns the summary of each trace that was read."""
        return [summary for rank in self._ranks.values() for summary in rank.summaries]

    @property
    def facts(self) -> RunFacts:
        ranks = [self._ranks[key] for key in sorted(self._ranks)]
        gpus: dict[str, dict[int, str]] = {}
        for rank in ranks:
            gpus.setdefault(rank.node, {}).update(rank.devices)
        return RunFacts(
            name=self._place.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace"),
            start=min((rank.start for rank in ranks), default=None),
            end=max((rank.end for rank in ranks), default=None),
            nodes=tuple(
                NodeFacts(node, (), tuple(GpuFacts(str(i), name) for i, name in sorted(gpus[node].items())))
                for node in sorted(gpus)
            ),
            ranks=tuple(rank.facts(len(ranks)) for rank in ranks),
            operators=tuple(item for rank in ranks for item in rank.operators()),
            collectives=tuple(item for rank in ranks for item in rank.collectives()),
            transfers=tuple(item for rank in ranks for item in rank.transfers()),
            activities=tuple(item for rank in ranks for item in rank.activities()),
            traces=tuple(joined(rank.traces) for rank in ranks if rank.traces),
            captures=tuple(span for rank in ranks for span in rank.spans),
            devices=tuple(item for rank in ranks for item in rank.device_times()),
            memory=tuple(item for rank in ranks for item in rank.memory()),
            passes=tuple(item for rank in ranks for item in rank.passes()),
            pictures=tuple(item for rank in ranks for item in rank.pictures()),
            first_and_last=tuple(item for rank in ranks for item in rank.first_and_last()),
            unrecognised=sum(rank.unrecognised for rank in ranks),
            damaged=tuple(sentence for rank in ranks for sentence in rank.damaged),
            unknowns=(
                "A trace contains only its own steps: no sample of the host or the GPUs was taken.",
                *self._numbered(),
                *self._doubtful,
                *dict.fromkeys(sentence for rank in ranks for sentence in rank.unknowns),
            ),
            gaps=tuple(Gap("file", str(error)) for error in self._unread),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields the steps of each rank; nothing when called again."""
        return self._chunks

    def trace_files(self) -> Iterator[tuple[Path, float]]:
        return ((path, 0.0) for path in self._paths)

    def events(self, facts: RunFacts | None = None) -> Iterator[TimedEvent]:
        """Yields operators, kernels, copies and collectives; `facts` are those of the traces' run."""
        for path in self._paths:
            for trace in traces_of(path):
                yield from _events(trace, *place_of_trace(trace, facts or self.facts))

    def _everything(self) -> Iterator[Steps]:
        found = read_files(self._paths, self._progress)
        self._unread += [error for error in found if isinstance(error, UserError)]
        self._add(
            [capture for captures in found if not isinstance(captures, UserError) for capture in captures]
        )
        if not self._ranks:
            raise self._unread[0]
        yield from (steps for each in self._ranks.values() if len(steps := each.steps()))

    def _add(self, captures: Sequence[Capture]) -> None:
        """Adds what all files contain; a rank of which two processes say that they have it last."""
        later = []
        for capture in sorted(captures, key=lambda each: each.rank is None):  # a known rank keeps its number
            # A process without a rank keeps the one that it got before.
            known = (each.rank for each in self._ranks.values() if (each.node, each.pid) == capture.process)
            rank = capture.rank if capture.rank is not None else next(known, self._next_rank())
            of_rank = chain(*(each.captures for each in self._ranks.values() if each.rank == rank))
            before = next((each for each in of_rank if capture.covers(each)), None)
            if before is None:
                self._add_to(rank, capture)
            elif capture.process == before.process and (
                capture.rank is not None or capture.is_copy_of(before)
            ):
                self._doubtful.append(
                    f"{capture.file} covers the time of {before.file} in the same process: it counts nowhere."
                )
            else:
                later.append(capture)
        for capture in later:
            rank = self._next_rank()
            if capture.rank is not None:
                self._doubtful.append(
                    f"{capture.file} is not the only process with rank {capture.rank}: it is numbered {rank}."
                )
            self._add_to(rank, capture)

    def _add_to(self, rank: int, capture: Capture) -> None:
        key = (capture.host, rank)
        if capture.rank is None:
            self._without_rank.append(f"{capture.file} (rank {rank})")
        self._ranks.setdefault(key, _Rank(*key, capture.pid)).add(capture)

    def _numbered(self) -> list[str]:
        """Says which files do not contain their rank, if there are several ranks."""
        if len(self._ranks) < 2 or not self._without_rank:
            return []
        return [f"No rank is in {listing(self._without_rank)}: numbered in the order of the files."]

    def _next_rank(self) -> int:
        return max((rank for _, rank in self._ranks), default=-1) + 1


def place_of_trace(trace: Trace, facts: RunFacts) -> tuple[str, int]:
    """Returns the node and the rank of a trace: those of its window, or what the trace says."""
    for window in facts.windows:
        if window.trace.endswith(f"/{trace.path.name}"):
            return window.node, window.rank
    rank = trace.rank or 0
    nodes = (each.node for each in facts.ranks if each.rank == rank)
    return next(nodes, trace.host or "unknown"), rank


def _events(trace: Trace, node: str, rank: int) -> Iterator[TimedEvent]:
    rows = np.flatnonzero(trace.of(*EVENTS) | trace.is_collective)
    took = (trace.ends - trace.starts)[rows] * MICRO
    columns = (rows, trace.name_ids[rows], trace.thread_ids[rows], trace.kinds[rows], trace.starts[rows])
    for row, name, thread, kind, start, seconds in zip(
        *(each.tolist() for each in (*columns, took)), strict=True
    ):
        named = "collective" if trace.is_collective[row] else EVENTS[kind]
        device, begin = trace.threads[thread].device, trace.origin + start * MICRO
        yield TimedEvent(node, rank, device, named, trace.names[name], begin, seconds)


class _Rank:
    """All traces of one rank."""

    def __init__(self, node: str, rank: int, pid: int) -> None:
        self.node, self.rank, self.pid = node, rank, pid
        self.framework = ""
        self.summaries: list[TraceSummary] = []
        self.traces: list[RankTrace] = []
        self.devices: dict[int, str] = {}
        self.world_size: int | None = None
        self.start, self.end = np.inf, -np.inf
        self.unknowns: list[str] = []
        self.damaged: list[str] = []
        self.unrecognised = 0
        self.captures: list[Capture] = []
        self.spans: list[Span] = []  # of captures, each without a date after the one before

    def add(self, capture: Capture) -> None:
        self.captures.append(capture)
        if self.spans and not is_date(capture.start):  # its clock starts at 0, as that of the one before
            capture = capture.later(self.end - capture.start)
        self.summaries.append(capture.summary)
        self.framework = "pytorch" if capture.writer == "pytorch" else ""  # the others do not name theirs
        if capture.arrivals is not None:
            self.traces.append(replace(capture.arrivals, rank=self.rank))
        self.devices.update(capture.devices)
        self.world_size = capture.world_size or self.world_size
        self.start = min(self.start, capture.start)
        self.end = max(self.end, capture.end)
        self.spans.append(Span(capture.start, capture.end, self.node, self.rank))
        self.damaged += capture.damaged
        self.unknowns += (*capture.damaged, *capture.unknowns)
        self.unrecognised += capture.unrecognised

    def steps(self) -> Steps:
        marked = [step for summary in self.summaries if summary.marked for step in summary.steps]
        marked.sort(key=lambda step: step.start)
        components = [[step.components.get(name, 0.0) for name in COMPONENTS] for step in marked]
        return Steps(
            node=self.node,
            rank=self.rank,
            numbers=np.array([step.number for step in marked], np.int64),
            phases=np.full(len(marked), PHASES.index("train"), np.uint8),
            starts=np.array([step.start for step in marked], float),
            durations=np.array([step.seconds for step in marked], float),
            components=np.array(components, float).reshape(-1, len(COMPONENTS)),
        )

    def facts(self, ranks: int) -> RankFacts:
        known = facts_of_steps(self.steps())
        marked = [summary.steps for summary in self.summaries if summary.marked]
        known["phase_seconds"]["other"] = sum(map(_between_steps, marked))
        return RankFacts(
            node=self.node,
            rank=self.rank,
            pid=self.pid,
            start=self.start,
            end=self.end,
            framework=self.framework,
            world_size=self.world_size or ranks,
            flops_per_step=flops_per_step(self.summaries),
            **known,
        )

    def operators(self) -> Iterator[OperatorTime]:
        """Yields operators on the CPU and kernels on the GPUs."""
        for found in self._summed(_operators):
            of_host = self.summaries if found.device == "cpu" else ()
            place = place_of(summary.places.get(found.name, Counter()) for summary in of_host)
            shapes = Counter[str]()
            for summary in of_host:
                shapes.update(summary.shapes.get(found.name, {}))
            most = max(shapes, key=shapes.__getitem__, default="")
            yield OperatorTime(self.node, self.rank, *found, place=place, shapes=most)

    def pictures(self) -> Iterator[StepPicture]:
        """Yields a step of the first trace."""
        known = (each.picture for each in self.summaries if each.picture is not None)
        for picture in islice(known, 1):
            yield replace(picture, node=self.node, rank=self.rank)

    def first_and_last(self) -> Iterator[tuple[TracedSteps, TracedSteps]]:
        """Yields the first and the last trace, if there are several, of those that did not record memory."""
        alike = [each for each in self.summaries if each.marked and each.steps and not each.memory]
        if len(alike) > 1:
            in_order = sorted(alike, key=lambda summary: summary.steps[0].start)
            yield self._traced(in_order[0]), self._traced(in_order[-1])

    def _traced(self, summary: TraceSummary) -> TracedSteps:
        operators = tuple(OperatorTime(self.node, self.rank, *found) for found in _operators(summary))
        return TracedSteps(self.rank, len(summary.steps), operators)

    def collectives(self) -> Iterator[CollectiveTime]:
        for _, name, calls, seconds, exposed in self._summed(lambda summary: summary.collectives):
            yield CollectiveTime(self.node, self.rank, name, calls, seconds, exposed)

    def transfers(self) -> Iterator[TransferTime]:
        """Yields the collectives by the data that they move."""
        for found in summed_transfers(chain(*(summary.transfers for summary in self.summaries))):
            yield replace(found, node=self.node, rank=self.rank)

    def device_times(self) -> Iterator[DeviceTime]:
        """Yields each device of the rank: the sum of its captures."""
        captures: dict[str, list[DeviceTime]] = {}
        for summary in self.summaries:
            for device in summary.devices:
                captures.setdefault(device.device, []).append(device)
        known = [len(summary.steps) for summary in self.summaries if summary.marked]
        for _, found in sorted(captures.items()):
            steps = sum(known) if len(known) == len(self.summaries) else None
            yield replace(total_of(found), node=self.node, rank=self.rank, steps=steps)

    def memory(self) -> Iterator[DeviceMemory]:
        """Yields what operators allocated on each device."""
        captures: dict[str, list[DeviceMemory]] = {}
        for device in (device for summary in self.summaries for device in summary.memory):
            captures.setdefault(device.device, []).append(device)
        for _, found in sorted(captures.items()):
            total = total_memory(found, [summary.places for summary in self.summaries])
            yield replace(total, node=self.node, rank=self.rank)

    def passes(self) -> Iterator[PassTime]:
        """Yields the time of each module: the sum of the captures."""
        calls, seconds = Counter[tuple[str, str, str]](), defaultdict[tuple[str, str, str], float](float)
        for each in chain(*(summary.passes for summary in self.summaries)):
            key = each.device, each.part, each.module
            calls[key] += each.calls
            seconds[key] += each.seconds
        yield from (PassTime(self.node, self.rank, *key, calls[key], seconds[key]) for key in calls)

    def activities(self) -> Iterator[ActivityTime]:
        """Yields data loading."""
        for _, name, calls, seconds, _ in self._summed(lambda summary: summary.loading):
            yield ActivityTime(self.node, self.rank, name, calls, seconds)

    def _summed(self, part: Callable[[TraceSummary], Iterable[NamedTime]]) -> Iterable[NamedTime]:
        """Returns one part of all traces of the rank, each name of a device once."""
        sums: dict[tuple[str, str], NamedTime] = {}
        for device, name, calls, seconds, own in chain(*map(part, self.summaries)):
            before = sums.get((device, name), NamedTime(device, name, 0, 0.0, 0.0))
            total = (before.calls + calls, before.seconds + seconds, before.self_seconds + own)
            sums[device, name] = NamedTime(device, name, *total)
        return sums.values()


def _operators(summary: TraceSummary) -> tuple[NamedTime, ...]:
    return *summary.operators, *summary.kernels


def _between_steps(steps: Sequence[StepTime]) -> float:
    """Returns the seconds of one capture between its first and last step that are in no step."""
    first = min(step.start for step in steps)
    last = max(step.start + step.seconds for step in steps)
    return max(last - first - sum(step.seconds for step in steps), 0.0)
