"""Checks what a ledger must hold to be believed, and names the reason why another is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from errno import EISDIR, ELOOP, ENXIO
from math import inf, isfinite
from operator import gt
from pathlib import Path
from typing import NamedTuple

from trainwatch.training import layout
from trainwatch.training.layout import COMPONENTS, LARGEST, MAX_RANK, OPERATIONS, PHASES

# The reasons for which a ledger is refused, as the exporter counts them.
REASONS = {
    "kind": "not a plain file: a symbolic link, a directory, a pipe",
    "permission": "the exporter may not read it",
    "length": "empty, cut short, or not as long as it says",
    "magic": "not a ledger",
    "version": "of a version of Trainwatch that this one cannot read",
    "header": "a rank, a process or a start that cannot be",
    "name": "a run name that is empty or cannot be printed",
    "counter": "a total that is infinite, negative or no number",
    "falling": "a total that fell",
    "record": "a step that cannot be",
    "unreadable": "an error of its file system",
}


class LedgerError(Exception):
    """A file that is refused as a ledger: one line that names the file, and one of REASONS."""

    def __init__(self, path: Path, reason: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.reason = reason


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
    counts: Section  # without items in the first ledgers of version 2


_OURS = Sections(*(Section(*each) for each in layout.SECTIONS))
_LEAST = _OURS._replace(gauges=_OURS.gauges._replace(items=layout.SCRIPT_GAUGES))
_OF_VERSION_1 = _LEAST._replace(gauges=Section(0, 0, 1), counts=Section(0, 0, 1))
_PHASE_NUMBERS = range(len(PHASES))  # a float is in it if it equals one of these numbers
_COMPONENT_NUMBERS = range(len(COMPONENTS) + 1)  # 0: none; the same below
_OPERATION_NUMBERS = range(len(OPERATIONS) + 1)


def open_plain_file(path: Path) -> int:
    """Returns a descriptor for reading. Raises LedgerError for anything but a plain file, and OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise LedgerError(path, "permission", f"may not be read by user {os.geteuid()}") from error
    except OSError as error:
        if error.errno in (ELOOP, EISDIR, ENXIO):
            raise LedgerError(path, "kind", "not a ledger: not a plain file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LedgerError(path, "kind", "not a ledger: not a plain file")
    return fd


def checked_sections(path: Path, header: bytes, file_bytes: int) -> Sections:
    """Returns where the sections are. Raises LedgerError if this version cannot read the file."""
    magic, version, size, pid, rank, local_rank, world_size, start, offset = layout.HEADER.unpack_from(header)
    if magic != layout.MAGIC:
        raise LedgerError(path, "magic", "not a ledger of Trainwatch")
    sections = _OF_VERSION_1 if version == 1 else _sections(path, header, version)
    if size != file_bytes or file_bytes > layout.MAX_FILE_BYTES:
        raise LedgerError(path, "length", f"corrupt ledger: {file_bytes} bytes long, and says {size}")
    for section, least in zip(sections, _LEAST, strict=True):
        fits = least.items <= section.items <= file_bytes and least.item_bytes <= section.item_bytes <= 65536
        ends = section.at + section.items * section.item_bytes
        if section.items and not (fits and section.at >= layout.HEADER_BYTES and ends <= file_bytes):
            raise LedgerError(path, "length", "corrupt ledger: a section is outside the file")
    if not (0 <= rank < world_size <= MAX_RANK and -1 <= local_rank <= MAX_RANK and 0 < pid <= MAX_RANK):
        what = f"rank {rank} of {world_size}, local rank {local_rank}, process {pid}"
        raise LedgerError(path, "header", f"corrupt ledger: {what}")
    if not (isfinite(offset) and 0 <= start < LARGEST):
        raise LedgerError(path, "header", f"corrupt ledger: started at {start}")
    return sections


def _sections(path: Path, header: bytes, version: int) -> Sections:
    readable_from = layout.IDENTITY.unpack_from(header, layout.IDENTITY_AT)[0]
    if version < 1 or not 0 < readable_from <= layout.VERSION:
        upgrade = "the exporter" if version > layout.VERSION else "the training environment"
        what = f"ledger version {version}, this Trainwatch reads 1 to {layout.VERSION}"
        raise LedgerError(path, "version", f"{what}: upgrade Trainwatch in {upgrade}")
    table = header[layout.SECTIONS_AT :][: len(_LEAST) * layout.SECTION.size]
    sections = Sections(*(Section(*each) for each in layout.SECTION.iter_unpack(table)))
    if any(section.items < 1 for section in sections[:-1]) or sections.counts.items < 0:
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


def _loader_settings() -> frozenset[int]:
    block = (
        layout.LOADER_KNOWN,
        layout.LOADER_WORKERS,
        layout.LOADER_PIN_MEMORY,
        layout.LOADER_PREFETCH,
        layout.LOADER_QUEUE,
        layout.LOADER_BATCH_SIZE,
    )
    at = (layout.COUNTER_LOADERS + phase * layout.LOADER_DOUBLES for phase in _PHASE_NUMBERS)
    return frozenset(start + setting for start in at for setting in block)


# Counters that may fall: moments of the writer's clock, what it does now, and loaders' settings.
_PRESENT = _loader_settings() | {
    layout.COUNTER_FIRST_STEP,
    layout.COUNTER_STEP_SINCE,
    layout.COUNTER_STEP_PHASE,
    layout.COUNTER_WAIT_SINCE,
    layout.COUNTER_COMPONENT,
    layout.COUNTER_COMPONENT_SINCE,
    layout.COUNTER_OPERATION,
}


def checked_counters(path: Path, counters: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the counters. Raises LedgerError if one of them cannot be."""
    lowest = min(counters)
    if not (isfinite(sum(counters)) and max(counters) <= LARGEST) or (
        lowest < 0 and any(value < 0 for i, value in enumerate(counters) if i not in _PRESENT)
    ):
        raise LedgerError(path, "counter", "corrupt ledger: a counter is infinite, negative or not a number")
    if counters[layout.COUNTER_STEP_PHASE] not in _PHASE_NUMBERS:
        raise LedgerError(path, "record", "corrupt ledger: the open step has no phase")
    component, operation = counters[layout.COUNTER_COMPONENT], counters[layout.COUNTER_OPERATION]
    if component not in _COMPONENT_NUMBERS or operation not in _OPERATION_NUMBERS:
        raise LedgerError(path, "record", "corrupt ledger: its component or operation does not exist")
    return counters


def fell(before: Sequence[float], after: Sequence[float]) -> bool:
    """Returns whether one of the counters that only grow is less than it was."""
    return any(map(gt, before, after)) and any(
        x > y and i not in _PRESENT for i, (x, y) in enumerate(zip(before, after, strict=True))
    )


def checked_record(path: Path, record: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the record. Raises LedgerError if it cannot be a step."""
    index, start, duration, phase, others = record[:5]
    if not (
        isfinite(start)
        and phase in _PHASE_NUMBERS
        and 0 <= duration < inf
        and 0 <= others < index <= LARGEST
        and isfinite(sum(record[5:]))
        and min(record[5:]) >= 0
        and max(record[5:]) <= LARGEST
    ):
        raise LedgerError(path, "record", f"corrupt ledger: step record {index} is not a step")
    return record
