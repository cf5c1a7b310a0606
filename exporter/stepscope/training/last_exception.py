"""Keeps the exception that ends this process: type, message, and the innermost line of the user's own.

Python gives it to `sys.excepthook`, and leaves it in `sys.last_value` if a script has replaced our hook.
A child of multiprocessing prints it and exits, so there it is read while the child ends. A rank that a
signal killed could keep nothing: what its launcher raises then names signal and rank. Only text is kept:
no traceback lives longer. Type and place go into the ledger, which other users can read. The message goes
only into the private folder of `stepscope run`. Before Python prints the traceback, frames of ours that only
call on are removed. No function can hide its own frame, so tracebacks that a script itself prints have them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from time import time

from stepscope.training.line_names import LineNames, clean
from stepscope.training.ranks import read_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

    from stepscope.training.main_stack import Frame

TYPE, MESSAGE = 60, 200  # characters at most
FRAMES = 200  # of the innermost ones
_NESTED = "Traceback (most recent call last)"  # of a worker, in the message of its parent
_OUR_FOLDER = os.path.dirname(__file__) + os.sep


_kept = 0  # the identity of the exception that was kept last


def note(error: BaseException | None) -> None:
    """Keeps what ends this process. An exit or an interrupt is no exception. Never raises."""
    global _kept
    if isinstance(error, Exception) and id(error) != _kept:
        _kept = id(error)
        try:  # noqa: SIM105 - contextlib takes long to import
            _keep(*(_killed(error) or (*described(error), None)))
        except Exception:  # noqa: BLE001 - the script's own exception must be printed
            pass


def note_killed(error: BaseException) -> None:
    """Keeps which signal killed which rank, if that ends this launcher. Its other exceptions say nothing."""
    if killed := _killed(error):
        _keep(*killed)


def note_printed(error: BaseException) -> None:
    """Keeps what ends this process, and takes our frames out of what Python prints of it. Never raises."""
    note(error)
    try:  # noqa: SIM105 - as above
        leave_out_our_frames(error)
    except Exception:  # noqa: BLE001 - as above
        pass


def leave_out_our_frames(error: BaseException) -> None:
    """Removes the frames of this package that only call on, also from what caused the exception.

    A frame of ours in which the exception was raised stays: a call with impossible values ends there.
    """
    seen: set[int] = set()
    chain = [error]
    while chain:
        each = chain.pop()
        seen.add(id(each))
        trace = each.__traceback__
        while trace is not None:
            after = trace.tb_next
            file = after.tb_frame.f_code.co_filename if after is not None else ""
            if after is not None and after.tb_next is not None and file.startswith(_OUR_FOLDER):
                trace.tb_next = after.tb_next
            else:
                trace = after
        causes = (each.__cause__, each.__context__)
        chain += [cause for cause in causes if cause is not None and id(cause) not in seen]


def note_last() -> None:
    """Keeps the exception with which Python has ended the script. At a prompt, none ends it."""
    if not hasattr(sys, "ps1"):
        note(getattr(sys, "last_value", None))


def watch_children() -> None:
    """Lets children of multiprocessing keep what ends them: they print it without `sys.excepthook`."""
    util = sys.modules["multiprocessing.util"]

    def watch(_: object) -> None:
        util.Finalize(None, _note_in_child, exitpriority=sys.maxsize)

    util.register_after_fork(watch_children, watch)
    watch(None)  # of this process, if it is a child that was not forked


def _note_in_child() -> None:
    error = sys.exception()
    if isinstance(error, SystemExit) and error.code:  # torch's `spawn` exits after it has kept the exception
        error = error.__context__
    note(error)


def described(error: Exception) -> tuple[str, str, str]:
    """Returns the type, the message in one line, and the place as `file:line`; "" if it is not known."""
    names = LineNames()
    place = names.of(_frames(error)).partition("\n")[0]
    try:
        lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
        nested = _NESTED in str(error)
    except Exception:  # noqa: BLE001 - a class may fail to write itself
        lines, nested = [], False
    kind, message = type(error).__qualname__, lines[0] if lines else ""
    if nested:
        first, colon, rest = lines[-1].partition(": ")
        if first.replace(".", "").isidentifier():
            kind, message = first.rpartition(".")[2], rest if colon else ""
            place = names.of(list(_written_frames(lines))).partition("\n")[0] or place
    return clean(kind[:TYPE]), _cut(clean(message)), place


def _killed(error: Any) -> tuple[str, str, str, int] | None:
    """Returns signal, message, no place, and the rank that it killed before any other failed; None if none.

    torchrun's ChildFailedError has all failures, in the order in which they were seen, in whole seconds; the
    launcher itself ends the remaining ranks by SIGTERM. torch's `spawn` raises ProcessExitedException.
    """
    kind = type(error).__name__
    if kind == "ChildFailedError":
        failures = [(each.timestamp, each.exitcode, each.pid, rank) for rank, each in error.failures.items()]
    elif kind == "ProcessExitedException":
        failures = [(0, error.exit_code, error.error_pid, error.error_index)]
    else:
        return None
    asked = -signal.SIGTERM
    _, status, pid, rank = min(failures, key=lambda each: (each[0], each[1] > 0 or each[1] == asked))
    return (signal.Signals(-status).name, f"killed process {pid}", "", rank) if status < 0 else None


def _frames(error: Exception) -> list[Frame]:
    """Returns the innermost frames of its traceback, innermost first."""
    frames: list[Frame] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_qualname))
        del frames[:-FRAMES]
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0, ""))
    return frames[::-1]


def _written_frames(lines: list[str]) -> Iterator[Frame]:
    """Yields the frames of a traceback that is text, innermost first."""
    for line in reversed(lines):
        file, _, rest = line.removeprefix('File "').partition('", line ')
        number = rest.partition(",")[0]
        if line.startswith('File "') and number.isdecimal():
            yield file, int(number), rest.partition(", in ")[2]


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE else text[: MESSAGE - 1] + "…"


def _keep(kind: str, message: str, place: str, killed: int | None) -> None:
    import stepscope_startup  # outside this package, because it must load without it

    launched = read_ranks(os.environ)
    rank = launched.rank if launched.variable else None
    session = getattr(sys.modules.get("stepscope.training.session"), "session", None)
    if session is not None and session.ledger is not None:
        session.ledger.name_exception(kind, place)
        rank = session.ranks[0]
    if killed is not None:
        rank = killed
    known = {
        "killed": killed is not None,
        "type": kind,
        "message": message,
        "place": place,
        "rank": rank,
        "attempt": launched.attempt,
        "pid": os.getpid(),
        "time": time(),
    }
    stepscope_startup.leave_word(stepscope_startup.exception_word(), json.dumps(known), again=True)
