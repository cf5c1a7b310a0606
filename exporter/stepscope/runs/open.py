"""Opens a run from any source."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError
from stepscope.common.words import count
from stepscope.runs.clocks import Clocks, earlier
from stepscope.runs.debugger.files import holds_debugger_output
from stepscope.runs.debugger.reports import DebuggerReports, report_files
from stepscope.runs.debugger.source import DebuggerOutput
from stepscope.runs.flight_recorder.source import FlightRecorderDumps, dump_files
from stepscope.runs.horovod import HorovodTimeline, is_timeline
from stepscope.runs.model import (
    NodeSamples,
    Progress,
    PythonWindow,
    RunFacts,
    Source,
    Steps,
    TimedEvent,
    in_time_order,
)
from stepscope.runs.prometheus.address import EXAMPLE, PREFIX, without_secrets
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.files import RUN_FILE, holds_recording
from stepscope.runs.remote import SCHEMES, is_remote, local_copy
from stepscope.runs.traces.source import KinetoTraces, is_trace, trace_files

# What all nodes have together: everything that is a tuple of nodes, ranks, gaps and so on.
TOGETHER = tuple(item.name for item in fields(RunFacts) if item.default == ())
KINDS = (
    "a recording, Debugger's profiler-output/, traces of the PyTorch profiler, JAX, TensorFlow or Nsight "
    "Systems, a timeline of Horovod, or dumps of PyTorch's flight recorder"
)
# Files that only their own tool reads, by the end of their name, and what to do.
BINARIES = {
    ".xplane.pb": "give the *.trace.json.gz next to it, which JAX writes, or download it in TensorBoard",
    ".nsys-rep": "run: nsys export --type sqlite FILE, and give the *.sqlite",
    ".qdrep": "run: nsys export --type sqlite FILE, and give the *.sqlite",
}


def open_source(place: Path | str, progress: Progress | None = None, again: bool = False) -> Source:
    """Opens the run at `place`: a path, whose files show its kind, or `prometheus+http://...?run=NAME`.

    What is at s3://, gs:// or http(s):// is copied once; with `again`, what has changed is copied again.
    If several launches have that name, takes the newest and lists the others on stderr.
    Slow sources call `progress` with the bytes read so far and the bytes to read. Raises UserError if there
    is nothing to read.
    """
    if isinstance(place, str) and "://" in place:
        if place.startswith(PREFIX):
            from stepscope.runs.prometheus.source import PrometheusRun  # its HTTP client takes long to import

            run = PrometheusRun(place)
            if run.earlier:
                print(f"stepscope: {run.earlier}", file=sys.stderr)
            return run
        if not is_remote(place):
            schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise UserError(
                f"{without_secrets(place)}: cannot be read from there; give a directory on this machine, "
                f"an address with {schemes}, or {EXAMPLE}"
            )
        copy = local_copy(place, progress, again)
        try:
            return open_source(copy, progress)
        except UserError as error:
            raise UserError(str(error).replace(str(copy), without_secrets(place))) from error
    place = Path(place)
    if not place.exists():
        raise UserError(f"{place} does not exist: give the directory of {KINDS}")
    if place.is_file() and dump_files(place):
        return FlightRecorderDumps(place, progress)
    if place.is_file():
        _refuse_binary(place)
        if place.name == RUN_FILE:
            _refuse_part(place)
        if is_timeline(place):
            return HorovodTimeline(place, progress)
        if ".json" not in place.suffixes and not is_trace(place):
            raise UserError(f"{place} is a file, and no trace (*.json, *.json.gz or *.sqlite): give {KINDS}")
        return KinetoTraces(place, progress)
    if holds_recording(place):
        return RecordingDirectory(place)
    if holds_debugger_output(place):
        return DebuggerOutput(place, progress)
    if dump_files(place):
        return FlightRecorderDumps(place, progress)
    if trace_files(place):
        return KinetoTraces(place, progress)
    if report_files(place):
        return DebuggerReports(place)
    for path in sorted(place.rglob("*")):
        _refuse_binary(path)
    _refuse_part(place)
    recordings = sorted(folder for folder in place.iterdir() if folder.is_dir() and holds_recording(folder))
    if recordings:
        raise UserError(f"{place} holds {count(len(recordings), 'recording')}: give one, as {recordings[-1]}")
    what = "is empty" if not any(place.iterdir()) else f"is not {KINDS}"
    raise UserError(f"{place} {what}: give the directory that `stepscope run` or a training job wrote")


def open_sources(
    places: Sequence[Path | str], progress: Progress | None = None, again: bool = False
) -> Source:
    """Opens the recordings of the nodes of one run as one; a single place as `open_source` does.

    Raises UserError also if they are not of one run.
    """
    if len(places) == 1:
        return open_source(places[0], progress, again)
    return merged({str(place): open_source(place, progress, again) for place in places})


def _refuse_part(place: Path) -> None:
    """Raises UserError for what is inside a recording."""
    if holds_recording(place.parent):
        raise UserError(f"{place} is a part of the recording {place.parent}: give {place.parent}")


def _refuse_binary(path: Path) -> None:
    """Raises UserError for a profile that has a readable form."""
    remedy = next((remedy for ending, remedy in BINARIES.items() if path.name.endswith(ending)), None)
    if remedy is not None:
        raise UserError(f"{path} cannot be read: {remedy}")


def merged(sources: Mapping[str, Source]) -> Source:
    """Returns the sources as one, by the places that they are from; a single one as it is.

    Raises UserError if they are not different nodes of one run.
    """
    first, *others = sources
    facts = sources[first].facts
    seen = {node.node: first for node in facts.nodes}
    for place in others:
        other = sources[place].facts
        if other.label != facts.label:
            raise UserError(
                f"{place}: is of run {other.label}, and {first} of {facts.label}; give the nodes of one run"
            )
        if other.interval != facts.interval:
            raise UserError(
                f"{place}: has a sample every {other.interval:g} s, and {first} every {facts.interval:g} s; "
                "report them one by one"
            )
        for node in other.nodes:
            if node.node in seen:
                raise UserError(
                    f"{place}: is of node {node.node}, as {seen[node.node]} is; give each node once"
                )
            seen[node.node] = place
    return _Merged(list(sources.values())) if others else sources[first]


class _Merged(Source):
    def __init__(self, sources: Sequence[Source], ahead: Sequence[float] = ()) -> None:
        self._sources = sources
        self._clocks = Clocks(len(sources), ahead)
        self.judged_whole = sources[0].judged_whole

    @property
    def facts(self) -> RunFacts:
        every = [earlier(source.facts, ahead) for source, ahead in self._each()]
        together: dict[str, Any] = {
            name: tuple(each for facts in every for each in getattr(facts, name)) for name in TOGETHER
        }
        starts = [facts.start for facts in every if facts.start is not None]
        ends = [facts.end for facts in every if facts.end is not None]
        together["unknowns"] += self._clocks.notes
        silent = [facts.no_steps for facts in every]
        if not all(silent):  # then the run had steps: it is a gap of these nodes only
            together["unknowns"] += tuple(sentence for sentence in silent if sentence)
        return replace(
            min(every, key=_order_of_ends),
            start=min(starts, default=None),
            end=max(ends) if len(ends) == len(every) else None,
            no_steps=silent[0] if all(silent) else "",
            unrecognised=sum(facts.unrecognised for facts in every),
            **together,
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        yield from in_time_order(self._clocks.aligned([source.read() for source in self._sources]))

    def traces(self) -> Source | None:
        found = [(traces, ahead) for source, ahead in self._each() if (traces := source.traces()) is not None]
        return _Merged([traces for traces, _ in found], [ahead for _, ahead in found]) if found else None

    def trace_files(self) -> Iterator[tuple[Path, float]]:
        for source, ahead in self._each():
            yield from ((path, ahead + own) for path, own in source.trace_files())

    def python_windows(self) -> Iterator[PythonWindow | UserError]:
        for source, ahead in self._each():
            yield from (earlier(window, ahead) for window in source.python_windows())

    def events(self) -> Iterator[TimedEvent]:
        for source, ahead in self._each():
            yield from (event._replace(start=event.start - ahead) for event in source.events())

    def _each(self) -> Iterator[tuple[Source, float]]:
        """Yields the sources, and how far the clock of each is ahead."""
        return zip(self._sources, self._clocks.ahead, strict=True)


def _order_of_ends(facts: RunFacts) -> tuple[bool, float]:
    """Sorts the node first that failed first, otherwise the first of all."""
    failed = facts.exit_status not in (None, 0)
    return not failed, (facts.end or 0.0) if failed else 0.0
