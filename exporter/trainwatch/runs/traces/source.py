"""Traces of the PyTorch profiler as a source of steps, operators, kernels, data loading and collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from trainwatch.errors import UserError
from trainwatch.runs.model import (
    COMPONENTS,
    PHASES,
    ActivityTime,
    CollectiveTime,
    GpuFacts,
    NodeFacts,
    NodeSamples,
    OperatorTime,
    RankFacts,
    RunFacts,
    Source,
    Steps,
    facts_of_steps,
)
from trainwatch.runs.traces.trace import NamedTime, Trace, TraceSummary, load, summarise

ENDINGS = (".pt.trace.json", ".pt.trace.json.gz")
Progress = Callable[[int, int], None]  # bytes read so far, bytes to read


def trace_files(place: Path) -> list[Path]:
    """Returns the traces in a directory and its folders, or the file itself."""
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*.pt.trace.json*") if path.name.endswith(ENDINGS))


class KinetoTraces(Source):
    """One trace per rank, or several consecutive ones. One trace is in memory at a time.

    Raises UserError if there is no trace, and while reading if one is corrupt.
    """

    def __init__(self, place: Path, progress: Progress | None = None) -> None:
        self._place = place
        self._paths = trace_files(place)
        if not self._paths:
            raise UserError(f"{place} holds no trace (*.pt.trace.json or *.pt.trace.json.gz)")
        self._progress = progress
        self._ranks: dict[tuple[str, int], _Rank] = {}
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
            name=self._place.name.removesuffix(".gz").removesuffix(".pt.trace.json"),
            start=min((rank.start for rank in ranks), default=None),
            end=max((rank.end for rank in ranks), default=None),
            nodes=tuple(
                NodeFacts(node, (), tuple(GpuFacts(str(i), name) for i, name in sorted(gpus[node].items())))
                for node in sorted(gpus)
            ),
            ranks=tuple(rank.facts(len(ranks)) for rank in ranks),
            operators=tuple(item for rank in ranks for item in rank.operators()),
            collectives=tuple(item for rank in ranks for item in rank.collectives()),
            activities=tuple(item for rank in ranks for item in rank.activities()),
            unknowns=(
                "A trace contains only its own steps: no sample of the host or the GPUs was taken.",
                *(
                    f"{path.name} marks no step: call profiler.step() after each step to see their times."
                    for rank in ranks
                    for path in rank.without_steps
                ),
            ),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields the steps of each rank; nothing when called again."""
        return self._chunks

    def _everything(self) -> Iterator[Steps]:
        done, total = 0, sum(path.stat().st_size for path in self._paths)
        for path in self._paths:
            trace = load(path)
            rank = trace.rank if trace.rank is not None else self._rank_of_process(trace)
            key = (trace.host, rank)
            self._ranks.setdefault(key, _Rank(trace.host, rank, trace.pid)).add(trace)
            done += path.stat().st_size
            if self._progress is not None:
                self._progress(done, total)
        yield from (steps for each in self._ranks.values() if len(steps := each.steps()))

    def _rank_of_process(self, trace: Trace) -> int:
        """Returns the rank that the process of a trace without a rank got before, or the next one."""
        known = (r.rank for r in self._ranks.values() if (r.node, r.pid) == (trace.host, trace.pid))
        return next(known, max((rank for _, rank in self._ranks), default=-1) + 1)


class _Rank:
    """All traces of one rank."""

    def __init__(self, node: str, rank: int, pid: int) -> None:
        self.node, self.rank, self.pid = node, rank, pid
        self.summaries: list[TraceSummary] = []
        self.devices: dict[int, str] = {}
        self.world_size: int | None = None
        self.start, self.end = np.inf, -np.inf
        self.without_steps: list[Path] = []

    def add(self, trace: Trace) -> None:
        summary = summarise(trace)
        self.summaries.append(summary)
        self.devices.update(trace.devices)
        self.world_size = trace.world_size or self.world_size
        self.start = min(self.start, trace.origin)
        self.end = max(self.end, trace.origin + max(event.end for event in trace.events) / 1e6)
        if not summary.marked:
            self.without_steps.append(trace.path)

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
        return RankFacts(
            node=self.node,
            rank=self.rank,
            pid=self.pid,
            start=self.start,
            end=self.end,
            framework="pytorch",
            world_size=self.world_size or ranks,
            **facts_of_steps(self.steps()),
        )

    def operators(self) -> Iterator[OperatorTime]:
        """Yields operators on the CPU and kernels on the GPUs."""
        for found in self._summed(lambda summary: (*summary.operators, *summary.kernels)):
            yield OperatorTime(self.node, self.rank, *found)

    def collectives(self) -> Iterator[CollectiveTime]:
        for _, name, calls, seconds, exposed in self._summed(lambda summary: summary.collectives):
            yield CollectiveTime(self.node, self.rank, name, calls, seconds, exposed)

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
