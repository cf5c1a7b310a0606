"""Keeps of a trace what a run needs: some kilobytes, which a reading process sends to its parent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.common.words import duration, listing, number
from stepscope.runs.malformed import is_date, naming
from stepscope.runs.model import RankTrace
from stepscope.runs.traces.arrivals import rank_trace
from stepscope.runs.traces.events import Trace, traces_of
from stepscope.runs.traces.pauses import parts_of
from stepscope.runs.traces.trace import STEP, TraceSummary, summarise

MOST = 0.5  # of the shorter capture: consecutive ones of a process overlap by their last kernels only
OVERLAP = 0.01  # of the steps' time: less is the rounding of clocks
# What makes the steps known, by the writer of a trace.
MARKS = {
    "pytorch": "call profiler.step() after each step",
    "xla": "run each step in jax.profiler.StepTraceAnnotation, or profile with Keras's TensorBoard callback",
    "nsight": 'mark each step with a range of NVTX, such as torch.cuda.nvtx.range_push("step 7")',
}


@dataclass(frozen=True)
class Capture:
    """One process in one file. Times are seconds since the epoch, or since the start if it has no date."""

    file: str
    writer: str
    host: str
    pid: int
    rank: int | None  # None: the file does not contain it
    world_size: int | None
    devices: dict[int, str]  # name by index
    start: float
    end: float
    summary: TraceSummary
    arrivals: RankTrace | None  # None: it took part in no collective
    damaged: tuple[str, ...]  # sentences on events that nobody here knows
    unknowns: tuple[str, ...]  # other sentences
    unrecognised: int  # events of categories that nobody here knows

    @property
    def process(self) -> tuple[str, int]:
        """Returns the host and the number of the process: containers on two hosts may share the number."""
        return self.host, self.pid

    def is_copy_of(self, other: "Capture") -> bool:
        """Returns whether both contain the same."""
        return (self.start, self.end, self.summary) == (other.start, other.end, other.summary)

    def covers(self, other: "Capture") -> bool:
        """Returns whether both contain the same, or most of the shorter one's time is in the other."""
        if not is_date(self.start) or not is_date(other.start):
            return self.is_copy_of(other)
        common = min(self.end, other.end) - max(self.start, other.start)
        return common > MOST * min(self.end - self.start, other.end - other.start)

    def later(self, seconds: float) -> "Capture":
        """Returns this capture with all its times moved."""
        steps = tuple(replace(step, start=step.start + seconds) for step in self.summary.steps)
        return replace(
            self,
            start=self.start + seconds,
            end=self.end + seconds,
            summary=replace(self.summary, steps=steps),
            arrivals=self.arrivals and self.arrivals.later(seconds),
        )


def captures_of(path: Path, progress: Callable[[int], None] | None = None) -> list[Capture]:
    """Reads a file; calls `progress` with the bytes read since the last call. Raises UserError."""
    with naming(path, "a trace of the profiler", "export it again"):
        return [_capture(part) for trace in traces_of(path, progress) for part in parts_of(trace)]


def _capture(trace: Trace) -> Capture:
    summary, host = summarise(trace), trace.host or "unknown"
    # In words: a category, or what is wrong with events of it.
    unknown = [f"{category} ({number(count)})" for category, count in sorted(trace.unknown.items())]
    damaged = (
        f"{trace.path.name} has events that are not understood, which count nowhere: {listing(unknown)}."
    )
    return Capture(
        file=trace.path.name,
        writer=trace.writer,
        host=host,
        pid=trace.pid,
        rank=trace.rank,
        world_size=trace.world_size,
        devices=trace.devices,
        start=trace.start,
        end=trace.end,
        summary=summary,
        arrivals=rank_trace(trace, host, trace.rank or 0, summary.steps) if trace.collectives else None,
        damaged=(damaged,) if unknown else (),
        unknowns=tuple(_unknowns(trace, summary)),
        unrecognised=sum(trace.unknown.values()),
    )


def _unknowns(trace: Trace, summary: TraceSummary) -> Iterator[str]:
    """Yields sentences: what the trace does not contain."""
    name = trace.path.name
    if summary.steps_from == "optimizer":
        yield f"{name} marks no step: its steps are the times between calls of the optimizer."
    elif summary.steps_from not in ("", "profiler"):
        yield (
            f"{name} marks no step. Its steps were inferred from repetition: each begins with "
            f"{summary.steps_from}. To be sure, {MARKS[trace.writer]}."
        )
    elif not summary.marked and trace.named(STEP.fullmatch).any():
        yield (
            f"{name} marks steps, but the host ran ahead of its device, so it is not known when they ended. "
            "Wait for the result inside each step."
        )
    elif not summary.marked:
        yield f"{name} marks no step: {MARKS[trace.writer]} to see their times."
    if summary.overlap > OVERLAP * sum(step.seconds for step in summary.steps):
        yield (
            f"{name} marks steps that overlap, by {duration(summary.overlap)} in all: each counts until "
            "the next one begins."
        )
    yield from (f"{name} {note}." for note in trace.notes)
    if not is_date(trace.origin):
        yield f"{name} does not contain the date: its times count from the start of the profile."
    if trace.host is None:
        yield f"{name} does not contain the name of its host."
