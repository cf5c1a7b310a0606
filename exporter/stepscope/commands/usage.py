"""`stepscope usage`: the GPU hours of each user and namespace, from what Prometheus has recorded."""

import csv
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Literal

from stepscope.commands.crosscheck import moment
from stepscope.common.errors import UserError
from stepscope.common.words import NO_NUMBER, machine_time, money, number
from stepscope.prometheus.usage import HOUR, STATES, OwnerUsage, Usage, read_usage
from stepscope.report.markdown_text import plain, table
from stepscope.report.terminal import add_price, shown
from stepscope.runs.prometheus.address import Access, without_secrets
from stepscope.runs.prometheus.api import Api

WEEK = 7
MILLISECONDS = 1000
PAGE = "docs/usage.md"
LEAST = 0.05  # hours; less is not worth a note
ALLOCATION = f"scrape kube-state-metrics (Kubernetes) or slurm_exporter (Slurm), see {PAGE}"
UNUSED = ("idle", "without_process")
DIGITS = 4  # after the point, in CSV
Row = tuple[str, ...]
Cell = Callable[[OwnerUsage], float | None]
Words = Callable[[float], str]
EXAMPLES = """\
examples:
  stepscope usage --prometheus http://localhost:9090 --week
  stepscope usage --prometheus http://localhost:9090 --week --price 2.50
  stepscope usage --prometheus http://localhost:9090 --days 30 --end 2026-12-01T00:00:00Z
  stepscope usage --prometheus http://localhost:9090 --format csv > usage.csv

GPU hours, of which Held = Used + Idle. Useful and Failed are parts of Held. A dash is not known, never 0.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope usage`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--prometheus",
        required=True,
        metavar="URL",
        help="such as http://localhost:9090, or of Mimir, Thanos or VictoriaMetrics (docs/readers.md)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--week", dest="days", action="store_const", const=WEEK, help="the last 7 days (default)"
    )
    length.add_argument("--days", type=_days, metavar="N", help="the last N days")
    parser.add_argument(
        "--end",
        type=moment,
        metavar="TIME",
        help="such as 2026-11-23T00:00:00Z, or seconds since 1970 (default: now)",
    )
    parser.add_argument(
        "--format",
        choices=("markdown", "csv"),
        default="markdown",
        help="how to print it (default: markdown)",
    )
    add_price(parser, of="a GPU")
    parser.set_defaults(days=WEEK)


def run(arguments: Namespace) -> int:
    """Prints the usage. Raises UserError if the server does not answer, or has recorded nothing."""
    url = without_secrets(arguments.prometheus)
    with closing(Api(Access.of_flag("--prometheus", arguments.prometheus))) as api:
        now = api.now()
        end = now if arguments.end is None else min(arguments.end / MILLISECONDS, now)
        with shown("Reading days", arguments.days) as progress:
            usage = read_usage(api, end, arguments.days, progress)
        for warning in api.warnings:
            print(f"stepscope: the server's answers may be incomplete: {warning}", file=sys.stderr)
    if not usage.observed:
        raise UserError(
            f"{url}: has recorded no GPUs from {_time(usage.start)} to {_time(usage.end)}; load "
            f"rules/stepscope-usage.yml of this version (docs/rules.md), or give another --end"
        )
    if arguments.format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(_csv(usage, arguments.price))
    else:
        print("\n".join(_markdown(usage, arguments.price)))
    return 0


def _days(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise ArgumentTypeError(f"{text!r} is not a number of days: give 1 to 9999, as in 30")
    return int(text)


def _time(seconds: float) -> str:
    return machine_time(seconds, "minutes")


def _csv(usage: Usage, price: float | None) -> Iterator[Row]:
    """Yields a row per user, namespace and state; an empty cell is not known."""

    def row(user: str, namespace: str, state: str, hours: float | None, kwh: float | None = None) -> Row:
        dollars = None if price is None or hours is None else hours * price
        amounts = ("" if each is None else f"{each:.6g}" for each in (hours, kwh, dollars))
        return (user, namespace, state, *amounts)

    yield "user", "namespace", "state", "gpu_hours", "kwh", "dollars"
    for owner in usage.owners:
        for state in STATES:
            amount = owner.amounts[state]
            yield row(owner.user, owner.namespace, state, amount.hours, amount.kwh)
    yield row("", "", "observed", usage.observed)
    yield row("", "", "not_observed", usage.not_observed)


def _markdown(usage: Usage, price: float | None) -> Iterator[str]:
    """Yields a table of GPU hours, and below it what is not known, with how to find out."""
    yield f"# GPU hours from {_time(usage.start)} to {_time(usage.end)}"
    yield ""
    columns: list[tuple[str, Cell, Words]]
    columns = [
        (state.replace("_", " ").capitalize(), partial(_hours, state=state), number) for state in STATES
    ]
    columns += [
        ("kWh", lambda owner: _allocated(owner, "kwh"), number),
        ("kWh of useful", lambda owner: owner.amounts["useful"].kwh, number),
        ("kWh of idle", lambda owner: _sum(owner.amounts[state].kwh for state in UNUSED), number),
    ]
    if price is not None:
        columns += [
            ("Cost", lambda owner: _times(price, _allocated(owner, "hours")), money),
            ("Cost of useful", lambda owner: _times(price, owner.amounts["useful"].hours), money),
            (
                "Cost of idle",
                lambda owner: _times(price, _sum(owner.amounts[state].hours for state in UNUSED)),
                money,
            ),
        ]
    rows = [
        (
            plain(owner.user) or NO_NUMBER,
            plain(owner.namespace) or NO_NUMBER,
            *(_written(cell(owner), words) for _, cell, words in columns),
        )
        for owner in usage.owners
    ]
    totals = (_written(_sum(map(cell, usage.owners)), words) for _, cell, words in columns)
    header = ("User", "Namespace", *(title for title, _, _ in columns))
    yield table(header, [*rows, ("all", "", *totals)], right=range(2, len(header)))
    yield ""
    yield from (f"- {note}" for note in _notes(usage))


def _hours(owner: OwnerUsage, state: str) -> float | None:
    return owner.amounts[state].hours


def _allocated(owner: OwnerUsage, amount: Literal["hours", "kwh"]) -> float | None:
    """Returns the hours or the energy of what is allocated; of what is held if that is not known."""
    allocated, held = (getattr(owner.amounts[state], amount) for state in ("allocated", "held"))
    found: float | None = held if allocated is None else allocated
    return found


def _notes(usage: Usage) -> Iterator[str]:
    whole = (usage.end - usage.start) / HOUR
    yield f"Observed: {number(usage.observed)} GPU hours."
    if usage.not_observed > LEAST:
        yield (
            f"Not observed: {number(usage.not_observed)} GPU hours, which are in no column. Exporters were "
            "not scraped, rules not evaluated, or nodes not there: see the board Exporter health."
        )
    if usage.not_compared is None:
        yield f"Allocation unknown: {ALLOCATION}."
    elif usage.hours_without_allocation > LEAST:
        yield (
            f"No allocation was published in {number(usage.hours_without_allocation)} of {number(whole)} h: "
            "no GPU was allocated, or the scheduler's exporter was not scraped."
        )
    if usage.not_compared is not None and usage.not_compared > LEAST:
        yield (
            f"{number(usage.not_compared)} allocated GPU hours could not be compared with processes: run "
            f"`stepscope exporter` on every node with GPUs, see {PAGE}."
        )
    if usage.without_power > LEAST:
        yield (
            f"Energy is unknown for {number(usage.without_power)} GPU hours, whose GPUs reported no power, "
            "and for all that contains them."
        )
    if usage.without_account > LEAST:
        yield (
            f"Useful is unknown for {number(usage.without_account)} held GPU hours, whose steps are not "
            "measured: start these scripts with `stepscope run`, or import stepscope."
        )


def _times(price: float, hours: float | None) -> float | None:
    return None if hours is None else price * hours


def _sum(amounts: Iterable[float | None]) -> float | None:
    """Returns the sum of what is known, None if nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _written(amount: float | None, words: Words) -> str:
    return NO_NUMBER if amount is None else words(amount)
