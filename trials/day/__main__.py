"""Simulates a day of a healthy shared cluster, and prints which alerts and notifications it sends."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.prometheus.crosscheck.offline.prometheus import local_prometheus
from stepscope.report.terminal import shown

from benchmarks.page import RESULTS, markdown, read_table, write_table
from trials.day import faults, incidents
from trials.day.faults import plant, search
from trials.day.jobs import DAY, HELD_BACK, HOUR, NODES, TUNING, Day, make_day
from trials.day.node import scraped
from trials.day.notifications import Alert, Alertmanager
from trials.day.rules import Reads, that_alert
from trials.day.score import DAYS, HEAD, ORIGINS, Result, origins, rows
from trials.day.store import write
from trials.shared_cluster.judge import firing, intervals, rule_groups

PAGE = RESULTS
ALERTMANAGER = Path(__file__).parents[2] / "alertmanager" / "alertmanager.yml"
INFORMATION = "information"  # the receiver that interrupts nobody
RESENT = 900.0  # seconds for which Prometheus sends a resolved alert again

EXAMPLES = """\
examples:
  python -m trials.day                      a day, scraped every 15 s: some minutes
  python -m trials.day --interval 60        the same, scraped every minute, with the rules for that
  python -m trials.day --hours 1 --nodes 4  a small cluster for an hour: some seconds
  python -m trials.day --held-back          the seeds that no rule was tuned with, at 15, 30 and 60 s
  python -m trials.day --faults             with 12 planted faults: which are found, and when
  python -m trials.day --incidents          what an upgrade, an outage and the like send
  python -m trials.day --incidents drain    the same of one of them; the page keeps the others
  python -m trials.day --markdown           also write the table into trials/README.md

The exit status is 1 if more is sent than 2 notifications to the platform and 1 to owners per 100 GPU-days,
something critical is sent, or a planted fault is not found.
"""


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _simulated(arguments)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except UserError as error:
        _say(str(error))
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trials.day",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--interval",
        type=int,
        choices=(15, 30, 60),
        default=15,
        help="seconds between scrapes (default: %(default)s)",
    )
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument(
        "--seed",
        type=int,
        default=TUNING[0],
        help=f"{TUNING[0]} to {TUNING[-1]} are for tuning (default: %(default)s)",
    )
    seeds.add_argument("--held-back", action="store_true", help="the seeds held back, one per interval")
    parser.add_argument(
        "--hours", type=float, default=DAY / HOUR, help="length of the simulation (default: %(default)g)"
    )
    parser.add_argument("--nodes", type=int, default=NODES, help="at least 4 (default: %(default)s)")
    planted = parser.add_mutually_exclusive_group()
    planted.add_argument("--faults", action="store_true", help="plant faults")
    planted.add_argument(
        "--incidents",
        nargs="*",
        choices=incidents.INCIDENTS,
        metavar="NAME",
        help="a day with each incident, such as an upgrade or an outage (default: all of them)",
    )
    parser.add_argument("--markdown", action="store_true", help=f"also write the table into {PAGE.name}")
    return parser


def _simulated(arguments: argparse.Namespace) -> int:
    seconds = arguments.hours * HOUR
    make = partial(make_day, seconds=seconds, nodes=arguments.nodes)
    if arguments.incidents is not None:
        return _with_incidents(arguments, make)
    days = (
        [make(seed, interval) for seed, interval in zip(HELD_BACK, (15, 30, 60), strict=True)]
        if arguments.held_back
        else [make(arguments.seed, arguments.interval)]
    )
    results = []
    for day in days:
        results.append(simulate(plant(day) if arguments.faults else day))
        print("\n".join(["", *markdown(ORIGINS, origins(results[-1])), ""]))
    found = [(result.day.seed, each) for result in results for each in search(result)]
    tables = [
        *markdown(DAYS, [result.row() for result in results]),
        "",
        *markdown(HEAD, rows(results)),
    ]
    if arguments.faults:
        tables = markdown(faults.HEAD, [each.row(seed) for seed, each in found])
    print("\n".join(tables))
    if arguments.markdown:
        write_table(PAGE, _command(arguments), tables, name="planted" if arguments.faults else "day")
    holds = [each.holds for _, each in found] if arguments.faults else [result.holds for result in results]
    return int(not all(holds))


def _with_incidents(arguments: argparse.Namespace, make: Callable[..., Day]) -> int:
    """Prints what is sent on days that differ only by an incident, and what is known of the others."""
    found = {row[0]: tuple(row) for row in read_table(PAGE, "incidents")}
    for name in arguments.incidents or incidents.INCIDENTS:
        day = make(arguments.seed, arguments.interval)
        incidents.INCIDENTS[name].befall(day)
        found[name] = incidents.row(name, simulate(day))
    table = markdown(incidents.HEAD, [found[name] for name in incidents.INCIDENTS if name in found])
    print("\n".join(table))
    if arguments.markdown:
        write_table(PAGE, f"{_command(arguments)} --incidents", table, name="incidents")
    return 0


def _command(arguments: argparse.Namespace) -> str:
    """Returns the command that measured, for the page."""
    words = ["--held-back"] if arguments.held_back else [f"--seed {arguments.seed}"]
    if not arguments.held_back:
        words.append(f"--interval {arguments.interval}")
    if arguments.hours != DAY / HOUR:
        words.append(f"--hours {arguments.hours:g}")
    if arguments.nodes != NODES:
        words.append(f"--nodes {arguments.nodes}")
    return " ".join(["python -m trials.day", *words, *(["--faults"] if arguments.faults else [])])


def simulate(day: Day) -> Result:
    """Returns the alerts of a day, and what is sent about them."""
    begin = time.monotonic()

    def say(text: str) -> None:
        _say(f"seed {day.seed}, {day.interval} s: {text} after {time.monotonic() - begin:.0f} s")

    groups = that_alert(rule_groups(day.interval))
    reads = Reads(groups)
    with local_prometheus() as store:
        with ProcessPoolExecutor(2) as pool:
            nodes = list(pool.map(partial(scraped, day, read=reads), range(len(day.nodes))))
        say(f"{len(day.jobs):,} jobs simulated")
        with shown("per cent of the scrapes stored", 100) as progress:
            count = write(store, nodes, progress)
        del nodes
        say(f"{count:,} samples stored")
        fired = firing(store, groups, day.seconds)
    apart = intervals(groups)
    # An alert that fired at an evaluation for the last time is resolved at the next one.
    alerts = [
        Alert(each.labels, each.begin, each.end + apart[each.labels["alertname"]] / 1000) for each in fired
    ]
    manager = Alertmanager(ALERTMANAGER.read_text(encoding="utf-8"), RESENT)
    sent = [each for each in manager.notifications(alerts, day.seconds) if each.receiver != INFORMATION]
    result = Result(day, alerts, sent)
    say(f"{len(alerts):,} alerts and {len(result.notifications):,} notifications")
    return result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
