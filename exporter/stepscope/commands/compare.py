"""`stepscope compare`: what became faster or cheaper from one run to the next, and why."""

import math
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.common.console import Console, print_document
from stepscope.common.errors import UserError
from stepscope.common.whole_file import DEVICES, write_whole
from stepscope.compare import gate
from stepscope.compare.compared_run import ComparedRun, read_run
from stepscope.compare.comparison import Comparison, compare
from stepscope.compare.document import as_json
from stepscope.compare.figures import ALIASES, KINDS, RESOURCES, UTILISATION
from stepscope.compare.html import render_comparison
from stepscope.compare.sentences import verdict
from stepscope.compare.text import as_markdown, as_text
from stepscope.evaluation.arguments import add_parameters, add_scan_interval
from stepscope.evaluation.settings import Settings
from stepscope.report.markdown_text import one_line
from stepscope.report.price_list import Machine, price_of_node, read_price_list
from stepscope.report.run_list import find_run, read_folder, read_listed, run_before, source_of
from stepscope.report.terminal import Progress, add_price, add_prices
from stepscope.runs.open import open_source
from stepscope.runs.prometheus.address import without_secrets
from stepscope.runs.recording.files import RUNS

FORMATS: dict[str, Callable[[Comparison], str]] = {
    "html": render_comparison,
    "json": as_json,
    "markdown": as_markdown,
    "text": as_text,
}
ENDINGS = {".json": "json", ".md": "markdown", ".txt": "text"}

EXAMPLES = f"""\
examples:
  stepscope compare stepscope-runs/before stepscope-runs/after --out comparison.html
  stepscope compare                  the newest run in stepscope-runs/ with the one before of the same name
  stepscope compare RUN              this run with the one before
  stepscope compare before after --price-a 14.688 --price-b 3.825
  stepscope compare main branch --fail-if "step_p50>+3%" --fail-if CPUBottleneck --format markdown

--fail-if takes a figure with a change from A to B ("step_p50>+3%", "throughput<-5%") or with a limit for B
("duration>10m", "cost>$5", "gpu_p95<60"), a rule that must not appear ("DataStarved"), or any_rule, which
may have exceptions ("any_rule except DataStarved, CPUBottleneck").
If no difference is seen between the steps of A and B, their change counts as 0.
Figures: {", ".join([*KINDS, *ALIASES])}; and _{", _".join(UTILISATION)} of
{", ".join(RESOURCES)}.

With --fail-if the exit status is 0 if no condition is met, 1 if one is, and 3 if one is inconclusive: too few
or too noisy steps, different work, missing data. It is 2 for a wrong argument.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope compare`."""
    parser.epilog = EXAMPLES
    for name, meaning in (("a", "the run before"), ("b", "the run after")):
        parser.add_argument(
            f"source_{name}",
            nargs="?",
            metavar=f"SOURCE_{name.upper()}",
            help=f"{meaning}: a directory, or a run in Prometheus, as `stepscope report` takes it",
        )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write the comparison (default format: by the ending of FILE, or html)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="format of FILE (default: by its ending, .html, .json, .md or .txt); without --out, "
        "of the printed comparison (default: text)",
    )
    for name in ("a", "b"):
        add_price(parser, f"--price-{name}", f"a node of {name.upper()}")
    add_prices(parser)
    for name in ("a", "b"):
        parser.add_argument(
            f"--workload-{name}",
            type=_workload,
            metavar="N",
            help=f"items (samples, tokens, ...) that {name.upper()} processed, if steps do not show its work",
        )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help='exit with status 1 if it holds, such as "step_p50>+3%%", and with 3 if it is inconclusive; '
        "may be repeated",
    )
    add_parameters(parser)
    add_scan_interval(parser)


def run(arguments: Namespace) -> int:
    """Compares two runs and writes the comparison. Raises UserError, and then writes nothing."""
    settings = Settings.parse(arguments.set, arguments.parameters)
    conditions = [gate.parse(text) for text in arguments.fail_if]
    machines = read_price_list(arguments.prices) if arguments.prices else ()
    of_costs = any(condition.name.startswith("cost") for condition in conditions)
    if of_costs and None in (arguments.price_a, arguments.price_b) and not machines:
        raise UserError("--fail-if cost: costs need the price of a node; give --price-a and --price-b")
    if arguments.out is not None:
        _check_writable(arguments.out)

    sources = _sources(arguments.source_a, arguments.source_b)
    of_both = settings, arguments.scan_interval, machines
    a = _read(sources[0], arguments.price_a, arguments.workload_a, *of_both)
    b = _read(sources[1], arguments.price_b, arguments.workload_b, *of_both)
    comparison = compare(a, b, conditions)
    console = Console(sys.stdout)
    if arguments.out is None:
        text = FORMATS[arguments.format or "text"](comparison)
        if arguments.format:
            print_document(text)
        else:
            print(*(line for long in text.splitlines() for line in console.wrapped(long, rest=4)), sep="\n")
    else:
        rendered = FORMATS[arguments.format or ENDINGS.get(arguments.out.suffix, "html")](comparison)
        try:
            write_whole(arguments.out, rendered)
        except OSError as error:
            why = f"{error.strerror}; choose another file with --out"
            raise UserError(f"cannot write {arguments.out}: {why}") from error
        said = [line for each in verdict(comparison) for line in console.wrapped(one_line(each), rest=2)]
        console.write(*said, "", console.link(arguments.out))
    states = {outcome.state for outcome in comparison.outcomes}
    for outcome in comparison.not_passed:
        print(f"stepscope: {outcome.state}: {outcome.condition.text}: {outcome.reason}", file=sys.stderr)
    return next((status for state, status in gate.STATUSES.items() if state in states), 0)


def _sources(first: str | None, second: str | None) -> tuple[str, str]:
    """Returns both sources: without the second, a run (by default the newest) and the one before it."""
    if first is not None and second is not None:
        return source_of(first), source_of(second)
    if first is None and not RUNS.is_dir():
        raise UserError("give two runs to compare, or run this where stepscope-runs/ is")
    if first is None:
        runs = read_folder(RUNS).runs
    else:
        after = read_listed(find_run(first))
        runs = [after, *read_folder(after.directory.absolute().parent).runs]
    if not runs:
        raise UserError(f"there is no run in {RUNS}; start one: `stepscope run -- python train.py`")
    before = run_before(runs[0], runs)
    if before is None:
        raise UserError(
            f"{runs[0].directory} has no run before it with the name {runs[0].name}; give two runs"
        )
    return os.path.relpath(before.directory), os.path.relpath(runs[0].directory)


def _workload(text: str) -> float:
    """Parses a number of items. Raises ArgumentTypeError, as the `type` of a flag must."""
    try:
        items = float(text.replace("_", ""))
    except ValueError:
        items = math.nan
    if not 0 < items < math.inf:
        raise ArgumentTypeError(
            f"{text!r} is not a number of items: give what the whole run processed, as in 1.28e6"
        )
    return items


def _read(
    place: str,
    price: float | None,
    workload: float | None,
    settings: Settings,
    scan_interval: float,
    machines: Sequence[Machine],
) -> ComparedRun:
    """Reads a run; its price is that of its instance type, unless one was given."""
    with Progress() as progress:
        source = open_source(place, progress.update_bytes)
        known = without_secrets(place), source, price, settings, scan_interval, progress.update, workload
        run = read_run(*known)
        return replace(run, price=price_of_node(run.analysis, machines, price))


def _check_writable(file: Path) -> None:
    """Raises UserError if --out cannot be written, before an evaluation that takes minutes."""
    if file.is_dir():
        raise UserError(f"{file}: is a directory; give a file with --out")
    parent = file.absolute().parent
    if not parent.is_dir():
        raise UserError(
            f"{file}: there is no directory {file.parent}; create it, or give another file with --out"
        )
    if parent != DEVICES and not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{file}: {parent} cannot be written to; choose another file with --out")
