"""The ledgers of a run on this node, for commands that name it."""

import os
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.shared_files import entries
from stepscope.common.users import user_name
from stepscope.common.words import listing
from stepscope.exporter.ledgers.ages import Now
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.ledgers.run_totals import Ledger
from stepscope.training.ledger_files import SHARED_MEMORY, ledger_directory

OF_RUNS = "stepscope-run-"  # the directories of `stepscope run`


def add_ledger_dir(parser: ArgumentParser) -> None:
    """Adds `--ledger-dir`."""
    parser.add_argument(
        "--ledger-dir",
        type=Path,
        metavar="DIR",
        help=f"STEPSCOPE_LEDGER_DIR of the training processes (default: {ledger_directory()}, and those of "
        "`stepscope run`)",
    )


def ledgers_of_run(run: str, ledger_dir: Path | None, stack: ExitStack) -> list[Ledger]:
    """Returns the newest ledger of each rank of the run, by rank. Raises UserError."""
    directories = [ledger_dir] if ledger_dir else _directories()
    ledgers = [each for directory in directories for each in _ledgers(directory, stack)]
    meant = _of_one_user(ledgers, run)
    of_run = [each for each in meant if each.header.run == run]
    if not of_run:
        newest = max(meant, key=lambda each: (each.alive, each.header.start), default=None)
        of_run = [each for each in meant if newest is not None and each.header.run == newest.header.run]
    if not of_run:
        runs = sorted({each.header.run for each in ledgers})
        there = f"the runs there are {listing(runs)}" if runs else "no run has a ledger there"
        looked = listing([str(directory) for directory in directories])
        raise UserError(f"there is no run {run!r} in {looked}: {there}; --ledger-dir names another")
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
