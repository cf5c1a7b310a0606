"""`stepscope list`: the runs of a folder, the newest first."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.common.console import BOLD, Console
from stepscope.common.durations import positive_count
from stepscope.common.errors import UserError
from stepscope.common.words import NO_NUMBER, change, duration, in_columns, moment, money
from stepscope.report.index_page import is_runs_folder, write_index
from stepscope.report.markdown_text import one_line
from stepscope.report.run_list import ListedRun, RunList, read_folder
from stepscope.runs.recording.files import RUNS

FORMAT = 1
HEADINGS = ("State", "Start (UTC)", "Duration", "Step", "Change", "Cost")
LOSS = "Loss"  # a column if some run published one
EXAMPLES = """\
examples:
  stepscope list                             the runs in stepscope-runs/
  stepscope list /scratch/runs --number 5    the newest five of another folder
  stepscope list --json | jq '.runs[0]'      for scripts

Step is the mean training step of all ranks, Change that from the run before with the same name. Loss is the
last one that training published.
`stepscope open` opens the newest report, `stepscope compare` compares the newest run with the one before.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope list`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help=f"the folder of runs (default: {RUNS})"
    )
    parser.add_argument("--number", "-n", type=positive_count, metavar="N", help="list the newest N only")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(arguments: Namespace) -> int:
    """Prints the list. Raises UserError if the folder cannot be read."""
    runs = runs_in(arguments.folder)
    listed = runs.runs[: arguments.number]
    for name, why in runs.unreadable.items():
        print(one_line(f"stepscope: {name} is left out: {why}"), file=sys.stderr)
    if arguments.json:
        document = {
            "format": FORMAT,
            "runs": [_as_json(run) for run in listed],
            "unreadable": runs.unreadable,
        }
        print(json.dumps(document, indent=2, allow_nan=False))
        return 0
    if not listed:
        print(f"There are no runs in {runs.folder}. Start one: stepscope run -- python train.py")
        return 0
    print("\n".join(_lines(listed, Console(sys.stdout))))
    return 0


def runs_in(folder: Path | None) -> RunList:
    """Reads a folder, or stepscope-runs, and refreshes its index page. Raises UserError."""
    if folder is None and not RUNS.exists():
        return RunList(RUNS, [], {})
    folder = folder or RUNS
    try:
        runs = read_folder(folder)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; give a folder of runs, as stepscope-runs") from error
    if is_runs_folder(folder):
        with suppress(OSError):  # somebody else's
            write_index(runs)
    return runs


def _lines(runs: list[ListedRun], console: Console) -> Iterator[str]:
    """Yields the figures of each run, and below them its name and verdict: 80 columns have room for both."""
    rows = [HEADINGS, *map(_row, runs)]
    if any(run.loss for run in runs):
        losses = [LOSS, *(run.loss or NO_NUMBER for run in runs)]
        rows = [(*row, loss) for row, loss in zip(rows, losses, strict=True)]
    table = in_columns(rows, words=2)
    yield next(table)
    for line, run in zip(table, runs, strict=True):
        yield console.state(run.status) + line.removeprefix(f"{run.status.icon} {run.status}")
        name = one_line(run.directory.name)
        first, *rest = console.wrapped(one_line(f"{name}: {run.verdict}"), first=2, rest=2)
        yield f"  {console.styled(name, BOLD)}{first.removeprefix(name)}"
        yield from rest


def _row(run: ListedRun) -> tuple[str, ...]:
    return (
        f"{run.status.icon} {run.status}",
        NO_NUMBER if run.start is None else moment(run.start)[: len("2026-11-23 07:01")],
        NO_NUMBER if run.seconds is None else duration(run.seconds),
        NO_NUMBER if run.step_seconds is None else duration(run.step_seconds),
        NO_NUMBER if run.step_change is None else change(run.step_change),
        NO_NUMBER if run.cost is None else money(run.cost),
    )


def _as_json(run: ListedRun) -> dict[str, Any]:
    known = asdict(run)
    places = {"directory": str(known.pop("directory")), "report": None if run.page is None else str(run.page)}
    return places | known | {"loss": run.loss or None}
