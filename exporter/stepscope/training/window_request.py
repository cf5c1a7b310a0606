"""A profile window on request: `stepscope profile` writes the request into the ledger of a running process.

The process reads it when a step has ended. Only its user and root can write to the ledger: the kernel checks
that. Whatever the request says, it is checked before it is believed. The answer goes the same way back.
"""

from __future__ import annotations

import os
from math import inf
from typing import NamedTuple

from stepscope.training import layout
from stepscope.training.window_plans import KINDS, MOST_STEPS, OPERATORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

# The states of an answer.
NONE, WAITS, RECORDS, WRITTEN, REFUSED = range(5)


class Request(NamedTuple):
    """A window of `steps` steps that begins at the step with the number `first`."""

    number: int  # from 1; unlike that of the request before
    first: int
    steps: int
    kind: str  # of window_plans.KINDS


class Answer(NamedTuple):
    """How far the window is. `text`: the path of its trace, or why there is none."""

    number: int
    state: int
    first: int = 0
    last: int = 0
    text: str = ""


# -- the process that is asked -------------------------------------------------------------------------


def read_request(memory: mmap.mmap) -> Request | None:
    """Returns the request; None if there is none. Raises ValueError for one that cannot be."""
    number, first, steps, kind = layout.WINDOW_REQUEST.unpack_from(memory, layout.WINDOW_AT)
    if number == 0:
        return None
    known = 1 <= number <= layout.MOST and 0 <= first <= layout.MOST and 1 <= steps <= MOST_STEPS
    if not known or kind not in range(len(KINDS)):
        raise ValueError(f"a request {number:g} for {steps:g} steps from {first:g} on")  # also NaN
    return Request(int(number), int(first), int(steps), KINDS[int(kind)])


def drop_request(memory: mmap.mmap) -> None:
    layout.WINDOW_REQUEST.pack_into(memory, layout.WINDOW_AT, 0.0, 0.0, 0.0, 0.0)


def write_answer(memory: mmap.mmap, answer: Answer) -> None:
    data = answer.text.encode("utf-8", "replace")[: layout.WINDOW_TEXT_BYTES - 1]
    end = layout.WINDOW_TEXT_AT + layout.WINDOW_TEXT_BYTES
    memory[layout.WINDOW_TEXT_AT : end] = data.ljust(layout.WINDOW_TEXT_BYTES, b"\0")
    numbers = (answer.number, answer.state, answer.first, answer.last)
    layout.WINDOW_ANSWER.pack_into(memory, layout.WINDOW_ANSWER_AT, *map(float, numbers))


# -- who asks: by `fd`, open for reading and writing, because a mapping of a file that shrinks kills ----


def can_be_asked(fd: int) -> bool:
    """Returns whether the writer of this ledger knows of requests: an earlier version does not."""
    raw = os.pread(fd, layout.WINDOW_OFFSET.size, layout.WINDOW_OFFSET_AT)
    return len(raw) == layout.WINDOW_OFFSET.size and layout.WINDOW_OFFSET.unpack(raw)[0] == layout.WINDOW_AT


def write_request(fd: int, first: int, steps: int, kind: str = OPERATORS) -> int:
    """Asks for a window. Returns the number of the request. Raises OSError."""
    raw = os.pread(fd, layout.WINDOW_REQUEST.size + layout.WINDOW_ANSWER.size, layout.WINDOW_AT)
    asked, answered = (
        layout.DOUBLE.unpack_from(raw)[0],
        layout.DOUBLE.unpack_from(raw, layout.WINDOW_REQUEST.size)[0],
    )
    known = [number for number in (asked, answered) if 0 <= number < layout.MOST]  # nor is NaN
    number = int(max(known, default=0)) + 1
    os.pwrite(fd, layout.WINDOW_REQUEST.pack(number, first, steps, KINDS.index(kind)), layout.WINDOW_AT)
    return number


def wake(fd: int) -> None:
    """Lets the process look when its step ends. Call it until there is an answer: it may miss one call."""
    os.pwrite(fd, layout.DOUBLE.pack(0.0), layout.COUNTERS_AT + layout.COUNTER_LOOK_AT * 8)


def withdraw(fd: int, number: int) -> None:
    """Takes a request back, if it is still there. A window that has begun is completed. Raises OSError."""
    raw = os.pread(fd, layout.DOUBLE.size, layout.WINDOW_AT)
    if raw == layout.DOUBLE.pack(number):
        os.pwrite(fd, bytes(layout.WINDOW_REQUEST.size), layout.WINDOW_AT)


def read_answer(fd: int) -> Answer:
    """Returns the latest answer. Raises OSError, and ValueError for one that cannot be."""
    raw = os.pread(fd, layout.WINDOW_END - layout.WINDOW_ANSWER_AT, layout.WINDOW_ANSWER_AT)
    if len(raw) < layout.WINDOW_END - layout.WINDOW_ANSWER_AT:
        raise ValueError("its ledger is cut short")
    numbers = layout.WINDOW_ANSWER.unpack_from(raw)
    if not all(0 <= number < inf for number in numbers) or numbers[1] > REFUSED:
        raise ValueError("its ledger has an answer that cannot be")
    text = raw[layout.WINDOW_ANSWER.size :].partition(b"\0")[0].decode("utf-8", "replace")
    number, state, first, last = map(int, numbers)
    return Answer(number, state, first, last, text)
