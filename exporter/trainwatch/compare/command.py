"""`trainwatch compare`: what became faster or cheaper from one run to the next, and why."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from trainwatch.compare import gate
from trainwatch.compare.compared_run import ComparedRun, read_run
from trainwatch.compare.comparison import Comparison, compare
from trainwatch.compare.document import as_json
from trainwatch.compare.figures import ALIASES, KINDS, RESOURCES, UTILISATION
from trainwatch.compare.html import render_comparison
from trainwatch.compare.text import as_markdown, as_text
from trainwatch.errors import UserError
from trainwatch.evaluation.arguments import add_parameters, add_scan_interval
from trainwatch.evaluation.settings import Settings
from trainwatch.report.price import add_price
from trainwatch.report.progress import Progress
from trainwatch.runs.open import open_source
from trainwatch.runs.prometheus.api import without_password
from trainwatch.whole_file import write_whole

FORMATS: dict[str, Callable[[Comparison], str]] = {
    "html": render_comparison,
    "json": as_json,
    "markdown": as_markdown,
    "text": as_text,
}
ENDINGS = {".json": "json", ".md": "markdown", ".txt": "text"}

EXAMPLES = f"""\
examples:
  trainwatch compare trainwatch-runs/before trainwatch-runs/after --out comparison.html
  trainwatch compare before after --price-a 14.688 --price-b 3.825
  trainwatch compare main branch --fail-if "step_p50>+3%" --fail-if CPUBottleneck --format markdown

--fail-if takes a figure with a change from A to B ("step_p50>+3%", "throughput<-5%") or with a limit for B
("duration>10m", "cost>$5", "gpu_p95<60"), a rule that must not appear ("DataStarved"), or any_rule.
If no difference is seen between the steps of A and B, their change counts as 0.
Figures: {", ".join([*KINDS, *ALIASES])}; and _{", _".join(UTILISATION)} of
{", ".join(RESOURCES)}.

The exit status is 1 if a condition of --fail-if is met or cannot be judged, 2 for a wrong argument.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `trainwatch compare`."""
    parser.epilog = EXAMPLES
    for name, meaning in (("a", "the run before"), ("b", "the run after")):
        parser.add_argument(
            f"source_{name}",
            metavar=f"SOURCE_{name.upper()}",
            help=f"{meaning}: a directory, or a run in Prometheus, as `trainwatch report` takes it",
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
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help='exit with status 1 if it holds, such as "step_p50>+3%%"; may be repeated',
    )
    add_parameters(parser)
    add_scan_interval(parser)


def run(arguments: Namespace) -> int:
    """Compares two runs and writes the comparison. Raises UserError, and then writes nothing."""
    settings = Settings.parse(arguments.set, arguments.parameters)
    conditions = [gate.parse(text) for text in arguments.fail_if]
    if gate.needs_prices(conditions) and None in (arguments.price_a, arguments.price_b):
        raise UserError("--fail-if cost: costs need the price of a node; give --price-a and --price-b")
    if arguments.out is not None:
        _check_writable(arguments.out)

    a = _read(arguments.source_a, arguments.price_a, settings, arguments.scan_interval)
    b = _read(arguments.source_b, arguments.price_b, settings, arguments.scan_interval)
    comparison = compare(a, b, conditions)
    if arguments.out is None:
        sys.stdout.write(FORMATS[arguments.format or "text"](comparison))
    else:
        rendered = FORMATS[arguments.format or ENDINGS.get(arguments.out.suffix, "html")](comparison)
        _write(arguments.out, rendered)
        sys.stdout.write(as_text(comparison))
        print(f"\n{arguments.out}")
    for outcome in comparison.failed:
        print(f"trainwatch: failed: {outcome.condition.text}: {outcome.reason}", file=sys.stderr)
    return 1 if comparison.failed else 0


def _read(place: str, price: float | None, settings: Settings, scan_interval: float) -> ComparedRun:
    progress = Progress()
    try:
        source = open_source(place, progress.update_bytes)
        return read_run(without_password(place), source, price, settings, scan_interval, progress.update)
    finally:
        progress.end()


def _check_writable(file: Path) -> None:
    """Raises UserError if --out cannot be written, before an evaluation that takes minutes."""
    if file.is_dir():
        raise UserError(f"{file}: is a directory; give a file with --out")
    if not file.absolute().parent.is_dir():
        raise UserError(
            f"{file}: there is no directory {file.parent}; create it, or give another file with --out"
        )


def _write(file: Path, text: str) -> None:
    try:
        write_whole(file, text)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}; choose another file with --out") from error
