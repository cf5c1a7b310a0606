"""`stepscope report`: writes the report of a recorded run, also with other parameters."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from stepscope.common.console import Console, print_document
from stepscope.common.errors import UserError
from stepscope.common.whole_file import write_whole
from stepscope.evaluation.arguments import add_docs_url, add_parameters, add_scan_interval
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.settings import Settings
from stepscope.report.document import render_json
from stepscope.report.markdown import render_markdown
from stepscope.report.markdown_text import one_line
from stepscope.report.notebook import NOTEBOOK, render_notebook
from stepscope.report.price_list import price_of_node, read_price_list
from stepscope.report.printed import print_verdict
from stepscope.report.run_list import source_of
from stepscope.report.sentences import gaps
from stepscope.report.terminal import Progress, add_price, add_prices
from stepscope.report.write import FORMS, write_report
from stepscope.runs.debugger.reports import DebuggerReports
from stepscope.runs.open import open_sources
from stepscope.runs.prometheus.address import without_secrets
from stepscope.runs.recording.files import RUNS, new_directory

EXAMPLES = """\
examples:
  stepscope report resnet            the newest run of this name in stepscope-runs/
  stepscope report s3://my-bucket/my-job/profiler-output --out reports/my-job
  stepscope report runs/1234-*       the nodes of one run, each with its own `stepscope run --out`
  stepscope report runs/7 --out /tmp/stricter --set CPUBottleneck.cpu_threshold=80 --set StepOutlier.stddev=2
  stepscope report runs/7 --format markdown --price 32.77 | gh pr comment --body-file -
  stepscope report runs/7 --format json | jq .verdict
  stepscope report runs/7 --prices prices.csv    names the instance type that serves

Writes DIR/report.html, which opens without a network, DIR/report.json for programs, and
DIR/profiler-reports/RULE.json for each rule. Without --out, json and markdown are printed, and a page is
written into SOURCE, or into a new directory in stepscope-runs/ if SOURCE is a URL or read-only.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope report`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "source",
        nargs="+",
        metavar="SOURCE",
        help="a directory: a recording of `stepscope run` (or a name in stepscope-runs/: its newest run), "
        "SageMaker Debugger's profiler-output/, traces of the PyTorch profiler, JAX or TensorFlow (*.json, "
        "*.json.gz) or Nsight Systems (*.sqlite), a timeline of Horovod (*.json), or dumps of PyTorch's "
        "flight recorder (nccl_trace_rank_*); one of these at s3://, gs:// or http(s)://, which is copied "
        "(`stepscope[remote]`); or prometheus+http://HOST:9090?run=NAME; several are the "
        "nodes of one run, each recorded by its own `stepscope run`",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write the report (default: see below)"
    )
    parser.add_argument(
        "--format",
        choices=FORMS,
        default="html",
        help="a page (html), one document for programs (json), or a summary for a pull request or a chat "
        "(markdown); default: %(default)s",
    )
    parser.add_argument(
        "--notebook",
        action="store_true",
        help=f"also write {NOTEBOOK}, which opens the run and draws it (charts need `stepscope[notebook]`)",
    )
    add_price(parser)
    add_prices(parser)
    add_parameters(parser)
    add_scan_interval(parser)
    add_docs_url(parser, "rules link to no docs")


def run(arguments: Namespace) -> int:
    """Evaluates a run and writes the report. Raises UserError for bad input, and then writes nothing."""
    settings = Settings.parse(arguments.set, arguments.parameters)
    machines = read_price_list(arguments.prices) if arguments.prices else ()
    printed = arguments.out is None and arguments.format != "html" and not arguments.notebook
    places = [source_of(place) for place in arguments.source]
    with Progress() as progress:
        source = open_sources(places, progress.update_bytes)
        # Debugger's own reports have the names of ours.
        keeps = isinstance(source, DebuggerReports)
        out = arguments.out or (None if keeps else _writable_directory(places))
        if not printed:
            _check_writable(out or RUNS)
        analysis = evaluate(source, settings, arguments.scan_interval, progress.update)
    for line in gaps(analysis.gaps):
        print(one_line(f"stepscope: {line}"), file=sys.stderr)
    price = price_of_node(analysis, machines, arguments.price)
    if printed:
        render = render_json if arguments.format == "json" else render_markdown
        print_document(render(analysis, price, machines))
        return 0
    if out is None:
        out = new_directory(source.facts.label)
        place = without_secrets(places[0])
        reason = f"{place} is not a directory that can be written to"
        if keeps:
            reason = f"the reports in {place} stay as they are"
        elif len(places) > 1:
            reason = "the run has several directories"
        print(f"stepscope: {reason}, so the report goes to {out}", file=sys.stderr)
    try:
        typed, docs_url = arguments.typed, arguments.docs_url
        page = write_report(analysis, out, price, arguments.format, typed, docs_url, machines)
        if arguments.notebook:
            page = out / NOTEBOOK
            write_whole(page, render_notebook(analysis, places, out, settings, price))
    except OSError as error:
        raise UserError(
            f"cannot write to {out}: {error.strerror}; choose another directory with --out"
        ) from error
    print_verdict(Console(sys.stderr), analysis, price)
    print(Console(sys.stdout).link(page))
    return 0


def _writable_directory(places: Sequence[str]) -> Path | None:
    """Returns SOURCE if it is one directory that can be written, for a report without --out."""
    if len(places) > 1:
        return None
    directory = Path(places[0])
    return directory if directory.is_dir() and os.access(directory, os.W_OK | os.X_OK) else None


def _check_writable(directory: Path) -> None:
    """Raises UserError before an evaluation that takes minutes; creates nothing yet."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: is a file; give a directory with --out")
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise UserError(f"{directory}: cannot be written; choose another directory with --out")
