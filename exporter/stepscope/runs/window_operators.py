"""Sums up the operators of one profile window, in a process that the exporter starts for it.

The process has the rights of the trace's owner, little memory and little time, so a trace costs only itself.
It first prints the training steps up to the window's end, and then reads the trace. Then it prints a line of
JSON: self seconds by kind of device and operator, those with most first, and the floating-point operations of
a step, or null.
"""

import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid
from typing import TYPE_CHECKING

from stepscope.common.shared_files import open_file, open_folder
from stepscope.training.window_files import traces_in

if TYPE_CHECKING:
    from stepscope.runs.traces.capture import Capture

MOST_MEMORY = 1 << 30  # bytes of address space, a third of them for Python and numpy
MOST_SECONDS = 60  # on a core
NAMED = 100  # operators per device: more than the exporter shows. All others are one without a name.
NAME = 1000  # characters
NOBODY = 65534


def child(folder: str, owner: str, rank: str, pid: str, start: str, after: str) -> None:
    """Prints the first window with a trace that began after `after` training steps of a process.

    The process began at `start`, in seconds since the epoch: older files are those of an earlier one.
    """
    _limit()
    from stepscope.runs.traces.capture import captures_of  # numpy, which the owner may be unable to read
    from stepscope.runs.traces.trace import flops_per_step

    _become(int(owner))
    found = _find(folder, int(rank), int(pid), float(start), int(after))
    if found is not None:
        end, path = found
        print(end, flush=True)
        captures = captures_of(Path(path))
        print(
            json.dumps([_operators(captures), flops_per_step(each.summary for each in captures)]), flush=True
        )


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    os.nice(19)
    with suppress(OSError):  # if memory is short, this process goes first
        os.write(open_file("/proc/self/oom_score_adj", flags=os.O_WRONLY), b"1000")


def _become(owner: int) -> None:
    """Gives up the rights of root. Raises OSError without the permission."""
    if owner != os.geteuid():
        try:
            group = getpwuid(owner).pw_gid
        except KeyError:
            group = NOBODY
        os.setgroups([])
        os.setgid(group)
        os.setuid(owner)


def _find(folder: str, rank: int, pid: int, start: float, after: int) -> tuple[int, str] | None:
    fd = open_folder(folder, follow=True)
    for first, last, name in traces_in(fd, rank, pid):
        with suppress(OSError):  # a pipe, a link, another user's
            if first >= after and os.fstat(open_file(name, {os.geteuid()}, folder=fd)).st_mtime >= start:
                return last + 1, os.path.join(folder, name)
    return None


def _operators(captures: "Iterable[Capture]") -> dict[str, dict[str, float]]:
    sums: dict[str, defaultdict[str, float]] = {}
    for summary in (capture.summary for capture in captures):
        for each in (*summary.operators, *summary.kernels):
            of_device = sums.setdefault(each.device.rstrip("0123456789"), defaultdict(float))
            of_device[each.name[:NAME]] += each.self_seconds
    return {device: _shortened(operators) for device, operators in sums.items()}


def _shortened(operators: dict[str, float]) -> dict[str, float]:
    ordered = sorted(operators.items(), key=lambda item: -item[1])
    rest = sum(seconds for _, seconds in ordered[NAMED:])
    return dict(ordered[:NAMED]) | ({"": rest} if rest else {})
