"""Opens a run from any source."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.runs.debugger.files import holds_debugger_output
from stepscope.runs.debugger.reports import DebuggerReports, report_files
from stepscope.runs.debugger.source import DebuggerOutput
from stepscope.runs.flight_recorder.source import FlightRecorderDumps, dump_files
from stepscope.runs.horovod import HorovodTimeline, is_timeline
from stepscope.runs.merged import merged
from stepscope.runs.model import Source
from stepscope.runs.prometheus.address import EXAMPLE, PREFIX, without_secrets
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.files import holds_recording
from stepscope.runs.remote import SCHEMES, is_remote, local_copy
from stepscope.runs.traces.nsight import is_export
from stepscope.runs.traces.source import KinetoTraces, trace_files

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


def open_source(
    place: Path | str, progress: Callable[[int, int], None] | None = None, again: bool = False
) -> Source:
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
        if is_timeline(place):
            return HorovodTimeline(place, progress)
        if ".json" not in place.suffixes and not is_export(place):
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
    what = "is empty" if not any(place.iterdir()) else f"is not {KINDS}"
    raise UserError(f"{place} {what}: give the directory that `stepscope run` or a training job wrote")


def open_sources(
    places: Sequence[Path | str], progress: Callable[[int, int], None] | None = None, again: bool = False
) -> Source:
    """Opens the recordings of the nodes of one run as one; a single place as `open_source` does.

    Raises UserError also if they are not of one run.
    """
    if len(places) == 1:
        return open_source(places[0], progress, again)
    return merged({str(place): open_source(place, progress, again) for place in places})


def _refuse_binary(path: Path) -> None:
    """Raises UserError for a profile that has a readable form."""
    remedy = next((remedy for ending, remedy in BINARIES.items() if path.name.endswith(ending)), None)
    if remedy is not None:
        raise UserError(f"{path} cannot be read: {remedy}")
