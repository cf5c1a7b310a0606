"""`stepscope timeline`: writes one trace of a whole run, for ui.perfetto.dev."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from stepscope.common.console import Console
from stepscope.common.errors import UserError
from stepscope.common.words import count, number, size
from stepscope.evaluation.engine import evaluate
from stepscope.report.markdown_text import one_line
from stepscope.report.merged_timeline import NAME, write_timeline_file
from stepscope.report.run_list import source_of
from stepscope.report.terminal import Progress
from stepscope.runs.open import open_sources
from stepscope.runs.recording.files import holds_recording

EXAMPLES = f"""\
examples:
  stepscope timeline resnet                      the newest run of this name in stepscope-runs/
  stepscope timeline runs/7 -o /tmp/7.json.gz    another file than runs/7/{NAME}
  stepscope timeline NODE1 NODE2 -o 8.json.gz    one run, whose nodes were recorded apart

Open the file in https://ui.perfetto.dev or chrome://tracing. It has the steps of each rank, the operators of
profile windows, findings, and the samples of nodes and GPUs, on one time axis. Nothing leaves this machine:
the page reads the file in the browser.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope timeline`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="a recording of `stepscope run`: its directory, or a name in stepscope-runs/, then its newest "
        "run; or another source of `stepscope report` that has dates; several: the nodes of one run",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help=f"where to write it (default: {NAME} in the recording)",
    )


def run(arguments: Namespace) -> int:
    """Writes the file and prints its path. Raises UserError."""
    places = [source_of(place) for place in arguments.run]
    out = arguments.out or _in_recording(places)
    with Progress() as progress:
        source = open_sources(places, progress.update_bytes)
        if source.judged_whole:
            raise UserError(f"{places[0]} is a trace already: open it in ui.perfetto.dev")
        analysis = evaluate(source, progress=progress.update)
    written = write_timeline_file(out, analysis, open_sources(places))
    for note in written.notes:
        print(one_line(f"stepscope: {note}"), file=sys.stderr)
    found = f"{count(written.steps, 'step')}, {number(written.operators)} operators and kernels"
    print(f"{found}, {size(out.stat().st_size)}; open it in https://ui.perfetto.dev", file=sys.stderr)
    print(Console(sys.stdout).link(out))
    return 0


def _in_recording(places: Sequence[str]) -> Path:
    """Returns the path of a recording's own timeline. Raises UserError if there is no single recording."""
    if len(places) == 1 and holds_recording(Path(places[0])):
        return Path(places[0], NAME)
    what = f"{places[0]} is no recording" if len(places) == 1 else "the run has several directories"
    raise UserError(f"{what}: say where to write the timeline, with -o FILE")
