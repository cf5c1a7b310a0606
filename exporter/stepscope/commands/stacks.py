"""`stepscope stacks`: where each rank of a run on this node is now, and its Python stack."""

from __future__ import annotations

import os
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.shared_files import entries
from stepscope.common.words import duration, listing
from stepscope.exporter.ledgers.ages import Now
from stepscope.exporter.ledgers.folder import user_name
from stepscope.exporter.ledgers.presence import main_thread_state
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.ledgers.run_processes import RunProcesses
from stepscope.exporter.ledgers.run_totals import Ledger
from stepscope.exporter.processes.stacks import NoStackError, printable, python_stack
from stepscope.training.ledger_files import SHARED_MEMORY, ledger_directory
from stepscope.training.stack_request import VARIABLE

PROCFS = Path("/proc")
OF_RUNS = "stepscope-run-"  # the directories of `stepscope run`
HEADINGS = ("rank", "process", "state", "where", "for", "steps")
EXAMPLES = f"""\
examples:
  stepscope stacks resnet                  the newest launch of the run with this name
  stepscope stacks resnet-fb6cce4c         this launch
  stepscope stacks resnet --rank 3         the stack of rank 3 only
  stepscope stacks resnet --no-stacks      only the table

A process writes its own stack if it was started with {VARIABLE}=1 (`stepscope run --stacks` sets it).
Otherwise py-spy reads it, if it is installed and permitted. Run this on the node of the rank, as its user or
as root.

The exit status is 1 if a stack could not be taken, and 2 if there is no such run.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope stacks`."""
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the run's label, or its name: then its newest launch")
    parser.add_argument(
        "--rank", type=int, action="append", help="take the stack of this rank only; may be repeated"
    )
    parser.add_argument("--no-stacks", dest="stacks", action="store_false", help="take no stacks")
    parser.add_argument(
        "--ledger-dir",
        type=Path,
        metavar="DIR",
        help=f"STEPSCOPE_LEDGER_DIR of the training processes (default: {ledger_directory()}, and those of "
        "`stepscope run`)",
    )


def run(arguments: Namespace) -> int:
    """Prints the table and the stacks. Returns 1 if a stack could not be taken. Raises UserError."""
    with ExitStack() as stack:
        ledgers = _of_run(arguments, stack)
        RunProcesses(PROCFS).of(ledgers, {each.key: each.key.run for each in ledgers})  # finds their pids
        _print_table(ledgers)
        wanted = [each for each in ledgers if arguments.rank is None or each.header.rank in arguments.rank]
        if not wanted:
            ranks = listing([str(each.header.rank) for each in ledgers])
            raise UserError(f"--rank {arguments.rank[0]}: not on this node; the ranks here are {ranks}")
        if not arguments.stacks:
            return 0
        return max([_print_stack(each) for each in wanted if each.alive], default=0)


def _of_run(arguments: Namespace, stack: ExitStack) -> list[Ledger]:
    """Returns the newest ledger of each rank of the run, by rank. Raises UserError."""
    directories = [arguments.ledger_dir] if arguments.ledger_dir else _directories()
    ledgers = [each for directory in directories for each in _ledgers(directory, stack)]
    meant = _of_one_user(ledgers, arguments.run)
    of_run = [each for each in meant if each.header.run == arguments.run]
    if not of_run:
        newest = max(meant, key=lambda each: (each.alive, each.header.start), default=None)
        of_run = [each for each in meant if newest is not None and each.header.run == newest.header.run]
    if not of_run:
        runs = sorted({each.header.run for each in ledgers})
        there = f"the runs there are {listing(runs)}" if runs else "no run has a ledger there"
        looked = listing([str(directory) for directory in directories])
        raise UserError(f"there is no run {arguments.run!r} in {looked}: {there}; --ledger-dir names another")
    newest_first = sorted(of_run, key=lambda each: each.header.start)
    return [ledger for _, ledger in sorted({each.header.rank: each for each in newest_first}.items())]


def _of_one_user(ledgers: list[Ledger], run: str) -> list[Ledger]:
    """Returns the ledgers that `run` may mean: another user may give a run the same label or name.

    Those of this user go first. RUN@USER names the user, as the exporter does. Raises UserError.
    """
    name, at, user = run.rpartition("@")
    found = [each for each in ledgers if run in (each.header.run, each.header.name)]
    if at and not found:
        named = [each for each in ledgers if name in (each.header.run, each.header.name)]
        found = [each for each in named if user in (user_name(each.key.owner), str(each.key.owner))]
    owners = sorted({each.key.owner for each in found})
    if len(owners) > 1 and os.geteuid() not in owners:
        users = listing(list(map(user_name, owners)))
        raise UserError(
            f"users {users} have a run {run!r}: name one of them, as in {run}@{user_name(owners[0])}"
        )
    owner = os.geteuid() if os.geteuid() in owners else next(iter(owners), None)
    return [each for each in found if each.key.owner == owner]


def _directories() -> list[Path]:
    found = [Path(ledger_directory())]
    for folder in sorted({SHARED_MEMORY, tempfile.gettempdir()}):
        with suppress(OSError):
            names = sorted(each.name for each in entries(folder) if each.name.startswith(OF_RUNS))
            found += [Path(folder, name) for name in names]
    return found


def _ledgers(directory: Path, stack: ExitStack) -> Iterator[Ledger]:
    """Yields the ledgers that can be read, with what their processes did at this moment."""
    with suppress(OSError):
        for path in open_ledgers(directory):
            with suppress(LedgerError, OSError):
                ledger = Ledger(stack.enter_context(LedgerReader(path)), counts_losses=False)
                ledger.read(Now(time.time(), time.monotonic()))
                yield ledger


def _print_table(ledgers: list[Ledger]) -> None:
    rows = [HEADINGS, *map(_row, ledgers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(ledger: Ledger) -> tuple[str, ...]:
    now, ages = time.monotonic(), ledger.ages
    steps = str(ledger.totals.steps_recorded)
    rank, pid = str(ledger.header.rank), str(ledger.pid or ledger.header.pid)
    if not ledger.alive:
        return rank, pid, "dead" if ledger.totals.end is None else "ended", "", "", steps
    state = main_thread_state(PROCFS, ledger.pid) or "unknown"
    if ages.place is None:
        return rank, pid, state, f"phase {ages.phase}", duration(now - ages.phase_began), steps
    component, operation, _ = ages.place
    where = f"{component}: {operation}" if operation else component
    return rank, pid, state, where, duration(now - ages.place_began), steps


def _print_stack(ledger: Ledger) -> int:
    """Prints the stack of a living rank. Returns 1 if it could not be taken."""
    title = f"rank {ledger.header.rank} (process {ledger.pid or ledger.header.pid})"
    try:
        if ledger.pid is None:
            raise NoStackError("its process is not in sight: run this on its node, outside its container")
        text = python_stack(ledger.pid, ledger.reader.path, ledger.key.owner, PROCFS)
    except NoStackError as error:
        print(f"\n{title}: no stack: {printable(str(error))}")
        return 1
    print(f"\n{title}:\n{text.rstrip()}")
    return 0
