"""Writes Python stacks when somebody asks for it, if STEPSCOPE_STACKS=1.

`stepscope stacks` asks by a byte into a FIFO. A thread answers that holds the interpreter lock meanwhile: no
other thread can change its stack. While some C code keeps the lock, that thread cannot answer. Then a signal
asks, and its handler writes the stacks at once. With the lock in use the handler would read stacks while
they change, and end the process in about 1 of 10,000 requests.

Python 3.12 and 3.13 write the stacks of all threads. In 3.11 and 3.14 the walk over them can crash
(training/main_stack.py says why): there it is the stack of the main thread.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from _thread import get_ident, start_new_thread
from threading import main_thread

from stepscope.common.shared_files import Descriptor, create_fifo, create_file
from stepscope.training.main_stack import NotSafeError, stack_of_this_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "STEPSCOPE_STACKS"
SIGNAL = 40  # a real-time signal: training scripts and launchers use the others
SUFFIX = ".stack"  # after the name of the ledger: the answers
REQUEST_SUFFIX = ".stack.request"


ALL_THREADS = (3, 12) <= sys.version_info < (3, 14)


def answer_requests(ledger: str) -> None:
    """Writes stacks to a file next to the ledger from now on. Raises OSError and NotSafeError."""
    write = faulthandler.dump_traceback if ALL_THREADS else _of_main_thread()
    # It stays open, because a signal may come at any time.
    answers = create_file(ledger + SUFFIX, flags=os.O_WRONLY | os.O_APPEND)
    try:
        requests = create_fifo(ledger + REQUEST_SUFFIX)  # for both, so that reading waits while nobody asks
    except OSError:
        os.close(answers)
        raise
    faulthandler.register(SIGNAL, file=answers, all_threads=ALL_THREADS, chain=False)
    start_new_thread(_answer, (Descriptor(requests), Descriptor(answers), write))


def _answer(requests: Descriptor, answers: Descriptor, write: Callable[[int], None]) -> None:
    written = 0
    while requests.is_ours() and os.read(requests.fd, 1) and answers.is_ours():
        if os.fstat(answers.fd).st_size == written:  # otherwise the signal has answered meanwhile
            write(answers.fd)
        written = os.fstat(answers.fd).st_size
    # The program has closed all descriptors: the signal must not write into its own files.
    faulthandler.register(SIGNAL, file=os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), all_threads=False)


def _of_main_thread() -> Callable[[int], None]:
    """Returns a function that writes the stack of this thread, which never ends. Raises NotSafeError."""
    if get_ident() != main_thread().ident:
        raise NotSafeError("training does not begin in the main thread")
    stack = stack_of_this_thread()()

    def write(answers: int) -> None:
        frames = stack.frames(stack.read())
        lines = [f'  File "{file}", line {line} in {function}\n' for file, line, function in frames]
        os.write(
            answers, "".join(["Main thread (most recent call first):\n", *lines]).encode("utf-8", "replace")
        )

    return write
