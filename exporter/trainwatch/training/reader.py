"""Reads a rank's ledger from another process: counters, histograms, and steps as they finish.

Reading never delays the training process: no lock that it could wait for, no signal, no socket.
It uses `pread` and no mapping, so a file that another process truncates gives an error and no SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from struct import Struct

from trainwatch.training import layout
from trainwatch.training.layout import COMPONENTS, PHASES
from trainwatch.training.ledger_files import is_locked, lock_holder

_COUNTERS = Struct(f"<{layout.COUNTER_DOUBLES}d")
_SLOT = Struct(f"<{layout.WORKER_DOUBLES}d")
_SLOTS_AT_ONCE = 8
_ONE = Struct("<d")
_PHASE_NUMBERS = range(len(PHASES))  # a float is in it if it equals one of these numbers
_TRIES = 10  # to copy the counters while no step finishes


class LedgerError(Exception):
    """A file that is no ledger this version can read; the message is one line and names the file."""


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The process that writes the ledger."""

    run: str
    rank: int
    local_rank: int | None
    world_size: int
    pid: int  # in the writer's own pid namespace
    start: float  # seconds since the epoch
    framework: str  # "" when not known
    framework_version: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished step."""

    number: int  # within its phase, from 0
    phase: str
    start: float  # seconds since the epoch
    duration: float  # seconds
    components: tuple[float, ...]  # seconds of this step in each of COMPONENTS


@dataclass(frozen=True, slots=True)
class LoaderTotals:
    """The watched data loader of one phase. Waits have len(WAIT_BOUNDS) + 1 buckets, not cumulative."""

    phase: str
    workers: int | None  # None: not known
    pin_memory: bool | None
    prefetch_factor: int | None
    wait_counts: tuple[int, ...]
    wait_sum: float  # seconds
    queue_depth: int | None  # batches that were ready when training took the last batch
    batch_size: int | None = None  # items per batch of this rank


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """The counters of one rank so far. Seconds; histogram counts are per bucket, not cumulative.

    `phase_seconds` has the phases that had a step, and three more. `initialization` is from the start to
    the first step, known once a step finished or the run ended. `other` is between steps. `finalization`
    is from the last step to the end, known once the run ended cleanly. None of them ever falls.
    """

    first_step_start: float | None  # since the epoch
    last_step_end: float | None  # since the epoch
    end: float | None  # since the epoch, if the process finished cleanly
    steps: dict[str, int]  # finished steps by phase; only phases with a step, here and below
    step_histogram: dict[str, tuple[tuple[int, ...], float]]  # (len(STEP_BOUNDS) + 1 counts, sum)
    step_squared_seconds: dict[str, float]
    phase_seconds: dict[str, float]
    component_seconds: dict[str, float]  # host time, every component
    component_device_seconds: dict[str, float]  # device time, only components above 0
    loaders: tuple[LoaderTotals, ...]
    fetch_counts: tuple[int, ...]  # len(FETCH_BOUNDS) + 1 counts, all workers together
    fetch_sum: float
    fetch_cpu_seconds: float
    fetch_core_wait_seconds: float  # ready to run, but no core was free
    steps_recorded: int  # finished steps, all phases


def open_ledgers(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the paths of the ledgers in `directory`, sorted. Yields nothing if it does not exist.

    Skips symbolic links and everything else that is not a plain file.
    """
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.endswith(layout.SUFFIX) and entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


class LedgerReader:
    """One open ledger of another process.

    `position` is the number of step records that an earlier reader of the same file has read:
    `new_steps` continues after it.

    Never open a ledger in the process that writes it: closing any descriptor of a file drops all
    `lockf` locks that the process holds on it, and then the process seems dead.

    Raises LedgerError if the file is corrupt, foreign or of a newer version, and OSError if it cannot
    be opened.
    """

    def __init__(self, path: str | os.PathLike[str], position: int = 0) -> None:
        self.path = Path(path)
        self.position = position
        self._base: tuple[float, ...] | None = None  # running component totals at `position`
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._clock_offset = 0.0
            self.header = self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def alive(self) -> bool:
        """Returns whether the writer still holds its ledger: false once the kernel has ended the process."""
        return is_locked(self._fd, layout.LOCK_ALIVE)

    def holder(self) -> int | None:
        """Returns the pid of the process that holds the ledger; see `ledger_files.lock_holder`."""
        return lock_holder(self._fd, layout.LOCK_ALIVE)

    def owner(self) -> int:
        """Returns the number of the user who owns the file."""
        return os.fstat(self._fd).st_uid

    def totals(self) -> LedgerTotals:
        """Returns a copy of all counters, taken between two steps.

        If steps take less time than the copy (some 10 us), there may be no such moment: the histograms
        may then be a few steps ahead of the rest.
        """
        for _ in range(_TRIES):
            counters = _COUNTERS.unpack(self._read(layout.COUNTERS_AT, _COUNTERS.size))
            if not isfinite(sum(counters)):
                raise LedgerError(f"{self.path}: corrupt ledger: a counter is not a finite number")
            recorded = int(counters[layout.COUNTER_RECORDED])
            newest = self._record(recorded) if recorded else None
            histograms = counters[layout.COUNTER_STEP_HISTOGRAM : layout.COUNTER_LOADERS]
            if self._recorded() == recorded == sum(histograms) and (recorded == 0 or newest is not None):
                break
        if recorded and newest is None:
            raise LedgerError(f"{self.path}: corrupt ledger: step record {recorded} is not in its slot")
        self._refresh_framework()
        return self._totals(counters, newest)

    def new_steps(self) -> tuple[list[StepRecord], int]:
        """Returns the steps finished since the last call, oldest first, and how many were overwritten unread.

        The components of a step are the difference to the record before. After an overrun the oldest
        record that is left is only the base of that difference, so it counts as lost, too.
        """
        recorded = self._recorded()
        # A reader that continues an earlier reader also needs the record before its position.
        known = self.position == 0 or self._base is not None
        records = self._records(self.position if known else self.position - 1, recorded)
        # The writer may have lapped the reader: this is the index of the slot that it writes now.
        overwritten = self._recorded() + 1 - layout.RING_RECORDS
        steps: list[StepRecord] = []
        base, base_index = self._base, self.position
        for record in records:
            if not overwritten < record[0] <= recorded:
                continue
            index = int(self._checked(record)[0])
            if index == 1:
                base, base_index = (0.0,) * len(COMPONENTS), 0
            if base is not None and index == base_index + 1:
                steps.append(self._step(record, base))
            base, base_index = record[7:], index
        lost = recorded - self.position - len(steps)
        self._base = base if base_index == recorded else None
        self.position = recorded
        return steps, lost

    # -- reading -------------------------------------------------------------------------------------

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) != size:
            raise LedgerError(f"{self.path}: corrupt ledger: cut off at {offset + len(data)} bytes")
        return data

    def _read_header(self) -> LedgerHeader:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise LedgerError(f"{self.path}: not a ledger: not a plain file")
        raw = self._read(0, layout.HEADER_BYTES)
        magic, version, size, pid, rank, local_rank, world_size, start, offset = layout.HEADER.unpack_from(
            raw
        )
        if magic != layout.MAGIC:
            raise LedgerError(f"{self.path}: not a ledger of Trainwatch")
        if version != layout.VERSION:
            raise LedgerError(
                f"{self.path}: ledger version {version}, this Trainwatch reads {layout.VERSION}: "
                "use the same version of Trainwatch for training and exporter"
            )
        if size != layout.FILE_BYTES or os.fstat(self._fd).st_size != size:
            raise LedgerError(f"{self.path}: corrupt ledger: not {layout.FILE_BYTES} bytes long")
        if not (isfinite(start) and isfinite(offset)):
            raise LedgerError(f"{self.path}: corrupt ledger: its start is not a finite number")
        self._clock_offset = offset
        return LedgerHeader(
            run=_text(raw, layout.RUN_AT, layout.RUN_BYTES),
            rank=rank,
            local_rank=None if local_rank < 0 else local_rank,
            world_size=world_size,
            pid=pid,
            start=start,
            framework=_text(raw, layout.FRAMEWORK_AT, layout.FRAMEWORK_BYTES),
            framework_version=_text(raw, layout.FRAMEWORK_VERSION_AT, layout.FRAMEWORK_VERSION_BYTES),
        )

    def _refresh_framework(self) -> None:
        """Reads the header again: the framework may become known only at the first step."""
        if not self.header.framework:
            self.header = self._read_header()

    def _recorded(self) -> int:
        at = layout.COUNTERS_AT + 8 * layout.COUNTER_RECORDED
        (recorded,) = _ONE.unpack(self._read(at, 8))
        if not (isfinite(recorded) and recorded >= 0):
            raise LedgerError(f"{self.path}: corrupt ledger: {recorded} steps recorded")
        return int(recorded)

    def _record(self, index: int) -> tuple[float, ...] | None:
        slot = (index - 1) % layout.RING_RECORDS
        data = self._read(layout.RING_AT + slot * layout.RECORD_BYTES, layout.RECORD_BYTES)
        record = layout.RECORD.unpack(data)
        return self._checked(record) if record[0] == index else None

    def _checked(self, record: tuple[float, ...]) -> tuple[float, ...]:
        """Returns the record. Raises LedgerError if it cannot be a step."""
        if not isfinite(sum(record)) or record[3] not in _PHASE_NUMBERS:
            raise LedgerError(f"{self.path}: corrupt ledger: step record {record[0]} is not a step")
        return record

    def _records(self, after: int, last: int) -> list[tuple[float, ...]]:
        """Returns the records with indices after+1..last, at most a whole ring."""
        after = max(after, last - layout.RING_RECORDS)
        begin, end = after % layout.RING_RECORDS, (last - 1) % layout.RING_RECORDS + 1
        if last <= after:
            return []
        parts = [(begin, end)] if begin < end else [(begin, layout.RING_RECORDS), (0, end)]
        size = layout.RECORD_BYTES
        data = b"".join(self._read(layout.RING_AT + a * size, (b - a) * size) for a, b in parts)
        return list(layout.RECORD.iter_unpack(data))

    def _step(self, record: tuple[float, ...], base: tuple[float, ...]) -> StepRecord:
        index, start, duration, phase, others = record[:5]
        return StepRecord(
            number=int(index - others) - 1,
            phase=PHASES[int(phase)],
            start=start + self._clock_offset,
            duration=duration,
            components=tuple(total - before for total, before in zip(record[7:], base, strict=True)),
        )

    # -- totals --------------------------------------------------------------------------------------

    def _totals(self, counters: tuple[float, ...], newest: tuple[float, ...] | None) -> LedgerTotals:
        steps, seconds, squares = (
            list(counters[at : at + len(PHASES)])
            for at in (layout.COUNTER_PHASE_STEPS, layout.COUNTER_PHASE_SECONDS, layout.COUNTER_PHASE_SQUARES)
        )
        components = (0.0,) * len(COMPONENTS)
        first_start = last_end = None
        if newest is not None:
            phase = int(newest[3])
            steps[phase] = newest[0] - newest[4]
            seconds[phase], squares[phase] = newest[5:7]
            components = newest[7:]
            first_start = counters[layout.COUNTER_FIRST_STEP] + self._clock_offset
            last_end = newest[1] + newest[2] + self._clock_offset
        outside = counters[layout.COUNTER_OUTSIDE :]
        device = zip(COMPONENTS, counters[layout.COUNTER_DEVICE :], strict=False)
        had_steps = [(i, phase) for i, phase in enumerate(PHASES) if steps[i] > 0]
        end = counters[layout.COUNTER_ENDED] or None
        phase_seconds = {phase: seconds[i] for i, phase in had_steps}
        fetches = self._fetches()
        return LedgerTotals(
            first_step_start=first_start,
            last_step_end=last_end,
            end=end,
            steps={phase: int(steps[i]) for i, phase in had_steps},
            step_histogram={phase: (_step_counts(counters, i), seconds[i]) for i, phase in had_steps},
            step_squared_seconds={phase: squares[i] for i, phase in had_steps},
            phase_seconds=phase_seconds
            | _derived_phases(self.header.start, first_start, last_end, end, phase_seconds),
            component_seconds={
                name: inside + extra
                for name, inside, extra in zip(COMPONENTS, components, outside, strict=False)
            },
            component_device_seconds={name: value for name, value in device if value > 0},
            loaders=tuple(_loaders(counters)),
            fetch_counts=tuple(map(int, fetches[layout.WORKER_COUNTS :][: layout.FETCH_BUCKETS])),
            fetch_sum=fetches[layout.WORKER_SECONDS],
            fetch_cpu_seconds=fetches[layout.WORKER_CPU_SECONDS],
            fetch_core_wait_seconds=fetches[layout.WORKER_CORE_WAIT_SECONDS],
            steps_recorded=int(newest[0]) if newest is not None else 0,
        )

    def _fetches(self) -> list[float]:
        """Returns the sum of all worker slots. Workers claim the first free slot: used slots come first."""
        used: list[tuple[float, ...]] = []
        size = _SLOTS_AT_ONCE * _SLOT.size
        for at in range(0, layout.WORKER_SLOTS * _SLOT.size, size):
            slots = _SLOT.iter_unpack(self._read(layout.WORKERS_AT + at, size))
            counted = [slot for slot in slots if slot[layout.WORKER_SECONDS]]
            if not counted:
                break
            used += counted
        return [sum(values) for values in zip(*used, strict=True)] or [0.0] * layout.WORKER_DOUBLES


def _text(raw: bytes, at: int, size: int) -> str:
    return raw[at : at + size].split(b"\0", 1)[0].decode("utf-8", "replace")


def _step_counts(counters: tuple[float, ...], phase: int) -> tuple[int, ...]:
    at = layout.COUNTER_STEP_HISTOGRAM + phase * layout.STEP_BUCKETS
    return tuple(map(int, counters[at : at + layout.STEP_BUCKETS]))


def _derived_phases(
    start: float, first: float | None, last: float | None, end: float | None, phases: dict[str, float]
) -> dict[str, float]:
    if first is None or last is None:
        return {} if end is None else {"initialization": max(0.0, end - start)}
    derived = {
        "initialization": max(0.0, first - start),
        "other": max(0.0, last - first - sum(phases.values())),
    }
    if end is not None:
        derived["finalization"] = max(0.0, end - last)
    return derived


def _loaders(counters: tuple[float, ...]) -> Iterator[LoaderTotals]:
    for i, phase in enumerate(PHASES):
        at = layout.COUNTER_LOADERS + i * layout.LOADER_DOUBLES
        block = counters[at : at + layout.LOADER_DOUBLES]
        if not block[layout.LOADER_KNOWN]:
            continue
        pin_memory = _known(block[layout.LOADER_PIN_MEMORY])
        yield LoaderTotals(
            phase=phase,
            workers=_known(block[layout.LOADER_WORKERS]),
            pin_memory=None if pin_memory is None else bool(pin_memory),
            prefetch_factor=_known(block[layout.LOADER_PREFETCH]),
            wait_counts=tuple(map(int, block[layout.LOADER_WAIT_COUNTS :])),
            wait_sum=block[layout.LOADER_WAIT_SUM],
            queue_depth=_known(block[layout.LOADER_QUEUE]),
            batch_size=int(block[layout.LOADER_BATCH_SIZE]) if block[layout.LOADER_BATCH_SIZE] > 0 else None,
        )


def _known(value: float) -> int | None:
    return None if value < 0 else int(value)
