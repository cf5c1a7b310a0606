"""Writes the Python stacks of all threads when somebody asks for it, if TRAINWATCH_STACKS=1.

`trainwatch stacks` asks by a byte into a FIFO. A thread answers that holds the interpreter lock meanwhile: no
other thread can change its stack. While some C code keeps the lock, that thread cannot answer. Then a signal
asks, and its handler writes the stacks at once. With the lock in use the handler would read stacks while
they change, and end the process in about 1 of 10,000 requests.
"""

from __future__ import annotations

import faulthandler
import os
from _thread import start_new_thread

from trainwatch.shared_files import create_fifo, create_file

VARIABLE = "TRAINWATCH_STACKS"
SIGNAL = 40  # a real-time signal: training scripts and launchers use the others
SUFFIX = ".stack"  # after the name of the ledger: the answers
REQUEST_SUFFIX = ".stack.request"


def answer_requests(ledger: str) -> None:
    """Writes stacks to a file next to the ledger from now on. Raises OSError."""
    # It stays open, because a signal may come at any time.
    answers = create_file(ledger + SUFFIX, flags=os.O_WRONLY | os.O_APPEND)
    try:
        requests = create_fifo(ledger + REQUEST_SUFFIX)  # for both, so that reading waits while nobody asks
    except OSError:
        os.close(answers)
        raise
    faulthandler.register(SIGNAL, file=answers, all_threads=True, chain=False)
    start_new_thread(_answer, (requests, answers))


def _answer(requests: int, answers: int) -> None:
    while os.read(requests, 1):
        faulthandler.dump_traceback(file=answers, all_threads=True)
