"""`stepscope open`: opens a report, or the index page of a folder of runs, in a browser."""

import sys
import webbrowser
from argparse import ArgumentParser, Namespace
from pathlib import Path

from stepscope.commands.list import runs_in
from stepscope.common.console import Console
from stepscope.common.errors import UserError
from stepscope.report.index_page import INDEX, write_index
from stepscope.report.run_list import DOCUMENT, PAGE, find_run, read_folder
from stepscope.runs.recording.files import RUN_FILE, RUNS

EXAMPLES = """\
examples:
  stepscope open                     the report of the newest run in stepscope-runs/
  stepscope open train-7f3a          the run whose directory begins with train-7f3a
  stepscope open stepscope-runs      the index page of all runs
  stepscope open --print             print the path only
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope open`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help=f"a run: its directory, or the beginning of its name in {RUNS}/; or a folder of runs "
        "(default: the newest run)",
    )
    parser.add_argument(
        "--print", dest="print_only", action="store_true", help="print the path, open nothing"
    )


def run(arguments: Namespace) -> int:
    """Opens the page and prints its path. Raises UserError if there is none."""
    page = (_newest() if arguments.run is None else _page_of(arguments.run)).absolute()
    print(Console(sys.stdout).link(page))
    if not arguments.print_only and not webbrowser.open(page.as_uri()):
        print("stepscope: no browser could be started here; open the file above in yours", file=sys.stderr)
    return 0


def _newest() -> Path:
    pages = (run.page for run in runs_in(None).runs)
    page = next((page for page in pages if page is not None), None)
    if page is None:
        raise UserError(f"there is no report in {RUNS}; start a run: `stepscope run -- python train.py`")
    return page


def _page_of(text: str) -> Path:
    directory = find_run(text)
    if (directory / PAGE).is_file():
        return directory / PAGE
    if (directory / RUN_FILE).exists() or (directory / DOCUMENT).exists():
        raise UserError(f"{directory} has no report yet; write it with `stepscope report {directory}`")
    runs = read_folder(directory)
    if not runs.runs:
        raise UserError(
            f"{directory} is no run and has none; give the directory of a run, or a folder of runs"
        )
    try:
        return write_index(runs)
    except OSError as error:
        raise UserError(
            f"cannot write {directory / INDEX}: {error.strerror}; use `stepscope list`"
        ) from error
