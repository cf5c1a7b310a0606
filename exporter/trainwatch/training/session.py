"""The run of this process: its start, its end, forks, and errors of its ledger.

Nothing here ever raises into training because of the ledger: if it cannot be made, one line on stderr
says so and training continues unrecorded.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import allocate_lock

from trainwatch.training.ledger import Ledger, create_ledger
from trainwatch.training.ledger_files import ledger_directory
from trainwatch.training.ranks import Ranks, read_ranks, read_run_name
from trainwatch.training.recorder import make_recorder

WORKER_OF = "TRAINWATCH_WORKER_OF"  # environment variable: the ledger that child processes count in

_FRAMEWORKS = (("torch", "pytorch"), ("tensorflow", "tensorflow"), ("jax", "jax"))


class Session:
    """The state of this process's run. The only instance is `session`."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None  # of this process: it writes the steps
        self.parents_ledger: Ledger | None = None  # of the process from which this one was forked
        self.settled = False  # whether it is decided if this process records
        self.lock = allocate_lock()
        self.complained: set[str] = set()


session = Session()


def start(
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    framework: str | None = None,
    framework_version: str | None = None,
) -> None:
    """Starts this process's part of a run. Optional: the first use of any other function does the same.

    Arguments that are not given are read from the environment (see docs/training.md). If the run has
    started already, only the framework is used. A forked child starts its own run.
    """
    with session.lock:
        if session.ledger is None:
            _start(run, rank, world_size, local_rank)
        if session.ledger is not None and framework is not None:
            session.ledger.name_framework(framework, framework_version or "")


def start_run() -> bool:
    """Starts the run at the first use. Returns whether this process records: not in a forked child."""
    if session.settled:
        return session.ledger is not None
    with session.lock:
        if not session.settled:
            _start()
            _detect_framework()
    return session.ledger is not None


def finish() -> None:
    """Ends the run cleanly: later steps are not recorded, unless `start` begins another run.

    Optional: the end of the process does the same, except after `kill -9` or `os._exit`.
    """
    with session.lock:
        ledger, session.ledger, session.settled = session.ledger, None, True
        recorder.detach(ledger is not None)
        if ledger is not None:
            os.environ.pop(WORKER_OF, None)
            ledger.finish()


def complain(about: str, text: str) -> None:
    """Prints one line on stderr, once per kind of error. Never raises."""
    if about in session.complained:
        return
    session.complained.add(about)
    try:  # noqa: SIM105 - contextlib takes longer to import than all of this package
        print(f"trainwatch: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):  # stderr is full, closed, or gone
        pass


recorder = make_recorder(start_run)


def _start(
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> None:
    launched = read_ranks(os.environ)
    ranks = Ranks(
        launched.rank if rank is None else rank,
        launched.local_rank if local_rank is None else local_rank,
        launched.world_size if world_size is None else world_size,
    )
    directory = ledger_directory()
    session.settled = True
    try:
        ledger = create_ledger(directory, run or read_run_name(os.environ), ranks)
    except OSError as error:
        complain(
            "ledger", f"no ledger in {directory} ({error.strerror or error}): training continues unrecorded"
        )
        return
    session.ledger = ledger
    os.environ[WORKER_OF] = ledger.path
    recorder.attach(ledger.memory)
    _watch_process()


def _detect_framework() -> None:
    for module_name, framework in _FRAMEWORKS:
        module = sys.modules.get(module_name)
        if module is not None and session.ledger is not None:
            session.ledger.name_framework(framework, str(getattr(module, "__version__", "")))
            return


_watched = False


def _watch_process() -> None:
    """Registers the functions that the end of the process and a fork call, once."""
    global _watched
    if not _watched:
        _watched = True
        atexit.register(finish)
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """Stops recording steps in a forked child; a loader worker may still claim a worker slot."""
    recorder.detach(False)
    session.lock = allocate_lock()  # another thread of the parent may have held it
    if session.ledger is not None:
        session.parents_ledger, session.ledger = session.ledger, None
