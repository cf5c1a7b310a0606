"""Opens a run from any source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.runs.debugger.files import holds_debugger_output
from trainwatch.runs.debugger.source import DebuggerOutput
from trainwatch.runs.model import Source
from trainwatch.runs.prometheus.api import EXAMPLE, PREFIX
from trainwatch.runs.prometheus.source import PrometheusRun
from trainwatch.runs.recording.directory import RecordingDirectory
from trainwatch.runs.recording.files import holds_recording
from trainwatch.runs.traces.source import KinetoTraces, trace_files

KINDS = "a recording, Debugger's profiler-output/ or traces of the PyTorch profiler"


def open_source(place: Path | str, progress: Callable[[int, int], None] | None = None) -> Source:
    """Opens the run at `place`: a path, whose files show its kind, or `prometheus+http://...?run=NAME`.

    Slow sources call `progress` with the bytes read so far and the bytes to read. Raises UserError if there
    is nothing to read.
    """
    if isinstance(place, str) and "://" in place:
        if place.startswith(PREFIX):
            return PrometheusRun(place)
        raise UserError(f"{place}: cannot be read from there; give a directory on this machine, or {EXAMPLE}")
    place = Path(place)
    if not place.exists():
        raise UserError(f"{place} does not exist: give the directory of {KINDS}")
    if place.is_file():
        if ".json" not in place.suffixes:
            raise UserError(f"{place} is a file, and no trace (*.json or *.json.gz): give {KINDS}")
        return KinetoTraces(place, progress)
    if holds_recording(place):
        return RecordingDirectory(place)
    if holds_debugger_output(place):
        return DebuggerOutput(place, progress)
    if trace_files(place):
        return KinetoTraces(place, progress)
    what = "is empty" if not any(place.iterdir()) else f"is not {KINDS}"
    raise UserError(f"{place} {what}: give the directory that `trainwatch run` or a training job wrote")
