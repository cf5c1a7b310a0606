"""Checks what a ledger must hold to be believed, and names the reason why another is refused."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from math import isfinite, isnan
from operator import gt, lt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.common.shared_files import UntrustedError, open_file
from stepscope.training import layout
from stepscope.training.layout import (
    COMPONENTS,
    LARGEST,
    LATEST,
    LONGEST_STEP,
    MAX_RANK,
    MOST,
    OPERATIONS,
    PHASES,
)

if TYPE_CHECKING:
    from stepscope.training.layout import Field

# The reasons for which a ledger is refused, as the exporter counts them.
REASONS = {
    "kind": "not a plain file: a symbolic link, a directory, a pipe",
    "permission": "the exporter may not read it",
    "length": "empty, cut short, or not as long as it says",
    "magic": "not a ledger",
    "version": "of a version of Stepscope that this one cannot read",
    "header": "a rank, a process or a start that cannot be",
    "name": "a run name that is empty or cannot be printed",
    "counter": "a number that is infinite, negative, none, or more than its column can hold",
    "falling": "a total that fell",
    "record": "a step that cannot be",
    "unreadable": "an error of its file system",
}


class LedgerError(Exception):
    """A file that is refused as a ledger: one line that names the file, and one of REASONS."""

    def __init__(self, path: Path, reason: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.reason = reason
        self.what = what.removeprefix("corrupt ledger: ")


class Section(NamedTuple):
    """The place of a section, in bytes from the start of the file, and its items."""

    at: int
    items: int
    item_bytes: int


class Sections(NamedTuple):
    """The sections in the order of the header's table."""

    counters: Section
    workers: Section
    ring: Section
    gauges: Section
    counts: Section


_LEAST = Sections(*(Section(*each) for each in layout.SECTIONS))
# Writers before the counters of components per phase leave zeros there; those before HOOK_GAUGES have none.
_LEAST = _LEAST._replace(
    counters=Section(layout.COUNTERS_AT, layout.COUNTER_PHASE_COMPONENTS, 8),
    gauges=_LEAST.gauges._replace(items=layout.SCRIPT_GAUGES + layout.FRAMEWORK_GAUGES),
)
_PHASE_NUMBERS = range(len(PHASES))  # a float is in it if it equals one of these numbers
_COMPONENT_NUMBERS = range(len(COMPONENTS) + 1)  # 0: none; the same below
_OPERATION_NUMBERS = range(len(OPERATIONS) + 1)


def open_plain_file(path: Path, owners: Collection[int] | None = None) -> int:
    """Returns a descriptor for reading. Raises LedgerError for anything but a plain file, and OSError.

    `owners` are the users to whom it must belong; None: any.
    """
    try:
        return open_file(path, owners)
    except UntrustedError as error:
        kind = error.reason == "kind"
        what = "not a ledger: not a plain file" if kind else str(error.strerror)
        raise LedgerError(path, "kind" if kind else "permission", what) from error
    except PermissionError as error:
        raise LedgerError(path, "permission", f"may not be read by user {os.geteuid()}") from error


def checked_sections(path: Path, header: bytes, file_bytes: int) -> Sections:
    """Returns where the sections are. Raises LedgerError if this version cannot read the file."""
    magic, version, size, pid, rank, local_rank, world_size, start, offset = layout.HEADER.unpack_from(header)
    if magic != layout.MAGIC:
        raise LedgerError(path, "magic", "not a ledger of Stepscope")
    sections = _sections(path, header, version)
    if size != file_bytes or file_bytes > layout.MAX_FILE_BYTES:
        raise LedgerError(path, "length", f"corrupt ledger: {file_bytes} bytes long, and says {size}")
    for section, least in zip(sections, _LEAST, strict=True):
        fits = least.items <= section.items <= file_bytes and least.item_bytes <= section.item_bytes <= 65536
        ends = section.at + section.items * section.item_bytes
        if not (fits and section.at >= layout.HEADER_BYTES and ends <= file_bytes):
            raise LedgerError(path, "length", "corrupt ledger: a section is outside the file")
    if not (0 <= rank < world_size <= MAX_RANK and -1 <= local_rank <= MAX_RANK and 0 < pid <= MAX_RANK):
        what = f"rank {rank} of {world_size}, local rank {local_rank}, process {pid}"
        raise LedgerError(path, "header", f"corrupt ledger: {what}")
    if not (abs(offset) <= LATEST and 0 <= start <= LATEST):  # nor is NaN
        raise LedgerError(path, "header", f"corrupt ledger: started at {start}, clock offset {offset}")
    return sections


def _sections(path: Path, header: bytes, version: int) -> Sections:
    readable_from = layout.IDENTITY.unpack_from(header, layout.IDENTITY_AT)[0]
    if version < layout.VERSION or not 0 < readable_from <= layout.VERSION:
        upgrade = "the exporter" if version > layout.VERSION else "the training environment"
        what = f"ledger version {version}, this Stepscope reads {layout.VERSION}"
        raise LedgerError(path, "version", f"{what}: upgrade Stepscope in {upgrade}")
    table = header[layout.SECTIONS_AT :][: len(_LEAST) * layout.SECTION.size]
    sections = Sections(*(Section(*each) for each in layout.SECTION.iter_unpack(table)))
    if any(section.items < 1 for section in sections):
        raise LedgerError(path, "length", "corrupt ledger: a section is missing")
    return sections


def checked_run_name(path: Path, raw: bytes) -> str:
    """Returns the name of the run. Raises LedgerError if a label or a log line could not show it."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        name = ""
    if not name or not name.isprintable() or not path.name.isprintable():
        raise LedgerError(path, "name", f"corrupt ledger: its run is named {raw[:80]!r}")
    return name


def checked_totals(path: Path, values: Sequence[float]) -> Sequence[float]:
    """Returns the values. Raises LedgerError if one of them cannot be a total."""
    # NaN is neither above nor below, but it makes the sum NaN.
    if not (isfinite(sum(values)) and min(values) >= 0 and max(values) <= LARGEST):
        raise LedgerError(path, "counter", "corrupt ledger: a counter is infinite, negative or not a number")
    return values


class _Bounds(NamedTuple):
    """The bounds of the doubles of a section, by their index."""

    fields: tuple[Field, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]

    @classmethod
    def of(cls, fields: tuple[Field, ...], items: int) -> _Bounds:
        least, most = [0.0] * items, [LARGEST] * items
        for _, at, count, highest, falls in fields:
            least[at : at + count] = [-highest if falls else 0.0] * count
            most[at : at + count] = [highest] * count
        return cls(fields, tuple(least), tuple(most))

    def check(self, path: Path, values: Sequence[float]) -> None:
        """Raises LedgerError for a value that cannot be."""
        usual = isfinite(sum(values)) and min(values) >= 0.0 and max(values) <= LATEST
        if usual or not (
            any(map(isnan, values)) or any(map(gt, values, self.most)) or any(map(lt, values, self.least))
        ):
            return
        within = map(_within, self.least, values, self.most)
        index = next(i for i, fits in enumerate(within) if not fits)
        name = next((name for name, at, count, *_ in self.fields if at <= index < at + count), "total")
        limits = f"it can be {self.least[index]:g} to {self.most[index]:g}"
        raise LedgerError(path, "counter", f"corrupt ledger: its {name} is {values[index]:g}, {limits}")


def _within(least: float, value: float, most: float) -> bool:
    return least <= value <= most


_COUNTERS = _Bounds.of(layout.FIELDS, layout.COUNTER_DOUBLES)
_WORKERS = _Bounds.of(layout.WORKER_FIELDS, layout.WORKER_DOUBLES)
# Counters that may fall: moments of the writer's clock, what it does now, and loaders' settings.
_FALLING = frozenset(i for i, least in enumerate(_COUNTERS.least) if least < 0)


def checked_counters(path: Path, counters: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the counters. Raises LedgerError if one of them cannot be."""
    _COUNTERS.check(path, counters)
    if counters[layout.COUNTER_STEP_PHASE] not in _PHASE_NUMBERS:
        raise LedgerError(path, "record", "corrupt ledger: the open step has no phase")
    component, operation = counters[layout.COUNTER_COMPONENT], counters[layout.COUNTER_OPERATION]
    if component not in _COMPONENT_NUMBERS or operation not in _OPERATION_NUMBERS:
        raise LedgerError(path, "record", "corrupt ledger: its component or operation does not exist")
    return counters


def checked_fetches(path: Path, slots: Sequence[Sequence[float]]) -> list[float]:
    """Returns the sums over the workers' slots. Raises LedgerError if one of them cannot be."""
    for slot in slots:
        _WORKERS.check(path, slot)
    sums = [sum(values) for values in zip(*slots, strict=True)] or [0.0] * layout.WORKER_DOUBLES
    _WORKERS.check(path, sums)
    return sums


def fell(before: Sequence[float], after: Sequence[float]) -> bool:
    """Returns whether one of the counters that only grow is less than it was."""
    return any(map(gt, before, after)) and any(
        x > y and i not in _FALLING for i, (x, y) in enumerate(zip(before, after, strict=True))
    )


def checked_record(path: Path, record: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the record. Raises LedgerError if it cannot be a step."""
    index, start, duration, phase, others = record[:5]
    if not (
        abs(start) <= LATEST  # nor is NaN
        and phase in _PHASE_NUMBERS
        and 0 <= duration <= LONGEST_STEP
        and 0 <= others < index <= MOST
        and isfinite(sum(record[5:]))
        and min(record[5:]) >= 0
        and max(record[5:]) <= LARGEST
    ):
        raise LedgerError(path, "record", f"corrupt ledger: step record {index} is not a step")
    return record
