"""A Debugger profiler-output directory as a source of samples and steps."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.words import count
from stepscope.runs.debugger.files import find, job_name
from stepscope.runs.debugger.framework import (
    REPEATED_LINES,
    OpenPairs,
    Process,
    Rank,
    device_of,
    ranks_of,
    read_events,
)
from stepscope.runs.debugger.system import GAP_UNIT, SampleBuilder, read_readings
from stepscope.runs.malformed import naming
from stepscope.runs.model import (
    Gap,
    NodeFacts,
    NodeSamples,
    Progress,
    RunFacts,
    Source,
    Steps,
    TimedEvent,
    counter,
    in_time_order,
)

INTERVALS = (0.1, 0.2, 0.5, 1.0, 5.0, 60.0)  # seconds between samples that a job can be configured for
CHUNK_STEPS = 100_000
NO_TIMES = "No event has a base time: when the job began and ended is not known. Horovod's events have none."


class DebuggerOutput(Source):
    """The profile of a finished job, or the copied part of it; it is read once.

    Events are read and summed first. Then samples are streamed, one block of a file at a time, so that
    memory does not grow with the readings.

    Raises UserError if the directory is not Debugger's or is empty, and while reading if a line is corrupt.
    """

    def __init__(self, directory: Path, progress: Progress | None = None) -> None:
        self._files = find(directory)
        self._directory = directory
        self._advance = counter(self._files.bytes(), progress)
        self._nodes = {node: SampleBuilder(node) for node in self._files.system}
        self._ranks: list[tuple[Rank, Steps]] = []
        self._truncated: list[Path] = []
        self._impossible: list[Path] = []  # one of each event that is left out
        self._chunks = self._everything()

    @property
    def facts(self) -> RunFacts:
        nodes = list(self._nodes.values())
        times = [time for node in nodes for time in (node.first, node.last) if time is not None]
        ends = [float(steps.ends.max()) for _, steps in self._ranks if len(steps)]
        starts = [rank.process.start for rank, _ in self._ranks if rank.process.start is not None]
        start, last = min([*times, *starts], default=None), max([*times, *ends], default=None)
        end = last if self._files.ended else None
        trained = [(rank, steps) for rank, steps in self._ranks if rank.trained]
        without_readings = sorted({rank.node for rank, _ in self._ranks} - set(self._nodes))
        interval, missed = _interval(self._nodes)
        cut_off = [path.relative_to(self._files.root) for path in self._truncated]
        left_out = Counter(path.relative_to(self._files.root) for path in self._impossible)
        return RunFacts(
            name=job_name(self._files.root),
            start=start,
            end=end,
            interval=interval,
            gaps=tuple(
                Gap("samples", "Debugger did not take them", node, count=count)
                for node, count in missed.items()
                if count
            ),
            nodes=(*(node.facts for node in nodes), *map(NodeFacts, without_readings)),
            # Events without a base time, such as Horovod's, belong to no moment: then no start is known.
            ranks=tuple(
                rank.facts(steps, len(trained), start, end) for rank, steps in trained if start is not None
            ),
            operators=tuple(item for rank, _ in self._ranks for item in rank.operators()),
            collectives=tuple(item for rank, _ in self._ranks for item in rank.collectives()),
            activities=tuple(item for rank, _ in self._ranks for item in rank.activities()),
            unknowns=(
                *self._files.unknowns,
                *([NO_TIMES] if self._ranks and start is None else []),
                *(f"{path} ends in the middle of a line: the line was skipped." for path in cut_off),
                *(
                    f"{path} has {count(events, 'event')} with an impossible time or duration, left out."
                    for path, events in left_out.items()
                ),
                *(sentence for node in nodes for sentence in node.unknowns()),
            ),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields everything, roughly in time order; nothing when called again."""
        return self._chunks

    def events(self) -> Iterator[TimedEvent]:
        """Yields all events that have a date, file by file. Raises UserError if a file is corrupt."""
        for _ in self._chunks:  # which process is which rank
            pass
        known: list[Path] = []  # the files were read before
        ranks = {(rank.process.host, rank.process.pid): rank for rank, _ in self._ranks}
        pairs: dict[tuple[str, int, str], OpenPairs] = {}
        for file in self._files.events:
            rank = ranks[file.host, file.pid]
            begun = pairs.setdefault((file.host, file.pid, file.kind), {})
            with naming(file.path, "Debugger's events", "copy the file again, or remove it"):
                for each in read_events(file.path, begun, known.append, known.append):
                    if each.start is not None and each.thread not in REPEATED_LINES:
                        device = device_of(each.kind)
                        where = (rank.node, rank.rank, device, each.kind, each.name)
                        yield TimedEvent(*where, each.start, each.duration, file.kind)

    def _everything(self) -> Iterator[NodeSamples | Steps]:
        processes: dict[tuple[str, int], Process] = {}
        for file in self._files.events:
            process = processes.setdefault((file.host, file.pid), Process(file.host, file.pid))
            process.read(file, self._truncated.append, self._impossible.append)
            self._advance(file.path.stat().st_size)
        ranks = ranks_of(list(processes.values()), list(self._nodes))
        self._ranks = [(rank, rank.process.steps(rank.node, rank.rank)) for rank in ranks]
        streams: list[Iterator[NodeSamples | Steps]] = [self._samples(node) for node in self._nodes]
        streams += [_pieces(steps) for _, steps in self._ranks]
        rows = 0
        for chunk in in_time_order(streams):
            rows += len(chunk)
            yield chunk
        if not rows and not any(rank.process.has_events for rank in ranks):
            raise UserError(
                f"{self._directory}: its files hold no reading and no event; copy the output again"
            )

    def _samples(self, node: str) -> Iterator[NodeSamples]:
        builder = self._nodes[node]
        for path in self._files.system[node]:
            for readings in read_readings(path, node, self._truncated.append, self._advance):
                samples = builder.add(readings)
                if samples is not None:
                    yield samples
        rest = builder.rest()
        if rest is not None:
            yield rest


def _pieces(steps: Steps) -> Iterator[Steps]:
    for start in range(0, len(steps), CHUNK_STEPS):
        yield steps[start : start + CHUNK_STEPS]


def _interval(nodes: dict[str, SampleBuilder]) -> tuple[float, dict[str, int]]:
    """Returns the usual seconds between samples (0.5 if there are none), and the missing samples by node."""
    gaps: Counter[int] = sum((node.gaps for node in nodes.values()), Counter())
    gaps.pop(0, None)
    if not gaps:
        return 0.5, {}
    usual = gaps.most_common(1)[0][0] * GAP_UNIT
    near = (interval for interval in INTERVALS if abs(interval - usual) <= 0.1 * interval)
    interval = next(near, round(usual, 3))
    return interval, {
        name: sum(count * max(round(gap * GAP_UNIT / interval) - 1, 0) for gap, count in node.gaps.items())
        for name, node in nodes.items()
    }
