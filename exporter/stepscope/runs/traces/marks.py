"""Rows in the form of the PyTorch profiler, for the marks of steps of other profilers."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

HOST, DEVICE = "host", "device"  # who marked a step, as the process of its row


class Mark(NamedTuple):
    """A step that the script marked; microseconds."""

    start: float
    end: float
    number: int | None  # None: not known


def step_rows(marks: Sequence[Mark], by: str) -> Iterator[Any]:
    """Yields the steps. Each ends when the next one begins: what follows a mark belongs to its step."""
    ordered = sorted(marks, key=lambda mark: mark[:2])
    ends = [following.start for _, following in pairwise(ordered)] + [mark.end for mark in ordered[-1:]]
    for index, (mark, end) in enumerate(zip(ordered, ends, strict=True)):
        number = index if mark.number is None else mark.number
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{number}",
            "pid": by,
            "tid": 0,
            "ts": mark.start,
            "dur": end - mark.start,
        }
