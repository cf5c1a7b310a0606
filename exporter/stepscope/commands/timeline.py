"""`stepscope timeline`: writes one trace of a whole run, for ui.perfetto.dev."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from stepscope.common.console import Console
from stepscope.common.errors import UserError
from stepscope.common.words import count, number, size
from stepscope.evaluation.engine import evaluate
from stepscope.report.merged_timeline import NAME, write_timeline_file
from stepscope.report.run_list import source_of
from stepscope.report.terminal import Progress
from stepscope.runs.open import open_source
from stepscope.runs.recording.files import RUNS, holds_recording

EXAMPLES = f"""\
examples:
  stepscope timeline resnet                      the newest run of this name in stepscope-runs/
  stepscope timeline runs/7 -o /tmp/7.json.gz    another file than runs/7/{NAME}

Open the file in https://ui.perfetto.dev or chrome://tracing. It has the steps of each rank, the operators of
profile windows, findings, and the samples of nodes and GPUs, on one time axis. Nothing leaves this machine:
the page reads the file in the browser.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope timeline`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a recording of `stepscope run`: its directory, or a name in stepscope-runs/, then its newest "
        "run; or another source of `stepscope report` that has dates",
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
    place = source_of(arguments.run, RUNS)
    out = arguments.out or (Path(place, NAME) if holds_recording(Path(place)) else None)
    if out is None:
        raise UserError(f"{place} is no recording: say where to write the timeline, with -o FILE")
    progress = Progress()
    try:
        source = open_source(place, progress.update_bytes)
        if source.judged_whole:
            raise UserError(f"{place} is a trace already: open it in ui.perfetto.dev")
        analysis = evaluate(source, progress=progress.update)
    finally:
        progress.end()
    written = write_timeline_file(out, analysis, open_source(place))
    for note in written.notes:
        print(f"stepscope: {note}", file=sys.stderr)
    found = f"{count(written.steps, 'step')}, {number(written.operators)} operators and kernels"
    print(f"{found}, {size(out.stat().st_size)}; open it in https://ui.perfetto.dev", file=sys.stderr)
    print(Console(sys.stdout).link(out))
    return 0
