"""`stepscope stacks`: where each rank of a run on this node is now, and its Python stack."""

import time
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from stepscope.commands.ledgers_of_run import add_ledger_dir, ledgers_of_run
from stepscope.common.errors import UserError
from stepscope.common.words import duration, in_columns, listing
from stepscope.exporter.ledgers.presence import main_thread_state
from stepscope.exporter.ledgers.run_processes import RunProcesses
from stepscope.exporter.ledgers.run_totals import Ledger
from stepscope.exporter.processes.stacks import NoStackError, printable, python_stack
from stepscope.training.stack_request import VARIABLE

PROCFS = Path("/proc")
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
    add_ledger_dir(parser)


def run(arguments: Namespace) -> int:
    """Prints the table and the stacks. Returns 1 if a stack could not be taken. Raises UserError."""
    with ExitStack() as stack:
        ledgers = ledgers_of_run(arguments.run, arguments.ledger_dir, stack)
        RunProcesses(PROCFS).of(ledgers, {each.key: each.key.run for each in ledgers})  # finds their pids
        print(*in_columns([HEADINGS, *map(_row, ledgers)], words=len(HEADINGS)), sep="\n")
        known = {each.header.rank: each for each in ledgers}
        for rank in arguments.rank or ():
            if rank not in known:
                ranks = listing(list(map(str, known)))
                raise UserError(f"--rank {rank}: not on this node; the ranks here are {ranks}")
        if not arguments.stacks:
            return 0
        wanted = [known[rank] for rank in dict.fromkeys(arguments.rank or known)]
        return max([_print_stack(each) for each in wanted if each.alive], default=0)


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
