"""Rows in the form of the PyTorch profiler: for begin and end events, and for those of other profilers.

Source: the Trace Event Format of Chrome: `B` and `E` nest on each thread, `X` has both, others have neither.
Ascend's events (trace_view.json, msprof_*.json): hiascend.com, "Profile Data File References".
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from stepscope.runs.malformed import MALFORMED

MOST_OPEN = 100_000  # begun events that are remembered
# Phases without a duration that say something: asynchronous ones, instants, counters and flows.
NAMES = {
    **dict.fromkeys("bneSTpF", "asynchronous"),
    **dict.fromkeys("iI", "instant"),
    "C": "counter",
    **dict.fromkeys("stf", "flow"),
}
HOST, DEVICE = "host", "device"  # who marked a step, as the process of its row
# Processes of PyTorch's profiler before Kineto, whose events have no category.
_OLD = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
_REPEATS = "Overlap Analysis"  # the process of Ascend's profiler that sums the others
_COLLECTIVE = "hcom_"  # hcom_allReduce__123_0_1; what it consists of has a "task type" in small letters
_LAUNCHES = re.compile(r"(?:AscendCL|Runtime|Node|Model|HCCL)@")  # of CANN, on the host
# Accelerators of Ascend, which compute or copy; other tasks wait, or are parts of a collective.
_COMPUTES, _COPIES = re.compile(r"(?:KERNEL_)?(?:AI_?[CV]|MIX|FFTS|DSA)"), re.compile(r"MEMCPY|PCIE_DMA")


class Pairs:
    """One trace. An end without a begin counts nowhere, and neither does a begin without an end."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._opened = 0
        self._forgotten = 0  # begins, because too many are open
        self._ends = 0  # without a begin
        self._others: Counter[str] = Counter()

    def rows(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yields all rows but begins and ends, and a complete event for each pair of these.

        Yields None for a damaged row.
        """
        for row in rows:
            try:
                phase = row.get("ph")
                if phase == "B" and self._opened < MOST_OPEN:
                    self._open.setdefault((row.get("pid"), row.get("tid")), []).append(row)
                    self._opened += 1
                elif phase == "B":
                    self._forgotten += 1
                elif phase == "E":
                    if begun := self._open.get((row.get("pid"), row.get("tid"))):
                        begin = begun.pop()
                        self._opened -= 1
                        yield {**begin, "ph": "X", "dur": float(row["ts"]) - float(begin["ts"])}
                    else:
                        self._ends += 1
                else:
                    if phase in NAMES:
                        self._others[NAMES[phase]] += 1
                    yield row
            except MALFORMED:
                yield None

    def without_partner(self) -> dict[str, int]:
        """Returns how many begins have no end, and how many ends no begin, if there are any."""
        found = {"begin without an end": self._opened + self._forgotten, "end without a begin": self._ends}
        return {kind: count for kind, count in found.items() if count}

    def others(self) -> dict[str, int]:
        """Returns how many events have no duration, by kind."""
        return {f"{kind} events": count for kind, count in sorted(self._others.items())}


def categorised(rows: Iterable[Any]) -> Iterator[Any]:
    """Yields rows with the category and the device that Ascend's and old profilers express otherwise."""
    repeats = set()
    for row in rows:
        if isinstance(row, dict) and row.get("cat") is None:
            given = row.get("args")
            about, process = given if isinstance(given, dict) else {}, str(row.get("pid"))
            if row.get("ph") == "M" and about.get("name") == _REPEATS:
                repeats.add(process)
            elif row.get("ph") == "X":
                row = _categorised(row, about, process, process in repeats)
        yield row


def _categorised(row: Any, about: dict[str, Any], process: str, repeats: bool) -> Any:
    name, task = str(row.get("name")), about.get("Task Type")
    if process in _OLD:
        return {**row, "cat": _OLD[process], "args": {"device": row.get("tid")}}
    if repeats or "task type" in about:
        return {**row, "cat": "Trace"}
    joined = {"correlation": about["connection_id"]} if isinstance(about.get("connection_id"), int) else {}
    on_device = {"device": 0, "accelerator": "npu", **joined}
    if name.startswith(_COLLECTIVE):
        return {**row, "cat": "kernel", "args": on_device}
    if task is not None:
        computes = "kernel" if _COMPUTES.match(str(task)) else "npu_sync"
        return {**row, "cat": "npu_memcpy" if _COPIES.match(str(task)) else computes, "args": on_device}
    return {**row, "cat": "npu_runtime", "args": joined} if _LAUNCHES.match(name) else row


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
