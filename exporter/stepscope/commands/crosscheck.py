"""`stepscope crosscheck`: compares what Prometheus's rules decided with the raw counters."""

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.words import in_columns, machine_time, number
from stepscope.prometheus.crosscheck.compare import Disagreement, Outcome, check_rules
from stepscope.prometheus.crosscheck.hardware import check_hardware
from stepscope.prometheus.crosscheck.offline.check import check_recording
from stepscope.prometheus.crosscheck.replay.run import RecordedRun
from stepscope.prometheus.crosscheck.rule_files import CHECK, hardware_of, rendered, rules_of
from stepscope.prometheus.crosscheck.server import Milliseconds, Server
from stepscope.prometheus.crosscheck.stored import Window, scrape_times
from stepscope.prometheus.rules.options import Options
from stepscope.report.markdown_text import one_line
from stepscope.report.sentences import gaps
from stepscope.rules import all_rules
from stepscope.runs.prometheus.address import moment as seconds_of
from stepscope.runs.prometheus.api import newest_of

LISTED = 20  # disagreements of a rule; the table counts all of them
HEADINGS = ("rule", "run", "evaluations", "firing", "values", "by last scrape", "disagreements")
HOUR = 3_600_000
# The latest evaluation may be stored only in part: a rule's alerts are written after its records.
SETTLED = 5_000

EXAMPLES = """\
examples:
  stepscope crosscheck --prometheus http://localhost:9090
  stepscope crosscheck --prometheus http://localhost:9090 --run resnet --start 2026-11-20T12:00:00Z
  stepscope crosscheck --prometheus http://localhost:9090 --rules /etc/prometheus/rules/stepscope.yml
  stepscope crosscheck --prometheus http://victoriametrics:8428 --ruler http://prometheus:9090
  stepscope crosscheck --recording stepscope-runs/resnet-1       without a server

The exit status is 1 if anything disagrees. With --strict it is 3 if nothing does, but a rule never fired.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope crosscheck`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="such as http://localhost:9090, or of Mimir, Thanos or VictoriaMetrics (docs/readers.md)",
    )
    parser.add_argument(
        "--ruler",
        metavar="URL",
        help="the server that evaluates the rules, if that is another one",
    )
    parser.add_argument(
        "--recording",
        type=Path,
        metavar="DIR",
        help="the recording of a run: it is replayed into a temporary Prometheus (prometheus must be on the "
        "PATH)",
    )
    parser.add_argument(
        "--run",
        help="the run to check, or a name, which means its newest launch (default: every run of that time)",
    )
    parser.add_argument(
        "--start",
        type=moment,
        metavar="TIME",
        help="such as 2026-11-20T12:00:00Z, or seconds since 1970 (default: an hour before the end)",
    )
    parser.add_argument("--end", type=moment, metavar="TIME", help="in the same form (default: now)")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with status 3 if some rule never fired: then its thresholds were not tested",
    )
    parser.add_argument(
        "--rules",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="the rendered rule files that Prometheus has loaded; their headers name the parameters "
        "(default: what `stepscope rules render` writes without flags)",
    )


def run(arguments: Namespace) -> int:
    """Prints disagreements and tables; returns 1 if there are any. Raises UserError for the user's errors."""
    rules = rendered(arguments.rules)
    if (arguments.prometheus is None) == (arguments.recording is None):
        raise UserError("give either --prometheus URL or --recording DIR")
    if arguments.recording and rules.options.speed != 1:
        raise UserError("--rules were rendered with --speed, for a demo; a recording needs rules without it")
    hardware: list[Outcome] = []  # recordings do not have its counters
    if arguments.recording:
        recorded = RecordedRun(arguments.recording)
        if arguments.run not in (None, recorded.name, recorded.facts.name):
            raise UserError(f"--run {arguments.run}: the recording is of {recorded.name}; leave --run out")
        outcomes = check_recording(recorded, rules, arguments.start, arguments.end)
        for line in gaps(recorded.facts.gaps):
            print(one_line(line))
    else:
        with Server(arguments.prometheus, arguments.ruler) as server:
            outcomes, hardware = _check_server(server, rules.options, arguments)
            for warning in server.warnings:
                print(f"The server's answers may be incomplete. It warns: {warning}")
    every = [*outcomes, *hardware]
    for outcome in every:
        for line in disagreements(outcome.disagreements):
            print(line)
    for line in summary(every):
        print(line)
    wrong = sorted({outcome.rule for outcome in every if outcome.disagreements})
    if silent := sorted({each.rule for each in hardware if not each.firing} - {*wrong}):
        print(f"Alerts on hardware that never fired, or are not loaded: {', '.join(silent)}.")
    untested = _print_verdict(outcomes, wrong)
    return 1 if wrong else 3 if arguments.strict and untested else 0


def moment(text: str) -> Milliseconds:
    """Returns the time of a flag. Raises ArgumentTypeError if it is not a time."""
    try:
        return round(1000 * seconds_of(text))
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} must be a time such as 2026-11-20T12:00:00Z, or seconds since 1970"
        ) from None


def _check_server(
    server: Server, options: Options, arguments: Namespace
) -> tuple[list[Outcome], list[Outcome]]:
    """Returns the outcomes of runs, and those of alerts on hardware, which healthy nodes never raise."""
    start, end = _time(server, arguments)
    loaded = server.pace()
    if not any(f"stepscope-{rule}" in loaded for rule in all_rules()):
        elsewhere = "" if arguments.ruler else ", or name the server that has with --ruler URL"
        raise UserError(
            f"Prometheus has loaded no rules of Stepscope; load rules/*.yml (docs/rules.md){elsewhere}"
        )
    if server.decides_later():
        raise UserError(
            "the loaded rules were rendered with --engine thanos or victoriametrics, so they decide an "
            "evaluation later; check the same rules on a recorded run: `stepscope rules render --out DIR`, "
            f"then `{CHECK}`"
        )
    runs = _runs(server, arguments.run, start, end)
    windows = [
        Window(run, start, end, scrape_times(server, run, start, end), server.started(), options.speed)
        for run in runs
    ]
    return (
        check_rules(server, options, rules_of(options), loaded, windows),
        check_hardware(server, hardware_of(options), loaded, start, end),
    )


def _time(server: Server, arguments: Namespace) -> tuple[Milliseconds, Milliseconds]:
    """Returns the checked time: the last hour by default, and no later than now."""
    settled = server.now() - SETTLED
    end: Milliseconds = settled if arguments.end is None else min(settled, arguments.end)
    start: Milliseconds = end - HOUR if arguments.start is None else arguments.start
    if start >= end:
        raise UserError("--start is not before --end, or within the last 5 s; give an earlier one")
    return start, end


def _runs(server: Server, name: str | None, start: Milliseconds, end: Milliseconds) -> list[str]:
    runs = server.runs(start, end)
    if name is None and not runs:
        raise UserError("Prometheus has no samples of a run in that time; give another --start and --end")
    if name is not None and name not in runs:
        if starts := server.launches(name, start, end):
            run, earlier = newest_of(name, starts)
            if earlier:
                print(earlier)
            return [run]
        known = f"it has {', '.join(runs)}" if runs else "it has no other run either"
        raise UserError(f"--run {name}: Prometheus has no samples of it in that time; {known}")
    return runs if name is None else [name]


def _print_verdict(outcomes: Sequence[Outcome], wrong: Sequence[str]) -> list[str]:
    """Prints what disagrees and what was not tested. Returns the rules that never fired."""
    fired = {outcome.rule for outcome in outcomes if outcome.firing}
    evaluated = {outcome.rule for outcome in outcomes if outcome.evaluations}
    unevaluated = sorted({outcome.rule for outcome in outcomes} - evaluated - set(wrong))
    if unevaluated:
        print(f"Not evaluated in that time, or nothing to judge: {', '.join(unevaluated)}.")
    untested = sorted(evaluated - fired - set(wrong))
    if untested:
        print(f"Threshold not tested, because the rule never fired: {', '.join(untested)}.")
    print(f"Disagreements: {', '.join(wrong)}." if wrong else "No disagreement.")
    return sorted({*untested, *unevaluated})


def disagreements(found: Sequence[Disagreement]) -> Iterator[str]:
    """Yields one line per disagreement of a rule, the earliest first."""
    yield from map(_line, found[:LISTED])
    if (more := len(found) - LISTED) > 0:
        yield f"{found[0].rule}: and {more} more"


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields a table with one line per rule and run."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for outcome in outcomes:
        counts = (outcome.evaluations, outcome.firing, outcome.values, outcome.by_last_scrape)
        rows.append((outcome.rule, outcome.run, *map(number, (*counts, len(outcome.disagreements)))))
    yield from in_columns(rows, 2)


def _line(found: Disagreement) -> str:
    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(found.labels))
    series = f"{found.series}{{{labels}}}" if labels else found.series
    return (
        f"{found.rule}: {machine_time(found.time / 1000, 'milliseconds')} {series}: "
        f"expected {_shown(found.expected)}, Prometheus has {_shown(found.recorded)}"
    )


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else f"{value:.15g}"
