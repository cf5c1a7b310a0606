"""Reads a rank's ledger from another process: counters, histograms, and steps as they finish.

Reading never delays the training process: no lock that it could wait for, no signal, no socket.
It uses `pread` and no mapping, so a file that another process truncates gives an error and no SIGBUS.
Nothing in a ledger is trusted: whatever it holds, the answer is valid values or a LedgerError.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from math import nan
from operator import gt, sub
from pathlib import Path
from struct import Struct
from typing import Any

from stepscope.common.shared_files import entries, is_locked, lock_holder
from stepscope.training import layout
from stepscope.training.launch import Launch
from stepscope.training.layout import COMPONENTS, MOST, OPERATIONS, PHASES
from stepscope.training.ledger_checks import LedgerError as LedgerError
from stepscope.training.ledger_checks import (
    Section,
    checked_counters,
    checked_fetches,
    checked_record,
    checked_run_name,
    checked_sections,
    checked_totals,
    fell,
    open_plain_file,
)

_COUNTERS = Struct(f"<{layout.COUNTER_DOUBLES}d")
_SLOT = Struct(f"<{layout.WORKER_DOUBLES}d")
_SLOTS_AT_ONCE = 8
_ONE = Struct("<d")
_TEXTS = (
    *("framework", "framework_version", "launch_key", "name", "scheduler", "scheduler_job", "namespace"),
    *("pod", "visible_devices"),
)
_DEVICES_AT = [layout.DEVICES_AT + number * layout.DEVICE_BYTES for number in range(layout.DEVICES)]
_TRIES = 10  # to copy the counters while no step finishes


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The process that writes the ledger."""

    run: str  # the label
    rank: int
    local_rank: int | None
    world_size: int
    pid: int  # in the writer's own pid namespace
    start: float  # seconds since the epoch
    framework: str  # "" when not known
    framework_version: str
    attempt: int = 0  # how often the launcher restarted the run
    launch_key: str = ""  # "" when not known: then reruns look alike
    devices: tuple[str, ...] = ()  # UUIDs, as far as the process knows
    name: str = ""  # of the run, for people
    scheduler: str = ""  # "slurm", "kubernetes", ...
    scheduler_job: str = ""
    namespace: str = ""  # of Kubernetes
    pod: str = ""
    named: bool = True  # False: the label may change once, before the first step
    visible_devices: str = ""  # CUDA_VISIBLE_DEVICES; "" when it is not set, "-1" when it is empty


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
    persistent_workers: bool | None = None
    restart_seconds: float | None = None  # of wait_sum, for the first batch of each pass but the first


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
    steps_recorded: int  # finished steps, all phases
    component_device_seconds: dict[str, float] = field(default_factory=dict)  # only components above 0
    loaders: tuple[LoaderTotals, ...] = ()
    fetch_counts: tuple[int, ...] = (0,) * layout.FETCH_BUCKETS  # all workers together
    fetch_sum: float = 0.0
    fetch_cpu_seconds: float = 0.0
    fetch_core_wait_seconds: float = 0.0  # ready to run, but no core was free
    gauges: dict[str, float] = field(default_factory=dict)  # of the training script
    counts: dict[str, float] = field(default_factory=dict)  # of the training script
    open_phase: str = ""  # of the step that is open; "": none is
    open_since: float | None = None  # since the epoch: when it began
    waiting_since: float | None = None  # since the epoch: when the batch was requested that it waits for
    # Training steps without communication, and the sum of their squares; NaN: not counted by this writer.
    own_seconds: float = nan
    own_squared_seconds: float = nan
    component: str = ""  # that training is in now; "": none of them, or not known
    component_since: float | None = None  # since the epoch; None: this writer does not say
    operation: str = ""  # of OPERATIONS that it waits in; "": not known
    # Within steps, seconds of each of COMPONENTS by phase. Without a phase: this writer does not say.
    inside: dict[str, Sequence[float]] = field(default_factory=dict)
    busiest_fetch_seconds: float = 0.0  # of fetch_sum, of the worker with most
    worker_threads: int = 0  # that compute, of all workers together
    traced_steps: int = 0  # training steps up to the end of the last window with a trace of operators


def open_ledgers(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the paths of the ledgers in `directory`, sorted. Yields nothing if it does not exist.

    Skips symbolic links and everything else that is not a plain file.
    """
    try:
        found = sorted(entries(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.name.endswith(layout.SUFFIX) and entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


_UNKNOWN = (0, 0)  # an inode


class LedgerReader:
    """One open ledger of another process.

    Never open a ledger in the process that writes it: closing any descriptor of a file drops all
    `lockf` locks that the process holds on it, and then the process seems dead.

    Raises LedgerError if the file is refused, now or when it is read, and OSError if it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._position = 0  # the number of step records that have been read
        self._base: tuple[float, ...] | None = None  # running component totals at `_position`
        self._counters: tuple[float, ...] = ()  # as of the last look, and per phase
        self._phases: list[float] = []
        self._fetched: list[float] = []
        self._named_counts: dict[str, float] = {}
        self._fd = -1
        self.inode = _UNKNOWN
        try:
            status = os.fstat(self._opened())
            self.owner = status.st_uid
            self.inode = (status.st_dev, status.st_ino)
            self.clock_offset = 0.0  # seconds since the epoch minus the writer's clock
            self._raw_header = b""
            self.header: LedgerHeader
            self._refresh_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LedgerReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. The next read opens it again, if it is still the same file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def alive(self) -> bool:
        """Returns whether the writer still holds its ledger: false once the kernel has ended the process."""
        return is_locked(self._opened(), layout.LOCK_ALIVE)

    def holder(self) -> int | None:
        """Returns the pid of the process that holds the ledger; see `ledger_files.lock_holder`."""
        return lock_holder(self._opened(), layout.LOCK_ALIVE)

    def exception(self) -> tuple[str, str] | None:
        """Returns the type and the place of the exception that ended the writer; None if none is known.

        The place is `file:line`, or "".
        """
        (at,) = layout.EXCEPTION_OFFSET.unpack_from(self._raw_header, layout.EXCEPTION_OFFSET_AT)
        if not 0 < at <= layout.MAX_FILE_BYTES:
            return None
        raw = self._read(at, layout.EXCEPTION_BYTES)
        kind = _text(raw, 0, layout.EXCEPTION_TYPE_BYTES)
        place = _text(raw, layout.EXCEPTION_TYPE_BYTES, layout.EXCEPTION_PLACE_BYTES)
        return (kind, place) if kind else None

    def trace_folder(self) -> str:
        """Returns the path of the folder with the traces of windows; "" if none is known."""
        (at,) = layout.TRACES_OFFSET.unpack_from(self._raw_header, layout.TRACES_OFFSET_AT)
        known = 0 < at <= layout.MAX_FILE_BYTES
        return _text(self._read(at, layout.TRACES_BYTES), 0, layout.TRACES_BYTES) if known else ""

    def totals(self) -> LedgerTotals:
        """Returns a copy of all counters, taken between two steps.

        If steps take less time than the copy (some 10 us), there may be no such moment: the histograms
        may then be a few steps ahead of the rest.
        """
        for _ in range(_TRIES):
            raw = self._read(self._sections.counters.at, _COUNTERS.size)
            counters = checked_counters(self.path, _COUNTERS.unpack(raw))
            recorded = int(counters[layout.COUNTER_RECORDED])
            newest = self._record(recorded) if recorded else None
            histograms = counters[layout.COUNTER_STEP_HISTOGRAM : layout.COUNTER_LOADERS]
            consistent = self._recorded() == recorded == sum(histograms)
            if consistent and (recorded == 0 or newest is not None):
                break
        if recorded and newest is None:
            raise LedgerError(
                self.path, "record", f"corrupt ledger: step record {recorded} is not in its slot"
            )
        if self._counters and fell(self._counters, counters):
            raise LedgerError(self.path, "falling", "corrupt ledger: a total fell")
        self._counters = counters
        self._refresh_header()
        return self._totals(counters, newest, consistent)

    def new_steps(self) -> tuple[list[StepRecord], int]:
        """Returns the steps finished since the last call, oldest first, and how many were overwritten unread.

        The components of a step are the difference to the record before. After an overrun the oldest
        record that is left is only the base of that difference, so it counts as lost, too.
        """
        recorded = self._recorded()
        if recorded < self._position:
            raise LedgerError(self.path, "falling", "corrupt ledger: the number of steps fell")
        # After a record was overwritten unread, the totals before the next one are those of the record there.
        known = self._position == 0 or self._base is not None
        ring, after = self._sections.ring, self._position if known else self._position - 1
        records = self._ring(ring, layout.RECORD, max(after, recorded - ring.items), recorded)
        # The writer may have lapped the reader: this is the index of the slot that it writes now.
        overwritten = self._recorded() + 1 - self._sections.ring.items
        steps: list[StepRecord] = []
        base, base_index = self._base, self._position
        for record in records:
            if not overwritten < record[0] <= recorded:
                continue
            index = int(checked_record(self.path, record)[0])
            if index == 1:
                base, base_index = (0.0,) * len(COMPONENTS), 0
            if base is not None and index == base_index + 1:
                steps.append(self._step(record, base))
            base, base_index = record[7:], index
        lost = recorded - self._position - len(steps)
        self._base = base if base_index == recorded else None
        self._position = recorded
        return steps, lost

    # -- reading -------------------------------------------------------------------------------------

    def _opened(self) -> int:
        if self._fd < 0:
            fd = open_plain_file(self.path)
            status = os.fstat(fd)
            if self.inode not in (_UNKNOWN, (status.st_dev, status.st_ino)):
                os.close(fd)
                raise FileNotFoundError(ENOENT, "replaced by another file", str(self.path))
            self._fd = fd
        return self._fd

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._opened(), size, offset)
        if len(data) != size:
            raise LedgerError(self.path, "length", f"corrupt ledger: cut off at {offset + len(data)} bytes")
        return data

    def _refresh_header(self) -> None:
        """Reads the header again if it changed: framework and devices become known after the start."""
        raw, before = self._read(0, layout.HEADER_BYTES), self._raw_header
        if raw == before:
            return
        if before and raw[: layout.HEADER.size] != before[: layout.HEADER.size]:
            raise LedgerError(self.path, "header", "corrupt ledger: its rank, process or start changed")
        header = self._parsed(raw)
        if before and header.run != self.header.run and self.header.named:
            raise LedgerError(self.path, "header", "corrupt ledger: its run changed")
        self._raw_header, self.header = raw, header

    def _parsed(self, raw: bytes) -> LedgerHeader:
        file_bytes = os.fstat(self._opened()).st_size
        self._sections = checked_sections(self.path, raw, file_bytes)
        _, _, _, pid, rank, local_rank, world_size, start, offset = layout.HEADER.unpack_from(raw)
        self.clock_offset = offset
        attempt = layout.IDENTITY.unpack_from(raw, layout.IDENTITY_AT)[1]
        label = _bytes(raw, layout.RUN_AT, layout.RUN_BYTES)
        texts = {name: _named_text(raw, name) for name in _TEXTS}
        named = bool(label) or not texts["name"]
        if not named:
            label = Launch(texts["name"], texts["launch_key"]).run.encode()
        return LedgerHeader(
            run=checked_run_name(self.path, label),
            named=named,
            rank=rank,
            local_rank=None if local_rank < 0 else local_rank,
            world_size=world_size,
            pid=pid,
            start=start,
            attempt=attempt if 0 <= attempt <= layout.MAX_RANK else 0,
            devices=tuple(filter(None, (_text(raw, at, layout.DEVICE_BYTES) for at in _DEVICES_AT))),
            **texts,
        )

    def _recorded(self) -> int:
        at = self._sections.counters.at + 8 * layout.COUNTER_RECORDED
        (number,) = _ONE.unpack(self._read(at, _ONE.size))
        if not 0 <= number <= MOST:  # nor is NaN
            raise LedgerError(self.path, "counter", f"corrupt ledger: {number:g} steps recorded")
        return int(number)

    def _record(self, index: int) -> tuple[float, ...] | None:
        (record,) = self._ring(self._sections.ring, layout.RECORD, index - 1, index)
        return checked_record(self.path, record) if record[0] == index else None

    def _ring(self, section: Section, item: Struct, first: int, end: int) -> list[tuple[Any, ...]]:
        """Returns the items of a ring by their numbers from 0: first..end-1, at most a whole ring."""
        if end <= first:
            return []
        begin, stop = first % section.items, (end - 1) % section.items + 1
        parts = [(begin, stop)] if begin < stop else [(begin, section.items), (0, stop)]
        size = section.item_bytes
        data = b"".join(self._read(section.at + a * size, (b - a) * size) for a, b in parts)
        if size != item.size:  # of a later version, which has more in an item
            data = b"".join(data[at : at + item.size] for at in range(0, len(data), size))
        return list(item.iter_unpack(data))

    def _step(self, record: tuple[float, ...], base: tuple[float, ...]) -> StepRecord:
        index, start, duration, phase, others = record[:5]
        components = tuple(total - before for total, before in zip(record[7:], base, strict=True))
        if min(components) < 0:
            raise LedgerError(self.path, "falling", "corrupt ledger: the seconds of a component fell")
        return StepRecord(
            number=int(index - others) - 1,
            phase=PHASES[int(phase)],
            start=start + self.clock_offset,
            duration=duration,
            components=components,
        )

    # -- totals --------------------------------------------------------------------------------------

    def _phase_totals(
        self, counters: tuple[float, ...], newest: tuple[float, ...] | None, consistent: bool
    ) -> tuple[list[float], list[float], list[float]]:
        """Returns steps, seconds and squares of each phase; the newest record has its phase's."""
        steps, seconds, squares = (
            list(counters[at : at + len(PHASES)])
            for at in (layout.COUNTER_PHASE_STEPS, layout.COUNTER_PHASE_SECONDS, layout.COUNTER_PHASE_SQUARES)
        )
        if newest is not None:
            phase = int(newest[3])
            steps[phase] = newest[0] - newest[4]
            seconds[phase], squares[phase] = newest[5:7]
        now = [*steps, *seconds, *squares]
        if self._phases and any(map(gt, self._phases, now)):
            if consistent:
                raise LedgerError(self.path, "falling", "corrupt ledger: the total of a phase fell")
            now = list(map(max, self._phases, now))
        self._phases = now
        count = len(PHASES)
        return now[:count], now[count : 2 * count], now[2 * count :]

    def _totals(
        self, counters: tuple[float, ...], newest: tuple[float, ...] | None, consistent: bool
    ) -> LedgerTotals:
        steps, seconds, squares = self._phase_totals(counters, newest, consistent)
        components = (0.0,) * len(COMPONENTS)
        first_start = last_end = None
        if newest is not None:
            components = newest[7:]
            first_start = counters[layout.COUNTER_FIRST_STEP] + self.clock_offset
            last_end = newest[1] + newest[2] + self.clock_offset
        outside = counters[layout.COUNTER_OUTSIDE :]
        device = zip(COMPONENTS, counters[layout.COUNTER_DEVICE :], strict=False)
        had_steps = [(i, phase) for i, phase in enumerate(PHASES) if steps[i] > 0]
        end = counters[layout.COUNTER_ENDED] or None
        phase_seconds = {phase: seconds[i] for i, phase in had_steps}
        fetches = self._fetches()
        open_since = self._moment(counters[layout.COUNTER_STEP_SINCE])
        if open_since is not None and last_end is not None and open_since < last_end:
            open_since = None
        own = counters[layout.COUNTER_OWN], counters[layout.COUNTER_OWN + 1]
        return LedgerTotals(
            first_step_start=first_start,
            last_step_end=last_end,
            end=end,
            steps={phase: int(steps[i]) for i, phase in had_steps},
            step_histogram={phase: (_step_counts(counters, i), seconds[i]) for i, phase in had_steps},
            step_squared_seconds={phase: squares[i] for i, phase in had_steps},
            phase_seconds=phase_seconds
            | derived_phases(self.header.start, first_start, last_end, end, phase_seconds),
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
            gauges=self._named(self._sections.gauges, int(counters[layout.COUNTER_GAUGES]), layout.GAUGES),
            counts=self._counted(int(counters[layout.COUNTER_COUNTS])),
            open_phase=PHASES[int(counters[layout.COUNTER_STEP_PHASE])] if open_since is not None else "",
            open_since=open_since,
            waiting_since=self._moment(_waiting_since(counters)),
            own_seconds=own[0],
            own_squared_seconds=own[1],
            component=("", *COMPONENTS)[int(counters[layout.COUNTER_COMPONENT])],
            component_since=self._moment(counters[layout.COUNTER_COMPONENT_SINCE]),
            operation=_operation(counters),
            inside=self._inside(counters, newest),
            busiest_fetch_seconds=self._busiest,
            worker_threads=self._threads,
            traced_steps=int(counters[layout.COUNTER_TRACED]),
        )

    def _inside(
        self, counters: tuple[float, ...], newest: tuple[float, ...] | None
    ) -> dict[str, Sequence[float]]:
        """Returns the component seconds of each phase; the newest record's has what the others lack."""
        if newest is None or self._sections.counters.items < layout.COUNTER_LOADER_PASSES:
            return {}
        values, count = counters[layout.COUNTER_PHASE_COMPONENTS :], len(COMPONENTS)
        inside = {
            phase: block
            for i, phase in enumerate(PHASES)
            if any(block := values[i * count : (i + 1) * count])
        }
        inside.pop(PHASES[int(newest[3])], None)
        left = list(newest[7:])
        for block in inside.values():
            left = list(map(sub, left, block))
        return inside | {PHASES[int(newest[3])]: [max(0.0, seconds) for seconds in left]}

    def _moment(self, clock: float) -> float | None:
        """Returns seconds since the epoch of a moment on the writer's clock; None for 0."""
        return clock + self.clock_offset if clock else None

    def _named(self, section: Section, count: int, most: int) -> dict[str, float]:
        raw = self._ring(section, layout.GAUGE, 0, min(count, most, section.items))
        return {_bytes(name, 0, len(name)).decode("utf-8", "replace"): value for value, name in raw}

    def _counted(self, count: int) -> dict[str, float]:
        counts = self._named(self._sections.counts, count, layout.COUNTS)
        if counts:
            checked_totals(self.path, list(counts.values()))
        if any(counts.get(name, 0.0) < before for name, before in self._named_counts.items()):
            raise LedgerError(self.path, "falling", "corrupt ledger: a count of the script fell")
        self._named_counts = counts
        return counts

    def _fetches(self) -> list[float]:
        """Returns the sum of all worker slots. Workers claim the first free slot: used slots come first."""
        used: list[tuple[Any, ...]] = []
        section = self._sections.workers
        for first in range(0, section.items, _SLOTS_AT_ONCE):
            slots = self._ring(section, _SLOT, first, min(first + _SLOTS_AT_ONCE, section.items))
            counted = [slot for slot in slots if slot[layout.WORKER_SECONDS] or slot[layout.WORKER_THREADS]]
            if not counted:
                break
            used += counted
        sums = checked_fetches(self.path, used)
        self._threads, sums[layout.WORKER_THREADS] = int(sums[layout.WORKER_THREADS]), 0.0
        if self._fetched and any(map(gt, self._fetched, sums)):
            raise LedgerError(self.path, "falling", "corrupt ledger: the total of a worker fell")
        self._fetched = sums
        self._busiest = max((slot[layout.WORKER_SECONDS] for slot in used), default=0.0)
        return sums


def _bytes(raw: bytes, at: int, size: int) -> bytes:
    return raw[at : at + size].split(b"\0", 1)[0]


def _text(raw: bytes, at: int, size: int) -> str:
    """Returns a text of the header; a label or a log line can show all of it."""
    text = _bytes(raw, at, size).decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "_" for character in text)


def _named_text(raw: bytes, name: str) -> str:
    """Returns the text of the header that has this field of LedgerHeader."""
    at, size = (getattr(layout, f"{name.upper()}_{what}") for what in ("AT", "BYTES"))
    return _text(raw, at, size)


def _operation(counters: tuple[float, ...]) -> str:
    """Returns the operation of communication; that of a wait before may still be there."""
    communicates = counters[layout.COUNTER_COMPONENT] == 1 + COMPONENTS.index("communication")
    return ("", *OPERATIONS)[int(counters[layout.COUNTER_OPERATION])] if communicates else ""


def _step_counts(counters: tuple[float, ...], phase: int) -> tuple[int, ...]:
    at = layout.COUNTER_STEP_HISTOGRAM + phase * layout.STEP_BUCKETS
    return tuple(map(int, counters[at : at + layout.STEP_BUCKETS]))


def derived_phases(
    start: float, first: float | None, last: float | None, end: float | None, phases: dict[str, float]
) -> dict[str, float]:
    """Returns the seconds before, between and after steps, as far as they are known: see LedgerTotals."""
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
        at = layout.COUNTER_LOADER_PASSES + i * layout.LOADER_PASSES
        persistent, *restarts = counters[at : at + layout.LOADER_PASSES] or (0.0,)
        yield LoaderTotals(
            phase=phase,
            workers=_known(block[layout.LOADER_WORKERS]),
            pin_memory=None if pin_memory is None else bool(pin_memory),
            prefetch_factor=_known(block[layout.LOADER_PREFETCH]),
            wait_counts=tuple(map(int, block[layout.LOADER_WAIT_COUNTS :])),
            wait_sum=block[layout.LOADER_WAIT_SUM],
            queue_depth=_known(block[layout.LOADER_QUEUE]),
            batch_size=int(block[layout.LOADER_BATCH_SIZE]) if block[layout.LOADER_BATCH_SIZE] > 0 else None,
            persistent_workers=persistent > 1.0 if persistent else None,
            restart_seconds=restarts[0] if restarts else None,
        )


def _waiting_since(counters: tuple[float, ...]) -> float:
    """Returns since when training waits for a batch: hooks only say so as the component of now."""
    waiting = counters[layout.COUNTER_COMPONENT] == 1 + COMPONENTS.index("data_wait")
    return counters[layout.COUNTER_WAIT_SINCE] or (waiting and counters[layout.COUNTER_COMPONENT_SINCE])


def _known(value: float) -> int | None:
    return None if value < 0 else int(value)
