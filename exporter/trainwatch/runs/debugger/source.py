"""A Debugger profiler-output directory as a source of snapshots and steps."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.runs.debugger.files import find, job_name
from trainwatch.runs.debugger.framework import Framework, Rank
from trainwatch.runs.debugger.readings import BLOCK_BYTES, read_readings
from trainwatch.runs.debugger.snapshots import GAP_UNIT, NodeSnapshots
from trainwatch.runs.model import NodeFacts, NodeSamples, RunFacts, Source, Steps

INTERVALS = (0.1, 0.2, 0.5, 1.0, 5.0, 60.0)  # seconds between snapshots that a job could ask for
CHUNK_STEPS = 100_000
Progress = Callable[[int, int], None]  # bytes read so far, bytes to read


class DebuggerOutput(Source):
    """The profile of a job that is over, or of what was copied of it; it is read once.

    The events come first and are summed up as they are read; then snapshots are streamed, a block of a
    file at a time, so that memory does not grow with the readings.

    Raises UserError where the directory is not Debugger's or holds nothing, and while reading where a line
    is corrupt.
    """

    def __init__(
        self, directory: Path, progress: Progress | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files = find(directory)
        self._directory = directory
        self._progress = progress
        self._block_bytes = block_bytes
        self._bytes_read, self._bytes = 0, self._files.bytes()
        self._snapshots = {node: NodeSnapshots(node) for node in self._files.system}
        self._framework = Framework()
        self._ranks: list[tuple[Rank, Steps]] = []
        self._truncated: list[Path] = []
        self._read = False

    @property
    def facts(self) -> RunFacts:
        snapshots = list(self._snapshots.values())
        times = [time for node in snapshots for time in (node.first, node.last) if time is not None]
        ends = [float((steps.starts + steps.durations).max()) for _, steps in self._ranks if len(steps)]
        starts = [one.process.start for one, _ in self._ranks if one.process.start is not None]
        start, last = min([*times, *starts], default=None), max([*times, *ends], default=None)
        end = last if self._files.ended else None
        trained = [(rank, steps) for rank, steps in self._ranks if rank.trained]
        interval, missed = _interval(snapshots)
        return RunFacts(
            name=job_name(self._files.root),
            start=start,
            end=end,
            interval=interval,
            samples_missed=missed,
            nodes=tuple(node.facts for node in snapshots) + self._nodes_without_readings(),
            ranks=tuple(rank.facts(steps, len(trained), start or 0.0, end) for rank, steps in trained),
            operators=tuple(item for rank, _ in self._ranks for item in rank.operators()),
            collectives=tuple(item for rank, _ in self._ranks for item in rank.collectives()),
            activities=tuple(item for rank, _ in self._ranks for item in rank.activities()),
            unknowns=self._unknowns(),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Everything, about in the order of time; nothing when called again."""
        if self._read:
            return
        self._read = True
        for file in self._files.events:
            self._framework.read(file, self._truncated.append)
            self._advance(file.path.stat().st_size)
        ranks = self._framework.ranks(list(self._files.system))
        self._ranks = [(rank, rank.process.steps(rank.node, rank.rank)) for rank in ranks]
        streams: list[Iterator[NodeSamples | Steps]] = [self._samples(node) for node in self._files.system]
        streams += [_pieces(steps) for _, steps in self._ranks]
        rows = 0
        for chunk in heapq.merge(*streams, key=_first_time):
            rows += len(chunk)
            yield chunk
        if not rows and not any(rank.process.activities or rank.process.operators for rank in ranks):
            raise UserError(
                f"{self._directory}: its files hold no reading and no event; copy the output again"
            )

    def _samples(self, node: str) -> Iterator[NodeSamples]:
        snapshots = self._snapshots[node]
        for path in self._files.system[node]:
            for readings in read_readings(
                path, node, self._truncated.append, self._advance, self._block_bytes
            ):
                samples = snapshots.add(readings)
                if samples is not None:
                    yield samples
        rest = snapshots.rest()
        if rest is not None:
            yield rest

    def _advance(self, size: int) -> None:
        self._bytes_read += size
        if self._progress is not None:
            self._progress(self._bytes_read, self._bytes)

    def _nodes_without_readings(self) -> tuple[NodeFacts, ...]:
        return tuple(
            NodeFacts(node) for node in sorted({rank.node for rank, _ in self._ranks} - set(self._snapshots))
        )

    def _unknowns(self) -> tuple[str, ...]:
        cut = [
            f"{path.relative_to(self._files.root)} ends in the middle of a line: the line was skipped."
            for path in self._truncated
        ]
        strange = [sentence for node in self._snapshots.values() for sentence in node.unknowns()]
        return (*self._files.unknowns, *cut, *strange)


def _pieces(steps: Steps) -> Iterator[Steps]:
    for start in range(0, len(steps), CHUNK_STEPS):
        rows = slice(start, start + CHUNK_STEPS)
        yield replace(
            steps,
            numbers=steps.numbers[rows],
            phases=steps.phases[rows],
            starts=steps.starts[rows],
            durations=steps.durations[rows],
            components=steps.components[rows],
        )


def _first_time(chunk: NodeSamples | Steps) -> float:
    return float(chunk.times[0] if isinstance(chunk, NodeSamples) else chunk.starts[0])


def _interval(snapshots: list[NodeSnapshots]) -> tuple[float, int]:
    """The usual time between snapshots (seconds; 0.5 where there are none), and how many are missing."""
    gaps: Counter[int] = sum((node.gaps for node in snapshots), Counter())
    gaps.pop(0, None)
    if not gaps:
        return 0.5, 0
    usual = gaps.most_common(1)[0][0] * GAP_UNIT
    interval = next((one for one in INTERVALS if abs(one - usual) <= 0.1 * one), round(usual, 3))
    missed = sum(count * max(round(gap * GAP_UNIT / interval) - 1, 0) for gap, count in gaps.items())
    return interval, missed
