"""`trainwatch crosscheck`: did Prometheus's rules say what the raw counters say?"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from trainwatch.crosscheck.compare import Disagreement, Outcome, Window, check_rule
from trainwatch.crosscheck.recompute import CHECKED
from trainwatch.crosscheck.server import Milliseconds, Server
from trainwatch.crosscheck.table import disagreements, summary
from trainwatch.errors import UserError
from trainwatch.rules.options import Options
from trainwatch.rules.text import command_of

HOUR = 3_600_000
# What was evaluated just now may not be stored whole yet: a rule's alerts are written after its records.
SETTLED = 5_000
# Storing a scrape takes a little longer than the scrape; on a busy server up to this.
STORED = 500

EXAMPLES = """\
examples:
  trainwatch crosscheck --prometheus http://localhost:9090
  trainwatch crosscheck --prometheus http://localhost:9090 --run resnet --start 2026-11-20T12:00:00Z
  trainwatch crosscheck --prometheus http://localhost:9090 --rules /etc/prometheus/rules/trainwatch.yml

The exit status is 1 where anything disagrees.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of `trainwatch crosscheck`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--prometheus", required=True, metavar="URL", help="such as http://localhost:9090")
    parser.add_argument("--run", metavar="NAME", help="the run to check (default: each of that time)")
    parser.add_argument(
        "--start",
        type=moment,
        metavar="TIME",
        help="such as 2026-11-20T12:00:00Z, or seconds since 1970 (default: an hour before the end)",
    )
    parser.add_argument("--end", type=moment, metavar="TIME", help="likewise (default: now)")
    parser.add_argument(
        "--rules",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="rendered rule files that Prometheus has; their headers say which parameters must hold "
        "(default: those of `trainwatch rules render` without flags)",
    )


def run(arguments: Namespace) -> int:
    """Prints disagreements and a table; 1 where there are any. Raises UserError for what the user mends."""
    options = _options(arguments.rules)
    with Server(arguments.prometheus) as server:
        end = server.now() - SETTLED
        if arguments.end is not None:
            end = min(end, arguments.end)
        start = arguments.start if arguments.start is not None else end - HOUR
        if start >= end:
            raise UserError("--start is not before --end, or lies in the last seconds; give an earlier one")
        intervals = server.intervals()
        if not any(f"trainwatch-{rule}" in intervals for rule in CHECKED):
            raise UserError(
                "Prometheus has none of Trainwatch's rules; load rules/*.yml into it (docs/rules.md)"
            )
        outcomes = _outcomes(server, options, intervals, _runs(server, arguments.run, start, end), start, end)
    for outcome in outcomes:
        for line in disagreements(outcome):
            print(line)
    for line in summary(outcomes):
        print(line)
    _print_verdict(outcomes)
    return 1 if any(outcome.disagreements for outcome in outcomes) else 0


def moment(text: str) -> Milliseconds:
    """A time that a person wrote. Raises ArgumentTypeError where it is none."""
    try:
        return round(1000 * float(text))
    except (ValueError, OverflowError):
        pass
    try:
        parsed = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} must be a time such as 2026-11-20T12:00:00Z, or seconds since 1970"
        ) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=timezone.utc)
    return round(1000 * parsed.timestamp())


def _options(files: Sequence[Path]) -> Options:
    """What rule files were rendered with, by their headers. Raises UserError for what is none, or differs."""
    found: dict[Options, Path] = {}
    for path in files:
        try:
            command = command_of(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"--rules {path}: cannot be read ({reason}); name a rendered rule file") from None
        if command is None:
            raise UserError(f"--rules {path}: does not say how it was rendered; name a rendered rule file")
        try:
            found.setdefault(Options.from_command(command), path)
        except UserError as mistake:
            raise UserError(f"--rules {path}: {mistake}") from None
    if len(found) > 1:
        first, second, *_ = found.values()
        raise UserError(f"--rules {second}: was rendered with other flags than {first}; check one at a time")
    return next(iter(found), Options())


def _runs(server: Server, name: str | None, start: Milliseconds, end: Milliseconds) -> list[str]:
    runs = server.runs(start, end)
    if name is None and not runs:
        raise UserError("Prometheus has no run's samples in that time; give another --start and --end")
    if name is not None and name not in runs:
        there = f"there are {', '.join(runs)}" if runs else "there is none"
        raise UserError(f"--run {name}: Prometheus has no samples of it in that time; {there}")
    return runs if name is None else [name]


def _outcomes(
    server: Server,
    options: Options,
    intervals: dict[str, Milliseconds],
    runs: Sequence[str],
    start: Milliseconds,
    end: Milliseconds,
) -> list[Outcome]:
    unseen = round(1000 * server.longest_scrape(start, end)) + STORED
    restarted = server.started()
    outcomes = []
    for heuristic in options.settings.heuristics():
        name = heuristic.name
        if heuristic.rules(options.scraping) is None:
            continue
        interval = intervals.get(f"trainwatch-{name}")
        for run_name in runs:
            if interval is None:
                missing = Disagreement(name, end, f"group trainwatch-{name}", frozenset(), "a group", None)
                outcomes.append(Outcome(name, run_name, disagreements=[missing]))
            else:
                window = Window(run_name, start, end, unseen, restarted)
                outcomes.append(check_rule(server, heuristic, options.scraping, interval, window))
    return outcomes


def _print_verdict(outcomes: Sequence[Outcome]) -> None:
    wrong = sorted({outcome.rule for outcome in outcomes if outcome.disagreements})
    evaluated = {outcome.rule for outcome in outcomes if outcome.evaluations}
    unevaluated = sorted({outcome.rule for outcome in outcomes} - evaluated - set(wrong))
    if unevaluated:
        print(f"Not evaluated in that time, or nothing to judge: {', '.join(unevaluated)}.")
    print(f"Disagreements: {', '.join(wrong)}." if wrong else "No disagreement.")
