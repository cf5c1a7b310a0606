"""`stepscope profile`: asks the processes of a running job for a profile window now."""

import os
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import ExitStack, suppress

from stepscope.commands.ledgers_of_run import add_ledger_dir, ledgers_of_run
from stepscope.common.errors import UserError
from stepscope.common.shared_files import open_file
from stepscope.common.users import user_name
from stepscope.common.words import count, listing
from stepscope.exporter.ledgers.asked_windows import TrainingRank, with_a_peer
from stepscope.exporter.ledgers.run_totals import Ledger
from stepscope.exporter.processes.stacks import printable
from stepscope.training.window_plans import (
    LONGEST,
    MEMORY,
    MOST_STEPS,
    OPERATORS,
    PYTHON,
    SHAPES,
    USUAL_STEPS,
)
from stepscope.training.window_request import (
    RECORDS,
    REFUSED,
    WAITS,
    WRITTEN,
    Answer,
    can_be_asked,
    read_answer,
    wake,
    withdraw,
    write_request,
)

SLOW, MEDIAN = "slow", "median"  # of the ranks on this node: most time without communication, and a peer
NO_STEP = 60.0  # seconds without a step of training, after which the request is withdrawn
EVERY = 0.1  # seconds between two looks at the answer
EXAMPLES = f"""\
examples:
  stepscope profile resnet                       {USUAL_STEPS} steps of all ranks of the newest launch
  stepscope profile resnet-fb6cce4c --steps 10   10 steps of this launch
  stepscope profile resnet --ranks 0,3           ranks 0 and 3 only
  stepscope profile resnet --ranks slow,median   the slowest rank of this node, and a median peer
  stepscope profile resnet --python              Python functions instead of operators
  stepscope profile resnet --memory              operators, and the memory that they allocate
  stepscope profile resnet --shapes              operators, and the shapes of their inputs

Operators need the hooks of their framework (`stepscope run`, or STEPSCOPE_INSTRUMENT=1). Run this on the node
of the ranks, as their user or as root. `stepscope report` of the recording shows the operators;
ui.perfetto.dev opens the traces.

The exit status is 0 if every rank wrote its trace, 1 if one did not, 2 if there is no such run, and 130 after
Ctrl-C, which takes back what has not begun.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope profile`."""
    parser.epilog = EXAMPLES
    parser.add_argument("run", metavar="RUN", help="the run's label, or its name: then its newest launch")
    parser.add_argument(
        "--steps",
        type=_steps,
        default=USUAL_STEPS,
        metavar="N",
        help=f"training steps to record, at most {MOST_STEPS} (default: %(default)s)",
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        default=(),
        metavar="N,N",
        help=f"ranks to record, also {SLOW} and {MEDIAN} (default: all on this node)",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--python",
        dest="kind",
        action="store_const",
        const=PYTHON,
        default=OPERATORS,
        help="record Python functions instead of operators; it needs no framework",
    )
    kind.add_argument(
        "--memory",
        dest="kind",
        action="store_const",
        const=MEMORY,
        help="also record the memory that operators allocate",
    )
    kind.add_argument(
        "--shapes",
        dest="kind",
        action="store_const",
        const=SHAPES,
        help="also record the shapes of the operators' inputs",
    )
    add_ledger_dir(parser)


def run(arguments: Namespace) -> int:
    """Asks, prints how far each rank is, and returns the exit status. Raises UserError."""
    with ExitStack() as stack:
        ledgers = [each for each in ledgers_of_run(arguments.run, arguments.ledger_dir, stack) if each.alive]
        if not ledgers:
            raise UserError(f"{arguments.run} has ended: profile a run while it trains")
        known = {
            each.header.rank: TrainingRank.of(each.header.rank, each.reader.path, each.key.owner, each.totals)
            for each in ledgers
        }
        ranks = _chosen(arguments.ranks, known)
        asked = [_Asked(each, stack) for each in ledgers if each.header.rank in ranks]
        first = max(known[rank].next_step for rank in ranks)
        try:
            for each in asked:
                each.ask(first, arguments.steps, arguments.kind)
            while [each for each in asked if each.look()]:
                time.sleep(EVERY)
        except KeyboardInterrupt:
            print("taken back; a window that has begun is completed by the training itself")
            return 130
        finally:
            for each in asked:
                each.withdraw()
        return max(each.status for each in asked)


class _Asked:
    """One rank that is asked. Raises UserError if it cannot be."""

    def __init__(self, ledger: Ledger, stack: ExitStack) -> None:
        self.status = 1
        self._name = f"rank {ledger.header.rank}"
        self._reader = ledger.reader
        self._number = 0
        self._state = 0
        self._seen, self._since = ledger.totals.steps_recorded, time.monotonic()
        path, owner = ledger.reader.path, ledger.key.owner
        if os.geteuid() not in (0, owner):
            raise UserError(
                f"{self._name} belongs to user {user_name(owner)}: only this user and root can ask it"
            )
        try:
            self._fd = open_file(path, {owner}, os.O_RDWR)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}): run this on its node") from error
        stack.callback(os.close, self._fd)
        if not can_be_asked(self._fd):
            raise UserError(
                f"{self._name} trains with an older Stepscope: upgrade it in the training environment"
            )

    def ask(self, first: int, steps: int, kind: str) -> None:
        self._number = write_request(self._fd, first, steps, kind)
        print(f"{self._name}: {count(steps, 'step')} requested, from step {first} on", flush=True)

    def withdraw(self) -> None:
        if self._number:
            with suppress(OSError):
                withdraw(self._fd, self._number)

    def look(self) -> bool:
        """Prints what is new. Returns whether the rank is not done yet."""
        if not self._number:
            return False
        try:
            answer = read_answer(self._fd)
            if answer.number != self._number:
                wake(self._fd)
                answer = Answer(self._number, 0)
            reason = self._why_not(answer)
        except (OSError, ValueError) as error:
            answer, reason = Answer(self._number, REFUSED), str(error)
        if answer.state != self._state:
            self._state = answer.state
            if answer.state == WAITS:
                self._say(f"waits for step {answer.first}")
            if answer.state == RECORDS:
                self._say(f"records from step {answer.first} on")
        if answer.state == WRITTEN:
            self.status = 0
            self._say(f"steps {answer.first} to {answer.last} are in {printable(answer.text)}")
        elif reason:
            self._say(f"no window: {printable(reason)}")
        else:
            return True
        self.withdraw()
        self._number = 0
        return False

    def _why_not(self, answer: Answer) -> str:
        """Returns why there will be no window; "" as long as there may be one."""
        if answer.state in (WRITTEN, REFUSED):
            return answer.text or "it was refused"
        steps = self._reader.totals().steps_recorded
        if steps != self._seen:
            self._seen, self._since = steps, time.monotonic()
        if not self._reader.alive():
            return "its process has ended"
        limit = NO_STEP + (LONGEST if answer.state == RECORDS else 0)
        if time.monotonic() - self._since > limit:
            return f"no step has ended for {limit:g} s"
        return ""

    def _say(self, text: str) -> None:
        print(f"{self._name}: {text}", flush=True)


def _chosen(wanted: tuple[str, ...], known: dict[int, TrainingRank]) -> set[int]:
    """Returns the ranks that were named. Raises UserError."""
    named = dict(zip((SLOW, MEDIAN), (each.rank for each in with_a_peer(known, None)), strict=False))
    found = {each: named.get(each, -1) if each in (SLOW, MEDIAN) else int(each) for each in wanted}
    for each, rank in found.items():
        if rank not in known:
            here = listing([str(one) for one in known])
            raise UserError(f"--ranks {each}: not on this node; the ranks here are {here}")
    return set(found.values()) or set(known)


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MOST_STEPS:
        raise ArgumentTypeError(f"{text!r} must be a number from 1 to {MOST_STEPS}")
    return int(text)


def _ranks(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if not all(part in (SLOW, MEDIAN) or (part.isdecimal() and len(part) < 10) for part in parts):
        raise ArgumentTypeError(f"{text!r} must be numbers, {SLOW} or {MEDIAN}, as in 0,3 or {SLOW},{MEDIAN}")
    return parts
