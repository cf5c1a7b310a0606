"""`trainwatch crosscheck`: did Prometheus's rules say what the raw counters say?"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from trainwatch.crosscheck.compare import Outcome, Window
from trainwatch.crosscheck.offline.check import check_recording
from trainwatch.crosscheck.recompute import CHECKED
from trainwatch.crosscheck.rendered import rendered
from trainwatch.crosscheck.replay.run import RecordedRun
from trainwatch.crosscheck.runs import check_rules
from trainwatch.crosscheck.server import Milliseconds, Server
from trainwatch.crosscheck.table import disagreements, summary
from trainwatch.errors import UserError
from trainwatch.rules.options import Options

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
  trainwatch crosscheck --recording trainwatch-runs/resnet-1       without a server: of a recorded run

The exit status is 1 where anything disagrees.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of `trainwatch crosscheck`."""
    parser.epilog = EXAMPLES
    parser.add_argument("--prometheus", metavar="URL", help="such as http://localhost:9090")
    parser.add_argument(
        "--recording",
        type=Path,
        metavar="DIR",
        help="the recording of a run, to be played back where there is no --prometheus "
        "(needs prometheus and promtool on the PATH)",
    )
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
    rules = rendered(arguments.rules)
    recorded = RecordedRun(arguments.recording) if arguments.recording else None
    if recorded and arguments.run not in (None, recorded.name):
        raise UserError(f"--run {arguments.run}: the recording is of {recorded.name}; leave --run out")
    if arguments.prometheus:
        with Server(arguments.prometheus) as server:
            outcomes = _check_server(server, rules.options, arguments)
    elif recorded:
        outcomes = check_recording(recorded, rules, arguments.start, arguments.end)
    else:
        raise UserError("give --prometheus URL, --recording DIR, or both")
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


def _check_server(server: Server, options: Options, arguments: Namespace) -> list[Outcome]:
    end = server.now() - SETTLED
    if arguments.end is not None:
        end = min(end, arguments.end)
    start = arguments.start if arguments.start is not None else end - HOUR
    if start >= end:
        raise UserError("--start is not before --end, or lies in the last seconds; give an earlier one")
    intervals = server.intervals()
    if not any(f"trainwatch-{rule}" in intervals for rule in CHECKED):
        raise UserError("Prometheus has none of Trainwatch's rules; load rules/*.yml into it (docs/rules.md)")
    unseen = round(1000 * server.longest_scrape(start, end)) + STORED
    windows = [
        Window(name, start, end, unseen, server.started())
        for name in _runs(server, arguments.run, start, end)
    ]
    return check_rules(server, options, intervals, windows)


def _runs(server: Server, name: str | None, start: Milliseconds, end: Milliseconds) -> list[str]:
    runs = server.runs(start, end)
    if name is None and not runs:
        raise UserError("Prometheus has no run's samples in that time; give another --start and --end")
    if name is not None and name not in runs:
        there = f"there are {', '.join(runs)}" if runs else "there is none"
        raise UserError(f"--run {name}: Prometheus has no samples of it in that time; {there}")
    return runs if name is None else [name]


def _print_verdict(outcomes: Sequence[Outcome]) -> None:
    wrong = sorted({outcome.rule for outcome in outcomes if outcome.disagreements})
    evaluated = {outcome.rule for outcome in outcomes if outcome.evaluations}
    unevaluated = sorted({outcome.rule for outcome in outcomes} - evaluated - set(wrong))
    if unevaluated:
        print(f"Not evaluated in that time, or nothing to judge: {', '.join(unevaluated)}.")
    print(f"Disagreements: {', '.join(wrong)}." if wrong else "No disagreement.")
