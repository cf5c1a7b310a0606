"""The index page of a folder of runs: state, verdict, cost and trend of each, as one HTML file."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from stepscope.common.shared_files import open_file
from stepscope.common.whole_file import write_whole
from stepscope.report.page import render_page
from stepscope.report.run_list import PAGE, ListedRun, RunList, read_folder, run_before
from stepscope.report.shell import compare_command
from stepscope.runs.recording.files import RUNS

INDEX = "index.html"
SHOWN = 100  # the newest: reading thousands takes seconds; `stepscope list` has all
MARK = "Stepscope runs"  # in a page that may be replaced


class Row(NamedTuple):
    run: ListedRun
    link: str  # to its report, relative to the index; "" without one
    percent: float  # of the longest step of the runs with its name
    compare: str  # the command that compares it with the run before; "" without one


def is_runs_folder(folder: Path) -> bool:
    """Returns whether an index page may be written there: it is stepscope-runs, or has one already."""
    if folder.absolute().name == RUNS.name:
        return True
    try:
        with os.fdopen(open_file(folder / INDEX), "rb") as page:
            return MARK.encode() in page.read(3000)
    except OSError:
        return False


def refresh_index(directory: Path) -> None:
    """Writes the index page of the folder that a run is in, if it is a folder of runs.

    Other users may own the folder: then its index stays as it is.
    """
    folder = directory.absolute().parent
    if is_runs_folder(folder):
        with suppress(OSError):
            write_index(read_folder(folder, SHOWN))


def write_index(runs: RunList) -> Path:
    """Writes the index page and returns its path. Raises OSError."""
    page = runs.folder / INDEX
    write_whole(page, render_index(runs))
    return page


def render_index(runs: RunList) -> str:
    """Returns the page as one HTML document; its links are relative, so the folder can move."""
    shown = runs.runs[:SHOWN]
    return render_page(
        "index.html",
        scripts=("copy.js",),
        data={},
        sections={"runs": "Runs"},
        mark=MARK,
        folder=runs.folder.absolute().name,
        rows=[_row(run, runs) for run in shown],
        more=len(runs.runs) - len(shown) + runs.unread,
        unreadable=runs.unreadable,
    )


def _row(run: ListedRun, runs: RunList) -> Row:
    longest = max((each.step_seconds or 0.0 for each in runs.runs if each.name == run.name), default=0.0)
    before = run_before(run, runs.runs)
    return Row(
        run,
        link="" if run.page is None else quote(os.fsencode(f"{run.directory.name}/{PAGE}")),
        percent=100 * (run.step_seconds or 0.0) / longest if longest else 0.0,
        compare="" if before is None else compare_command(before.directory, run.directory),
    )
