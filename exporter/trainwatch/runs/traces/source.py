"""Traces of the PyTorch profiler as a source of steps, operators, kernels, data loading and collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
)
from trainwatch.runs.traces.summary import NamedTime, StepTime, TraceSummary, summarise
from trainwatch.runs.traces.trace import Trace, load

ENDINGS = (".pt.trace.json", ".pt.trace.json.gz")
Progress = Callable[[int, int], None]  # bytes read so far, bytes to read


def trace_files(place: Path) -> list[Path]:
    """The traces in a directory and the folders in it, or the file itself."""
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*.pt.trace.json*") if path.name.endswith(ENDINGS))


class KinetoTraces(Source):
    """One trace a rank, or several of a rank one after the other. One is in memory at a time.

    Raises UserError where there is no trace, and while reading where one is corrupt.
    """

    def __init__(self, place: Path, progress: Progress | None = None) -> None:
        self._place = place
        self._paths = trace_files(place)
        if not self._paths:
            raise UserError(f"{place} holds no trace (*.pt.trace.json or *.pt.trace.json.gz)")
        self._progress = progress
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._read = False

    @property
    def summaries(self) -> list[tuple[str, int, TraceSummary]]:
        """Node, rank and summary of each trace that was read."""
        return [(one.node, one.rank, summary) for one in self._ranks.values() for summary in one.summaries]

    @property
    def facts(self) -> RunFacts:
        ranks = [self._ranks[key] for key in sorted(self._ranks)]
        gpus: dict[str, dict[int, str]] = {}
        for one in ranks:
            gpus.setdefault(one.node, {}).update(one.devices)
        return RunFacts(
            name=self._place.name.removesuffix(".gz").removesuffix(".pt.trace.json"),
            start=min((one.start for one in ranks), default=None),
            end=max((one.end for one in ranks), default=None),
            nodes=tuple(
                NodeFacts(node, (), tuple(GpuFacts(str(i), name) for i, name in sorted(gpus[node].items())))
                for node in sorted(gpus)
            ),
            ranks=tuple(one.facts(len(ranks)) for one in ranks),
            operators=tuple(item for one in ranks for item in one.operators()),
            collectives=tuple(item for one in ranks for item in one.collectives()),
            activities=tuple(item for one in ranks for item in one.activities()),
            unknowns=(
                "A trace tells of its own steps alone: no sample of the host or the GPUs was taken.",
                *(sentence for one in ranks for sentence in one.unknowns()),
            ),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """The steps of each rank; nothing when called again."""
        if self._read:
            return
        self._read = True
        done, total = 0, sum(path.stat().st_size for path in self._paths)
        for path in self._paths:
            trace = load(path)
            rank = trace.rank if trace.rank is not None else self._rank_of_process(trace)
            key = (trace.host, rank)
            self._ranks.setdefault(key, _Rank(trace.host, rank, trace.pid)).add(trace)
            done += path.stat().st_size
            if self._progress is not None:
                self._progress(done, total)
        for one in self._ranks.values():
            steps = one.steps()
            if len(steps):
                yield steps

    def _rank_of_process(self, trace: Trace) -> int:
        """Without a rank in the trace: the rank that its process got before, or the next."""
        for (node, rank), one in self._ranks.items():
            if node == trace.host and one.pid == trace.pid:
                return rank
        return max((rank for _, rank in self._ranks), default=-1) + 1


class _Rank:
    """All traces of one rank."""

    def __init__(self, node: str, rank: int, pid: int) -> None:
        self.node, self.rank, self.pid = node, rank, pid
        self.summaries: list[TraceSummary] = []
        self.devices: dict[int, str] = {}
        self.world_size: int | None = None
        self.start, self.end = np.inf, -np.inf
        self._without_steps: list[Path] = []

    def add(self, trace: Trace) -> None:
        summary = summarise(trace)
        self.summaries.append(summary)
        self.devices.update(trace.devices)
        self.world_size = trace.world_size or self.world_size
        self.start = min(self.start, trace.origin)
        self.end = max(self.end, trace.origin + max(event.end for event in trace.events) / 1e6)
        if not summary.marked:
            self._without_steps.append(trace.path)

    def steps(self) -> Steps:
        marked = [one for summary in self.summaries if summary.marked for one in summary.steps]
        marked.sort(key=lambda step: step.start)
        return Steps(
            node=self.node,
            rank=self.rank,
            numbers=np.array([step.number for step in marked], np.int64),
            phases=np.zeros(len(marked), np.uint8),
            starts=np.array([step.start for step in marked], float),
            durations=np.array([step.seconds for step in marked], float),
            components=np.array([_components(step) for step in marked], float).reshape(-1, len(COMPONENTS)),
        )

    def facts(self, ranks: int) -> RankFacts:
        steps = self.steps()
        count, seconds = len(steps), float(steps.durations.sum())
        first = float(steps.starts[0]) if count else None
        last = float((steps.starts + steps.durations).max()) if count else None
        other = max(last - first - seconds, 0.0) if first is not None and last is not None else 0.0
        return RankFacts(
            node=self.node,
            rank=self.rank,
            pid=self.pid,
            start=self.start,
            first_step_start=first,
            last_step_end=last,
            end=self.end,
            killed=False,
            framework="pytorch",
            framework_version="",
            world_size=self.world_size or ranks,
            phase_seconds={**dict.fromkeys(PHASES, 0.0), "train": seconds, "other": other},
            component_seconds=dict(zip(COMPONENTS, steps.components.sum(axis=0).tolist(), strict=True)),
            steps={**dict.fromkeys(PHASES, 0), "train": count},
            records_lost=0,
        )

    def operators(self) -> Iterator[OperatorTime]:
        """Operators on the CPU and kernels on the GPUs."""
        for one in self._summed(lambda summary: (*summary.operators, *summary.kernels)):
            yield OperatorTime(
                self.node, self.rank, one.device, one.name, one.calls, one.seconds, one.self_seconds
            )

    def collectives(self) -> Iterator[CollectiveTime]:
        for one in self._summed(lambda summary: summary.collectives):
            yield CollectiveTime(self.node, self.rank, one.name, one.calls, one.seconds, one.self_seconds)

    def activities(self) -> Iterator[ActivityTime]:
        """Data loading."""
        for one in self._summed(lambda summary: summary.loading):
            yield ActivityTime(self.node, self.rank, one.name, one.calls, one.seconds)

    def _summed(self, part: Callable[[TraceSummary], Iterable[NamedTime]]) -> Iterator[NamedTime]:
        """One part of all traces of the rank, each name of a device once."""
        sums: dict[tuple[str, str], NamedTime] = {}
        for one in (item for summary in self.summaries for item in part(summary)):
            so_far = sums.get((one.device, one.name), NamedTime(one.device, one.name, 0, 0.0, 0.0))
            sums[one.device, one.name] = NamedTime(
                one.device,
                one.name,
                so_far.calls + one.calls,
                so_far.seconds + one.seconds,
                so_far.self_seconds + one.self_seconds,
            )
        yield from sums.values()

    def unknowns(self) -> Iterator[str]:
        for path in self._without_steps:
            yield f"{path.name} marks no step: call profiler.step() after each step to see their times."


def _components(step: StepTime) -> list[float]:
    known = {
        "data_wait": step.data_wait,
        "backward": step.backward,
        "optimizer": step.optimizer,
        "communication": step.slices["communication"],
    }
    return [known.get(component, 0.0) for component in COMPONENTS]
