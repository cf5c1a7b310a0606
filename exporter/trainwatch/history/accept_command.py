"""`trainwatch accept`: accepts a finding of a run until a date, lists what is accepted, and takes it back."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from trainwatch.accepted import NAME, Acceptance, AcceptedFile, checked, write_accepted
from trainwatch.console import Console
from trainwatch.errors import UserError
from trainwatch.evaluation.acceptance import rules_that_fire
from trainwatch.runs.recording.files import RUNS
from trainwatch.words import NO_NUMBER, in_columns

HEADINGS = ("Rule", "Run", "Until", "State", "By", "Reason")
EXAMPLES = """\
examples:
  trainwatch accept CPUBottleneck --run resnet --reason "the new loader comes in January" --until 2026-12-31
  trainwatch accept --list
  trainwatch accept CPUBottleneck --run resnet --remove

An accepted finding is measured and shown as before. It decides neither the verdict nor `compare --fail-if`,
and its alerts notify nobody if the exporters read the file (--accepted.file). After its end it counts again.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `trainwatch accept`."""
    parser.epilog = EXAMPLES
    parser.add_argument("rule", nargs="?", metavar="RULE", help="the rule, as CPUBottleneck")
    parser.add_argument("--run", metavar="NAME", help="the run (one launch), or the name of all its runs")
    parser.add_argument("--reason", metavar="TEXT", help="why it is accepted; everybody sees it")
    parser.add_argument(
        "--until",
        metavar="DATE",
        help="its last day in UTC, as 2026-12-31, or a time with its zone, as 2026-12-31T18:00:00Z",
    )
    parser.add_argument("--by", metavar="WHO", default="", help="who accepts it; everybody sees it")
    parser.add_argument("--list", action="store_true", help="list what is accepted, and what has ended")
    parser.add_argument("--remove", action="store_true", help="take an acceptance back")
    parser.add_argument(
        "--file",
        type=Path,
        default=RUNS / NAME,
        metavar="FILE",
        help="the file of accepted findings (default: %(default)s)",
    )


def run(arguments: Namespace) -> int:
    """Changes or lists the file. Raises UserError, and then changes nothing."""
    entries = AcceptedFile(arguments.file, rules_that_fire()).entries()
    if arguments.list:
        _print(entries, Console(sys.stdout), arguments.file)
        return 0
    if arguments.rule is None or arguments.run is None:
        raise UserError("accept: give RULE and --run NAME, or --list; see `trainwatch accept --help`")
    others = [entry for entry in entries if (entry.rule, entry.run) != (arguments.rule, arguments.run)]
    if arguments.remove:
        if len(others) == len(entries):
            raise UserError(
                f"{arguments.file}: {arguments.rule} of {arguments.run} is not accepted; "
                "`trainwatch accept --list` lists what is"
            )
        write_accepted(arguments.file, others)
        print(f"{arguments.rule} of {arguments.run} is no longer accepted ({arguments.file}).")
        return 0
    entry = _new(arguments)
    write_accepted(arguments.file, [*others, entry])
    print(f"{entry.rule} of {entry.run} is {entry.words} ({arguments.file}).")
    return 0


def _new(arguments: Namespace) -> Acceptance:
    for name in ("reason", "until"):
        if not getattr(arguments, name):
            raise UserError(f"accept: --{name} is missing; an acceptance needs a reason and an end")
    values = {name: getattr(arguments, name) for name in ("rule", "run", "reason", "until", "by")}
    entry = checked({name: value for name, value in values.items() if value}, "accept", rules_that_fire())
    if entry.end <= time.time():
        raise UserError(f"accept: --until {entry.until} is in the past; give a later date")
    return entry


def _print(entries: Sequence[Acceptance], console: Console, file: Path) -> None:
    if not entries:
        console.write(f"Nothing is accepted in {file}.")
        return
    now = time.time()
    rows = [
        (
            entry.rule,
            entry.run,
            entry.until,
            "accepted" if now < entry.end else "ended, counts again",
            entry.by or NO_NUMBER,
            entry.reason,
        )
        for entry in entries
    ]
    console.write(*in_columns([HEADINGS, *rows], words=len(HEADINGS)))
