"""Reads the Python stack of another process: from its own answer, or by py-spy."""

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from errno import EPERM
from functools import partial
from pathlib import Path
from typing import BinaryIO

from stepscope.common.shared_files import UntrustedError, open_file
from stepscope.exporter.processes.used import read_state
from stepscope.training.stack_request import REQUEST_SUFFIX, SIGNAL, SUFFIX, VARIABLE

ANSWER_SECONDS = 5.0  # for Python's own answer; a busy machine takes milliseconds
SETTLED_SECONDS = 0.2  # without growth: the answer is complete
PY_SPY_SECONDS = 20.0
OWN_THREADS = ("stepscope/training/line_sampler.py", "stepscope/training/stack_request.py")
MOST_BYTES = 256 << 10  # of an answer
PTRACE_SCOPE = Path("sys/kernel/yama/ptrace_scope")  # below procfs


class NoStackError(Exception):
    """A stack that cannot be taken: why, and what to do about it."""


def python_stack(pid: int, ledger: Path, owner: int, procfs: Path = Path("/proc")) -> str:
    """Returns the stacks of the threads of a process, as Python or py-spy writes them.

    `owner` is the user of the ledger: what others have put next to it is neither read nor asked. Raises
    NoStackError.
    """
    stopped = read_state(procfs, pid) in ("T", "t")
    answer, request = (ledger.with_name(ledger.name + suffix) for suffix in (SUFFIX, REQUEST_SUFFIX))
    planted = ""
    with ExitStack() as opened:
        answers = None
        try:
            answers = opened.enter_context(os.fdopen(_open_answers(answer, owner), "rb"))
            if not stopped and os.path.lexists(request):
                asked = opened.enter_context(os.fdopen(_open_requests(request, owner), "wb", buffering=0))
                if text := _answer(answers, partial(asked.write, b"?")):
                    return text
        except FileNotFoundError:  # it has not said that it answers
            pass
        except UntrustedError as error:
            planted = f"{error.filename} is not of its process ({error.strerror})"
        py_spy = shutil.which("py-spy")
        if py_spy is not None:
            return _spied(py_spy, pid, procfs)
        if answers is not None and _handles_signal(pid, procfs):
            if not stopped and (text := _answer(answers, partial(os.kill, pid, SIGNAL))):
                return text
            reason = "it is stopped" if stopped else "it did not answer"
            raise NoStackError(f"{reason}: continue it (kill -CONT {pid}), or install py-spy")
    if planted:
        raise NoStackError(f"{planted}: remove that, or install py-spy")
    raise NoStackError(
        f"it was started without {VARIABLE}=1 (`stepscope run --stacks` sets it), and py-spy is not "
        "installed: pip install py-spy"
    )


def _open_answers(answer: Path, owner: int) -> int:
    """Opens what the process writes. Raises OSError, and NoStackError if this user may not."""
    try:
        return open_file(answer, {owner})
    except PermissionError:
        if answer.lstat().st_uid == owner:
            raise NoStackError("it belongs to another user: ask as that user, or as root") from None
        raise UntrustedError(answer, "owner", EPERM, "belongs to another user") from None


def _open_requests(request: Path, owner: int) -> int:
    """Opens the FIFO of the process. Raises OSError, and NoStackError if nobody reads it."""
    try:
        return open_file(request, {owner}, os.O_WRONLY, is_kind=stat.S_ISFIFO)
    except (FileNotFoundError, UntrustedError):
        raise
    except OSError as error:
        raise NoStackError(f"it could not be asked: {error.strerror}") from None


def _handles_signal(pid: int, procfs: Path) -> bool:
    """Returns whether the process handles the signal: it would end one that does not."""
    try:
        status = (procfs / str(pid) / "status").read_text(errors="replace")
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):
        return False
    return bool(caught >> (SIGNAL - 1) & 1)


def _answer(answers: BinaryIO, ask: Callable[[], object]) -> str:
    """Returns what the process writes after `ask`; "" if it writes nothing in time."""
    fd = answers.fileno()
    before = size = os.fstat(fd).st_size
    try:
        ask()
    except OSError as error:
        raise NoStackError(f"it could not be asked: {error.strerror}") from None
    deadline, settled = time.monotonic() + ANSWER_SECONDS, 0.0
    while time.monotonic() < deadline and (size == before or time.monotonic() < settled):
        time.sleep(0.01)
        if os.fstat(fd).st_size != size:
            size, settled = os.fstat(fd).st_size, time.monotonic() + SETTLED_SECONDS
    answers.seek(before)
    text = printable(answers.read(MOST_BYTES).decode(errors="replace"))
    threads = text.split("\n\n")
    return "\n\n".join(thread for thread in threads if not any(own in thread for own in OWN_THREADS))


def _spied(py_spy: str, pid: int, procfs: Path) -> str:
    command = [py_spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=PY_SPY_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoStackError(f"py-spy failed: {type(error).__name__}") from error
    if done.returncode == 0:
        return printable(done.stdout.decode(errors="replace"))
    said = printable(done.stderr.decode(errors="replace")).strip().splitlines() or ["nothing"]
    raise NoStackError(f"py-spy says: {said[0]}{_permission(procfs)}")


def _permission(procfs: Path) -> str:
    """Returns why py-spy may not read other processes, as far as this user can see."""
    if os.geteuid() == 0:
        return ""
    try:
        scope = int((procfs / PTRACE_SCOPE).read_text())
    except (OSError, ValueError):
        return "; run as root, or in a container with --cap-add SYS_PTRACE"
    if scope == 0:
        return ""
    return f" ({Path('/proc') / PTRACE_SCOPE} is {scope}: run as root, or set it to 0)"


def printable(text: str) -> str:
    """Returns the text without what could control a terminal: a file name may contain anything."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
