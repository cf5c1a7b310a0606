"""Reads the files of line samples in the ledger directory, and adds them up by rank and role.

Every user may write to the directory, so a file costs only itself, as a ledger does. The counts of a process
that has ended are kept, and its file is removed once they are recorded: see `retired` and `removed`.
"""

import logging
import os
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from heapq import heapify, heappop, heappush
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from stepscope.common.errors import EXHAUSTED, describe
from stepscope.common.shared_files import entries, is_locked, remove
from stepscope.training import line_layout as layout
from stepscope.training.layout import COMPONENTS, LARGEST, MAX_RANK
from stepscope.training.ledger_checks import LedgerError, checked_run_name, open_plain_file
from stepscope.training.line_layout import text_checksum

logger = logging.getLogger(__name__)

PASS_SECONDS = 10.0  # between two readings of all files,
LOOK_SECONDS = 0.005  # of which a tick reads some
ENTRIES = 20_000  # of the directory
MOST_LINES = 200  # of one rank and role; all others are one line without a place
MOST_STACKS = 300  # likewise; all others end in the function where they left these
LOGGED = 20  # refused files that the log names
_NUMBERS = struct.Struct(f"<{layout.NUMBERS}d")
_COUNTS = struct.Struct(f"<{len(layout.STATES)}d")
_COMPONENT_NAMES = ("", *COMPONENTS, "host", "tool")


class Line(NamedTuple):
    """A place in the code, when it was executed, and who called it. "": not known, or there is none."""

    phase: str = ""
    component: str = ""
    place: str = ""  # file:line of the user's own code
    function: str = ""
    library: str = ""  # the function of a library that it called
    caller_place: str = ""
    caller: str = ""
    step: str = ""  # LONG: of a step that already lasted much longer than usual


LONG = "long"
OTHER_THREAD = layout.PHASES[layout.OTHER_THREAD]
TOOL = _COMPONENT_NAMES[layout.TOOL]


class Thread(NamedTuple):
    """Whose main thread it is: of a rank (-1: of none), in one of the roles of line_layout.ROLES."""

    rank: int
    role: str


Counts = tuple[float, ...]  # ticks by state, as in line_layout.STATES
Stack = tuple[str, ...]  # phase, component, and the functions, outermost first


@dataclass
class LineCounts:
    """The line samples of the main threads of some processes. Seconds are summed over processes."""

    processes: int = 0
    ticks: float = 0.0
    seconds: float = 0.0
    ran_seconds: float = 0.0  # with a core
    core_wait_seconds: float = 0.0  # ready to run, without a core
    own_cpu_seconds: float = 0.0  # of the sampling itself
    lines: dict[Line, Counts] = field(default_factory=dict)
    known_seconds: float = 0.0  # of `seconds`, in which the kernel showed what the thread waited for
    stacks: dict[Stack, float] = field(default_factory=dict)  # ticks
    long_core_wait_seconds: float = 0.0  # of `core_wait_seconds`, in steps that lasted too long
    train_ran_seconds: float = 0.0  # of `ran_seconds`, in training steps
    train_core_wait_seconds: float = 0.0  # of `core_wait_seconds`, in them

    def add(self, other: "LineCounts") -> None:
        """Adds the samples of other processes."""
        for name in TOTALS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for line, counts in other.lines.items():
            self.lines[line] = _sum(self.lines.get(line), counts)
        for stack, ticks in other.stacks.items():
            self.stacks[stack] = self.stacks.get(stack, 0.0) + ticks

    def shortened(self) -> "LineCounts":
        """Returns the most frequent lines, and all others as one line without a place; likewise stacks."""
        ordered = sorted(self.lines.items(), key=lambda item: (-sum(item[1]), item[0]))
        lines = dict(ordered[:MOST_LINES])
        for line, counts in ordered[MOST_LINES:]:
            if line.phase != OTHER_THREAD:
                lines[Line()] = _sum(lines.get(Line()), counts)
        return LineCounts(**{**vars(self), "lines": lines, "stacks": _shortened(self.stacks)})


TOTALS = tuple(each.name for each in fields(LineCounts) if each.name not in ("lines", "stacks"))


def _shortened(stacks: dict[Stack, float]) -> dict[Stack, float]:
    """Returns at most MOST_STACKS: the rarest ones are counted without their innermost functions."""
    kept = dict(stacks)
    rarest = [(ticks, stack) for stack, ticks in kept.items()]
    heapify(rarest)
    while len(kept) > MOST_STACKS:
        ticks, stack = heappop(rarest)
        if kept.get(stack) == ticks and len(stack) > 2:  # unless it has been made more frequent since
            caller = stack[:-1]
            kept[caller] = kept.get(caller, 0.0) + kept.pop(stack)
            heappush(rarest, (kept[caller], caller))
    return kept


class LineFile(NamedTuple):
    """The samples of one file."""

    run: str  # the label; "": not known yet
    owner: int  # uid
    thread: Thread
    alive: bool
    counts: LineCounts


def read_line_file(path: Path, owners: Collection[int] | None = None) -> LineFile:
    """Reads a file of these users. Raises LedgerError if it is not one of line samples, and OSError."""
    fd = open_plain_file(path, owners)
    try:
        status = os.fstat(fd)
        alive = is_locked(fd, layout.LOCK_ALIVE)  # before its counts: they are complete if it is dead
        header = os.pread(fd, layout.HEADER_BYTES, 0)
        numbers = _checked_header(path, header, status.st_size)
        used, nodes = int(numbers[layout.USED]), int(numbers[layout.USED_NODES])
        slots = os.pread(fd, used * layout.SLOT_BYTES, layout.HEADER_BYTES)
        tree = os.pread(fd, nodes * layout.NODE_BYTES, _tree_at(header))
    finally:
        os.close(fd)
    run = header[layout.RUN_AT : layout.RUN_AT + layout.RUN_BYTES].partition(b"\0")[0]
    if len(slots) != used * layout.SLOT_BYTES or len(tree) != nodes * layout.NODE_BYTES:
        raise LedgerError(path, "length", "corrupt line samples: cut short")
    thread = Thread(int(numbers[layout.RANK]), layout.ROLES[int(numbers[layout.ROLE])])
    totals = {name: numbers[getattr(layout, name.upper())] for name in TOTALS[1:]}
    counts = LineCounts(processes=1, stacks=_stacks(path, tree), **totals)
    for at in range(0, len(slots), layout.SLOT_BYTES):
        line, seen = _line(path, slots[at : at + layout.SLOT_BYTES])
        if line is not None and any(seen):
            counts.lines[line] = _sum(counts.lines.get(line), seen)
    label = checked_run_name(path, run) if run else ""
    return LineFile(label, status.st_uid, thread, alive, counts)


def _tree_at(header: bytes) -> int:
    return int(layout.HEADER_BYTES + layout.HEADER.unpack_from(header)[3] * layout.SLOT_BYTES)


def _checked_header(path: Path, header: bytes, size: int) -> tuple[float, ...]:
    """Returns the numbers of the header. Raises LedgerError."""
    if len(header) < layout.HEADER_BYTES:
        raise LedgerError(path, "length", "corrupt line samples: shorter than a header")
    magic, version, said, slots, nodes, pid, _, start = layout.HEADER.unpack_from(header)
    if magic != layout.MAGIC:
        raise LedgerError(path, "magic", "not a file of line samples")
    if version != layout.VERSION:
        raise LedgerError(
            path,
            "version",
            f"line samples of version {version}, this Stepscope reads {layout.VERSION}: "
            "use the same Stepscope for the exporter and in the training environment",
        )
    if said != size or size != _tree_at(header) + nodes * layout.NODE_BYTES:
        raise LedgerError(path, "length", f"corrupt line samples: {size} bytes long, and says {said}")
    numbers = _NUMBERS.unpack_from(header, layout.NUMBERS_AT)
    rank, role, used = numbers[layout.RANK], numbers[layout.ROLE], numbers[layout.USED]
    sized = 0 < slots <= layout.MAX_SLOTS and 0 <= nodes <= layout.MAX_NODES
    of_process = sized and 0 < pid <= MAX_RANK and 0 <= start < LARGEST
    if not (of_process and -1 <= rank <= MAX_RANK):  # NaN is neither
        raise LedgerError(path, "header", f"corrupt line samples: process {pid} of rank {rank}")
    if role not in range(len(layout.ROLES)) or used not in range(1, slots + 1):
        raise LedgerError(path, "header", f"corrupt line samples: role {role}, {used} of {slots} slots")
    if numbers[layout.USED_NODES] not in range(nodes + 1):
        raise LedgerError(path, "header", f"corrupt line samples: more than {nodes} nodes of stacks")
    if not all(isfinite(value) and 0 <= value <= LARGEST for value in numbers[layout.TICKS :]):
        raise LedgerError(path, "counter", "corrupt line samples: a total is negative or not a number")
    return numbers


def _line(path: Path, slot: bytes) -> tuple[Line | None, Counts]:
    """Returns the line of a slot and its counts; None while it is written. Raises LedgerError."""
    checksum, code = layout.SLOT.unpack_from(slot)
    text, counts = slot[layout.TEXT_AT :], _COUNTS.unpack_from(slot, 8 * layout.COUNTS)
    if checksum != text_checksum(code, text):
        return None, counts
    if not all(isfinite(count) and 0 <= count <= LARGEST for count in counts):
        raise LedgerError(path, "counter", "corrupt line samples: a count is negative or not a number")
    of_step, code = divmod(code, layout.LONG)
    fields = text.rstrip(b"\0").decode("utf-8", "replace").split("\n")
    if of_step not in (0, 1):
        raise LedgerError(path, "record", f"corrupt line samples: code {code} of step {of_step}")
    fields = (fields + [""] * len(layout.FIELDS))[: len(layout.FIELDS)]
    if not all(part.isprintable() for part in fields):
        raise LedgerError(path, "name", "corrupt line samples: a name cannot be printed")
    line = Line(*_part(path, code), *fields)
    return line._replace(step=LONG if of_step else ""), counts


def _stacks(path: Path, tree: bytes) -> dict[Stack, float]:
    """Returns the ticks of stacks. Raises LedgerError."""
    found: dict[Stack, float] = {}
    stacks: list[Stack | None] = []  # by node; None: it is being written
    for at in range(0, len(tree), layout.NODE_BYTES):
        checksum, caller, ticks = layout.NODE.unpack_from(tree, at)
        text = tree[at + layout.NODE_TEXT_AT : at + layout.NODE_BYTES]
        if checksum != text_checksum(caller, text):
            stacks.append(None)
            continue
        if not (-layout.LONG <= caller < len(stacks) and isfinite(ticks) and 0 <= ticks <= LARGEST):
            raise LedgerError(path, "counter", "corrupt line samples: a node of stacks makes no sense")
        outer = stacks[caller] if caller >= 0 else _part(path, -1 - caller)
        name = text.rstrip(b"\0").decode("utf-8", "replace")
        if not name.isprintable():
            raise LedgerError(path, "name", "corrupt line samples: a name cannot be printed")
        stack = None if outer is None else (*outer, name) if name else outer
        stacks.append(stack)
        if stack is not None and ticks:
            found[stack] = found.get(stack, 0.0) + ticks
    return found


def _part(path: Path, code: int) -> tuple[str, str]:
    """Returns phase and component. Raises LedgerError."""
    phase, component = divmod(code, 16)
    if not (phase < len(layout.PHASES) and component < len(_COMPONENT_NAMES)):
        raise LedgerError(path, "record", f"corrupt line samples: phase {phase}, component {component}")
    return layout.PHASES[phase], _COMPONENT_NAMES[component]


def _sum(one: Counts | None, other: Counts) -> Counts:
    return other if one is None else tuple(map(sum, zip(one, other, strict=True)))


class LineFolder:
    """The line samples of runs: of their living processes, and of those that have ended.

    Methods take the runs, each with the user who owns it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.retired: dict[Thread, LineCounts] = {}
        self.removed: set[str] = set()  # files whose counts are in `retired`; some may still be there
        self._living: dict[str, LineFile] = {}
        self._todo: list[str] = []
        self._next_pass = 0.0
        self._refused: dict[str, tuple[int, int]] = {}  # size and last change of each

    def look(self, runs: Collection[tuple[str, int]], seconds: float = LOOK_SECONDS) -> bool:
        """Reads some files of these runs. Returns whether all were read since the last True."""
        if not self._todo:
            if monotonic() < self._next_pass:
                return False
            self._next_pass = monotonic() + PASS_SECONDS
            self._todo = self._names()
            for name in self._living.keys() - set(self._todo):  # removed by somebody else
                self._retire(name, self._living[name])
        deadline = monotonic() + seconds
        while self._todo:
            self._read(self._todo.pop(), runs)
            if monotonic() > deadline:
                break
        return not self._todo

    def read_all(self, runs: Collection[tuple[str, int]]) -> bool:
        """Reads every file now. Returns True."""
        self._todo, self._next_pass = [], 0.0
        while not self.look(runs, seconds=1.0):
            pass
        return True

    def counts(self) -> dict[Thread, LineCounts]:
        """Returns the samples of each thread, those of ended processes included."""
        found: dict[Thread, LineCounts] = {}
        pairs = [*self.retired.items(), *((file.thread, file.counts) for file in self._living.values())]
        for thread, counts in pairs:
            found.setdefault(thread, LineCounts()).add(counts)
        return {thread: counts.shortened() for thread, counts in sorted(found.items())}

    def remove(self, names: Iterable[str]) -> None:
        """Removes files whose counts are recorded."""
        for name in names:
            if not remove(self.path / name):  # another user's stays, and is not counted again
                self.removed.discard(name)

    def _names(self) -> list[str]:
        try:
            found = entries(self.path, ENTRIES)
            names = [entry.name for entry in found if entry.name.endswith(layout.SUFFIX)]
        except FileNotFoundError:
            return []
        except OSError:  # too many open files: it may pass
            return list(self._living)
        self.removed &= set(names)
        return [name for name in names if name not in self.removed]

    def _read(self, name: str, runs: Collection[tuple[str, int]]) -> None:
        path = self.path / name
        try:
            status = path.lstat()
            version = status.st_size, status.st_mtime_ns
            owners = {owner for _, owner in runs}
            if self._refused.get(name) == version or status.st_uid not in owners:
                return
            file = read_line_file(path, owners)
        except FileNotFoundError:
            return
        except (LedgerError, OSError) as error:
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                return
            if len(self._refused) < LOGGED:
                logger.warning("%s; refused until it changes", describe(error))
            self._refused[name] = version
            return
        if (file.run, file.owner) not in runs:
            return
        if file.alive:
            self._living[name] = file
        else:
            self._retire(name, file)

    def _retire(self, name: str, file: LineFile) -> None:
        self._living.pop(name, None)
        self.removed.add(name)
        counts = LineCounts()  # a new one: a writer may still have the old one
        for each in (self.retired.get(file.thread), file.counts):
            if each is not None:
                counts.add(each)
        self.retired[file.thread] = counts.shortened()
