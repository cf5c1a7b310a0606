"""Makes a rank's ledger file and keeps it open: the training process's side of the file."""

from __future__ import annotations

import mmap
import os
import time
from _thread import allocate_lock

from stepscope.common.shared_files import (
    AboveStandardStreams,
    Descriptor,
    create_locked,
    create_private,
    open_file,
    open_private,
    remove,
)
from stepscope.training import layout
from stepscope.training.launch import Launch
from stepscope.training.ledger_files import hidden_name, open_directory
from stepscope.training.ranks import visible_devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.training.ranks import Ranks

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Ledger:
    """An open ledger: a mapping of the whole file, and the descriptors that hold the locks.

    `fd` is of the file. `slots` is of the file that its workers lock, see `layout.SLOTS_FD_AT`. They stay
    open while the process counts: closing any descriptor of a file drops all its `lockf` locks on it.
    """

    def __init__(self, path: str, fd: int, memory: mmap.mmap, slots: int = -1) -> None:
        self.path = path
        self.fd = fd
        self.slots = slots
        self._ours = [Descriptor(each) for each in (fd, slots) if each >= 0]
        self.memory = memory
        self.counters = memoryview(memory)[layout.COUNTERS_AT : layout.WORKERS_AT].cast("d")
        self.named = memoryview(memory)[layout.GAUGES_AT :].cast("d")  # values of gauges and counts
        self.naming = allocate_lock()  # held while a name is added: two threads may begin with the same one
        self.gauges: dict[str, int] = {}  # the index in `named` of each name
        self.counts: dict[str, int] = {}  # likewise
        self.of_framework: set[str] = set()  # those names that the script has not set itself

    def name_framework(self, framework: str, version: str) -> None:
        _put_text(self.memory, layout.FRAMEWORK_VERSION_AT, layout.FRAMEWORK_VERSION_BYTES, version)
        _put_text(self.memory, layout.FRAMEWORK_AT, layout.FRAMEWORK_BYTES, framework)

    def name_run(self, run: str, launch: Launch) -> None:
        """Stores the identity of a run. `run` is its label, "" if that is known only at the first step."""
        _put_launch(self.memory, run, launch)

    @property
    def run(self) -> str:
        """Returns the label, "" before it is known."""
        raw = self.memory[layout.RUN_AT : layout.RUN_AT + layout.RUN_BYTES]
        return raw.partition(b"\0")[0].decode("utf-8", "replace")

    def name_devices(self, uuids: Sequence[str]) -> None:
        """Stores the devices that this process uses, at most layout.DEVICES, as NVML writes their UUIDs."""
        for number, uuid in enumerate(uuids[: layout.DEVICES]):
            _put_text(
                self.memory, layout.DEVICES_AT + number * layout.DEVICE_BYTES, layout.DEVICE_BYTES, uuid
            )

    def name_exception(self, kind: str, place: str) -> None:
        """Stores the type and the place of the exception that ends the process."""
        at = layout.EXCEPTION_AT + layout.EXCEPTION_TYPE_BYTES
        _put_text(self.memory, at, layout.EXCEPTION_PLACE_BYTES, place)
        _put_text(self.memory, layout.EXCEPTION_AT, layout.EXCEPTION_TYPE_BYTES, kind)

    def set_gauge(self, name: str, value: float) -> None:
        """Stores a gauge of the script. Raises ValueError for a bad name, or for one too many."""
        if name not in self.gauges or name in self.of_framework:
            with self.naming:
                is_ours = name in self.gauges and name not in self.of_framework  # by another thread, just now
                if not is_ours and len(self.gauges) - len(self.of_framework) == layout.SCRIPT_GAUGES:
                    most = f"a process has at most {layout.SCRIPT_GAUGES}"
                    raise ValueError(f"gauge {name!r} is one too many: {most}")
                self._add_gauge(name)
                self.of_framework.discard(name)
        self.named[self.gauges[name]] = value

    def offer_gauge(self, name: str, value: float) -> None:
        """Stores a gauge of the framework, if its name fits, there is room, and the script has none.

        Settings that hooks find have room of their own: frameworks may log more numbers than fit.
        """
        if name not in self.of_framework:
            with self.naming:
                logged = len(self.of_framework - layout.SETTINGS)
                full = logged == layout.FRAMEWORK_GAUGES and name not in layout.SETTINGS
                if name in self.gauges or full or not _fits(name):
                    return
                self._add_gauge(name)
                self.of_framework.add(name)
        self.named[self.gauges[name]] = value

    def add_to_count(self, name: str, amount: float) -> None:
        """Adds to a count of the script. Raises ValueError for a bad name, or for one too many."""
        if name not in self.counts:
            with self.naming:
                if name not in self.counts and len(self.counts) == layout.COUNTS:
                    most = f"a process has at most {layout.COUNTS}"
                    raise ValueError(f"count {name!r} is one too many: {most}")
                self._add_name("count", self.counts, layout.COUNTS_AT, layout.COUNTER_COUNTS, name)
        at = self.counts[name]
        self.named[at] += amount  # no call in between: no other thread's amount is lost

    def take_numbers_of(self, ledger: Ledger) -> None:
        """Takes the script's gauges and counts of a ledger that this one replaces."""
        for name, at in ledger.gauges.items():
            if name not in ledger.of_framework:
                self.set_gauge(name, ledger.named[at])
        for name, at in ledger.counts.items():
            self.add_to_count(name, ledger.named[at])

    def _add_gauge(self, name: str) -> None:
        self._add_name("gauge", self.gauges, layout.GAUGES_AT, layout.COUNTER_GAUGES, name)

    def _add_name(self, kind: str, names: dict[str, int], first: int, counter: int, name: str) -> None:
        """Stores the next name of a section, unless it has the name."""
        number = len(names)
        if name in names:
            return
        if not _fits(name):
            raise ValueError(
                f"{kind} name {name!r}: use 1 to {layout.GAUGE_NAME_BYTES - 1} bytes of printable text"
            )
        at = first + number * layout.GAUGE.size
        _put_text(self.memory, at + 8, layout.GAUGE_NAME_BYTES, name)
        names[name] = (at - layout.GAUGES_AT) // 8
        self.counters[counter] = float(number + 1)  # from here on a reader trusts the name

    def name_traces(self, folder: str, steps: int) -> None:
        """Stores the folder with the traces of windows, and the training steps until the last one ended."""
        if len(folder.encode("utf-8", "replace")) < layout.TRACES_BYTES:
            _put_text(self.memory, layout.TRACES_AT, layout.TRACES_BYTES, folder)
            self.counters[layout.COUNTER_TRACED] = float(steps)  # from here on a reader trusts the folder

    def look_at(self, steps: float) -> None:
        """Lets the recorder look around once it has recorded so many steps."""
        self.counters[layout.COUNTER_LOOK_AT] = steps

    def asks_for_window(self) -> bool:
        """Returns whether somebody has written a request for a profile window."""
        return any(self.memory[layout.WINDOW_AT : layout.WINDOW_AT + layout.DOUBLE.size])

    def has_steps(self) -> bool:
        return bool(self.counters[layout.COUNTER_RECORDED])

    def remove(self) -> None:
        """Removes the file and releases all locks."""
        remove(self.path)
        self._close()

    def finish(self) -> None:
        """Writes the end of the run and releases all locks; the mapping stays for its workers."""
        offset = layout.HEADER.unpack_from(self.memory)[-1]  # nobody sets the clock of the steps
        self.counters[layout.COUNTER_ENDED] = time.perf_counter() + offset
        self._close()

    def open_slots(self, holder: int) -> None:
        """Opens, in a worker, the locks of the slots that the process `holder` has made. Raises OSError."""
        (number,) = layout.SLOTS_FD.unpack_from(self.memory, layout.SLOTS_FD_AT)
        self.slots = open_private(holder, number)
        self._ours.append(Descriptor(self.slots))

    def _close(self) -> None:
        for each in self._ours:
            each.close()
        self.fd = self.slots = -1


def _fits(name: str) -> bool:
    return name.isprintable() and 0 < len(name.encode("utf-8", "replace")) < layout.GAUGE_NAME_BYTES


def create_ledger(
    directory: str, run: str, ranks: Ranks, launch: Launch | None = None, start: float | None = None
) -> Ledger:
    """Makes the ledger of this process in `directory`. Raises OSError.

    `run` is the label; without a launch it is the name, too. `start` is when this rank's part of the run
    began, in seconds since the epoch; None: now.
    """
    launch = launch or Launch(run, run)
    safe_run = "".join(c if c in _NAME_CHARACTERS else "_" for c in run or launch.name)[:80]
    name = f"{safe_run}.{ranks.rank}.{os.getpid()}.{os.urandom(4).hex()}{layout.SUFFIX}"

    def fill(memory: mmap.mmap) -> None:
        _put_header(memory, ranks, start)
        _put_launch(memory, run, launch)
        layout.SLOTS_FD.pack_into(memory, layout.SLOTS_FD_AT, slots)
        layout.EXCEPTION_OFFSET.pack_into(memory, layout.EXCEPTION_OFFSET_AT, layout.EXCEPTION_AT)
        layout.WINDOW_OFFSET.pack_into(memory, layout.WINDOW_OFFSET_AT, layout.WINDOW_AT)
        layout.TRACES_OFFSET.pack_into(memory, layout.TRACES_OFFSET_AT, layout.TRACES_AT)

    folder, slots = open_directory(directory), -1
    try:
        with AboveStandardStreams():
            slots = create_private(folder, hidden_name(name))
            size = layout.FILE_BYTES
            fd, memory = create_locked(folder, name, hidden_name(name), size, layout.LOCK_ALIVE, fill)
    except BaseException:
        if slots >= 0:
            os.close(slots)
        raise
    finally:
        os.close(folder)
    return Ledger(os.path.join(os.path.abspath(directory), name), fd, memory, slots)


def join_ledger(path: str) -> Ledger:
    """Opens the ledger of the process that this one works for. Raises OSError when it is gone."""
    fd = open_file(path, {os.geteuid()}, os.O_RDWR)
    try:
        if os.fstat(fd).st_size != layout.FILE_BYTES:
            raise OSError(f"{path} is no ledger of this version")
        memory = mmap.mmap(fd, layout.FILE_BYTES)
        magic, version = layout.HEADER.unpack_from(memory)[:2]
        if (magic, version) != (layout.MAGIC, layout.VERSION):
            raise OSError(f"{path} is no ledger of this version")
    except BaseException:
        os.close(fd)
        raise
    return Ledger(path, fd, memory)


def _put_launch(memory: mmap.mmap, run: str, launch: Launch) -> None:
    for at, size, text in (
        (layout.RUN_AT, layout.RUN_BYTES, run),
        (layout.LAUNCH_KEY_AT, layout.LAUNCH_KEY_BYTES, launch.key if launch.unique or not run else ""),
        (layout.NAME_AT, layout.NAME_BYTES, launch.name),
        (layout.SCHEDULER_AT, layout.SCHEDULER_BYTES, launch.scheduler),
        (layout.SCHEDULER_JOB_AT, layout.SCHEDULER_JOB_BYTES, launch.scheduler_job),
        (layout.NAMESPACE_AT, layout.NAMESPACE_BYTES, launch.namespace),
        (layout.POD_AT, layout.POD_BYTES, launch.pod),
    ):
        _put_text(memory, at, size, text)


def _put_header(memory: mmap.mmap, ranks: Ranks, start: float | None) -> None:
    now, clock = time.time(), time.perf_counter()
    local_rank = -1 if ranks.local_rank is None else ranks.local_rank
    layout.HEADER.pack_into(
        memory,
        0,
        layout.MAGIC,
        layout.VERSION,
        layout.FILE_BYTES,
        os.getpid(),
        ranks.rank,
        local_rank,
        ranks.world_size,
        now if start is None else start,
        now - clock,
    )
    layout.IDENTITY.pack_into(memory, layout.IDENTITY_AT, layout.READABLE_FROM, ranks.attempt)
    for number, section in enumerate(layout.SECTIONS):
        layout.SECTION.pack_into(memory, layout.SECTIONS_AT + number * layout.SECTION.size, *section)
    visible = visible_devices(os.environ)
    _put_text(memory, layout.VISIBLE_DEVICES_AT, layout.VISIBLE_DEVICES_BYTES, visible)


def _put_text(memory: mmap.mmap, at: int, size: int, text: str) -> None:
    data = text.encode("utf-8", "replace")[: size - 1].decode("utf-8", "ignore").encode()
    data = data.ljust(size, b"\0")
    memory[at + 1 : at + size] = data[1:]
    memory[at] = data[0]  # last: no reader sees half of a label
