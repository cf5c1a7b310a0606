"""Another user of the machine who means harm: `python -m trials.neighbour SEED SECONDS` in a sandbox.

It makes, renames, links, locks, truncates, floods and replaces names in every directory that Stepscope
shares, until its stdin ends, or for SECONDS. Then it removes what it made, and prints what it did as JSON. It
never has more than NAMES names, DESCRIPTORS open files and WAITERS processes.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from struct import pack

from stepscope.training import layout, line_layout

from trials.ledgers import FAULTS, put, template, write

SHARED = Path("/dev/shm")
LEDGERS = SHARED / "stepscope"
STATE, RECORDING, VICTIMS = Path("/var/lib/stepscope"), Path("/mnt"), Path("/srv")
FORGED = "forged by a neighbour"
NAMES, DESCRIPTORS, WAITERS = 300, 200, 12
PAUSE = 0.02  # seconds after some actions
ACTIONS = 4  # between two pauses
HUGE = 2**40  # bytes of a sparse file

_ABSURD = (1e20, 2.0**53, 2.0**63, 1e29, 0.5, 5e-324)
_COUNTERS = (
    *range(layout.COUNTER_PHASE_STEPS, layout.COUNTER_OUTSIDE + 9),
    *(layout.COUNTER_ENDED, layout.COUNTER_FIRST_STEP, layout.COUNTER_STEP_SINCE, layout.COUNTER_WAIT_SINCE),
    *(layout.COUNTER_DEVICE, layout.COUNTER_OWN, layout.COUNTER_OWN + 1),
)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "x").write_text(FORGED)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def _unreadable(path: Path) -> None:
    path.write_text(FORGED)
    path.chmod(0)


def _lines(path: Path) -> None:
    """Writes line samples of a process of nobody's, with immense counts."""
    size = line_layout.HEADER_BYTES + line_layout.SLOT_BYTES
    content = bytearray(size)
    line_layout.HEADER.pack_into(content, 0, line_layout.MAGIC, line_layout.VERSION, size, 1, 0, 1, 0, 0.0)
    content[line_layout.RUN_AT : line_layout.RUN_AT + 6] = b"forged"
    numbers = (0.0, 1.0, 0.0, *(1e29,) * 5)
    content[line_layout.NUMBERS_AT : line_layout.NUMBERS_AT + 64] = pack("<8d", *numbers)
    path.write_bytes(content)


KINDS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("finished"),
    "forgery": lambda path: path.write_text(f'  File "{FORGED}", line 1 in main\n'),
    "empty file": lambda path: path.touch(),
    "random bytes": lambda path: path.write_bytes(os.urandom(5000)),
    "unreadable file": _unreadable,
    "sparse file": _sparse,
    "line samples": _lines,
    "directory": Path.mkdir,
    "full directory": _folder,
    "FIFO": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a directory": lambda path: path.symlink_to("/proc"),
}


class Neighbour:
    """Acts at random, and knows what it has made and holds: all of it is bounded, and gone in the end."""

    def __init__(self, random: Random, genuine: bytes) -> None:
        self.done: Counter[str] = Counter()
        self._random = random
        self._genuine = genuine
        self._mine: list[Path] = []
        self._held: list[int] = []  # descriptors of live ledgers and of FIFOs
        self._locked: dict[Path, int] = {}  # never closed while it lives: that would drop its locks
        self._waiters: list[int] = []  # processes that wait for a lock
        self._number = 0

    def act(self) -> None:
        """Does one thing at random. What it may not do, it does not."""
        act = self._random.choice(
            (
                *(self._make, self._make, self._plant, self._plant_dead, self._flood),
                *(self._rename, self._link, self._lock, self._truncate, self._write, self._remove),
            )
        )
        with suppress(OSError):
            act()
            self.done[act.__name__.strip("_")] += 1
        while len(self._mine) > NAMES:
            self._drop(self._mine.pop(0))
        while len(self._held) > DESCRIPTORS // 2:
            os.close(self._held.pop(0))

    def meet(self) -> None:
        """Attacks every new ledger of somebody else at once: its locks and the names next to it."""
        with suppress(OSError):
            names = [name for name in os.listdir(LEDGERS) if name.endswith(layout.SUFFIX)]
            for path in (LEDGERS / name for name in names):
                if path not in self._locked:
                    self._meet(path)

    def _meet(self, path: Path) -> None:
        with suppress(OSError):
            if path.lstat().st_uid == os.geteuid():
                return
            self._open(path)
            with suppress(OSError):  # from the byte after the writer's up to the end
                fcntl.lockf(self._locked[path], fcntl.LOCK_SH | fcntl.LOCK_NB, 0, 1)
            self._wait_for_its_end(path)
            self.done["meet"] += 1
            for name, kinds in (
                (f"{path.name.split('.')[0]}.ended", ("directory", "FIFO", "text")),
                (f"{path.name}.stack", ("FIFO", "forgery", "directory")),
                (f"{path.name}.stack.request", ("FIFO", "text", "socket")),
            ):
                with suppress(OSError):
                    self._as(path.with_name(name), self._random.choice(kinds))

    def _open(self, path: Path) -> None:
        """Opens a file to lock it, and in turn the one that it has had for longest is closed."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if len(self._locked) == DESCRIPTORS // 2:
            os.close(self._locked.pop(next(iter(self._locked))))
        self._locked[path] = fd

    def _wait_for_its_end(self, path: Path) -> None:
        """Starts a process that gets a read lock on the whole file as soon as its process is gone."""
        if len(self._waiters) == WAITERS:
            oldest = self._waiters.pop(0)
            os.kill(oldest, signal.SIGKILL)
            os.waitpid(oldest, 0)
        pid = os.fork()
        if not pid:
            try:
                fd = os.open(path, os.O_RDONLY)
                fcntl.lockf(fd, fcntl.LOCK_SH)
                signal.pause()
            finally:
                os._exit(0)
        self._waiters.append(pid)

    # -- actions ---------------------------------------------------------------------------------------

    def _make(self) -> None:
        self._as(self._name(), self._random.choice(list(KINDS)))

    def _as(self, path: Path, kind: str) -> None:
        """Makes a name of this kind, in place of what it made there before."""
        if path in self._mine:
            self._mine.remove(path)
            self._drop(path)
        KINDS[kind](path)
        self._mine.append(path)
        if kind == "FIFO" and self._random.random() < 0.7:  # somebody reads from it, and finds something
            self._held.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            os.write(self._held[-1], f'Thread 0x1 (most recent call first):\n  File "{FORGED}"\n'.encode())

    def _plant(self) -> None:
        """Leaves a genuine ledger, live or dead, with absurd numbers or a fault."""
        path = self._ledger()
        live = self._random.random() < 0.5
        self._mine.append(path)
        descriptor = write(path, self._genuine, self._run(), rank=self._random.randrange(4), live=live)
        if descriptor is not None:
            self._held.append(descriptor)
        if self._random.random() < 0.3:  # as many steps as no column of a recording holds
            put(path, layout.COUNTERS_AT + 8 * (layout.COUNTER_PHASE_STEPS + 1), pack("<d", 1e20))
        for _ in range(self._random.randrange(3)):
            at = layout.COUNTERS_AT + 8 * self._random.choice(_COUNTERS)
            put(path, at, pack("<d", self._random.choice(_ABSURD)))
        if self._random.random() < 0.3:
            self._random.choice(list(FAULTS.values()))(path, self._random)
        if self._random.random() < 0.5:  # how it ended
            self._as(path.with_name(f"{path.name.split('.')[0]}.ended"), self._random.choice(list(KINDS)))

    def _plant_dead(self) -> None:
        """Leaves a ledger that the exporter removes at once, with something else next to it."""
        fields = list(layout.HEADER.unpack_from(self._genuine))
        fields[7] = 1000.0  # its start
        old = bytearray(self._genuine)
        layout.HEADER.pack_into(old, 0, *fields)
        old[layout.COUNTERS_AT + 8 : layout.COUNTERS_AT + 16] = pack("<d", 1001.0)  # its end
        path = self._ledger()
        for suffix in (".stack", ".stack.request"):
            self._as(path.with_name(path.name + suffix), self._random.choice(("full directory", *KINDS)))
        self._mine.append(path)
        write(path, bytes(old), self._run())

    def _flood(self) -> None:
        for _ in range(30):
            path = self._ledger()
            path.touch()
            self._mine.append(path)

    def _rename(self) -> None:
        path = self._random.choice(self._mine)
        new = self._name()
        path.rename(new)
        self._mine.append(new)

    def _link(self) -> None:
        source = self._random.choice([*self._mine, *self._locked, *self._private()])
        path = self._name()
        if self._random.random() < 0.5:
            path.symlink_to(source)
        else:
            os.link(source, path)
        self._mine.append(path)

    def _lock(self) -> None:
        """Locks a range of a file that it may read."""
        path = self._random.choice([*self._locked, *self._private()])
        if path not in self._locked:
            self._open(path)
        first, length = self._random.randrange(300), self._random.choice((0, 1, 128))
        fcntl.lockf(self._locked[path], fcntl.LOCK_SH | fcntl.LOCK_NB, length, first)
        fcntl.flock(self._locked[path], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _truncate(self) -> None:
        path = self._random.choice(self._mine)
        if path.is_file() and not path.is_symlink():
            os.truncate(path, self._random.choice((0, 1, 4096, layout.FILE_BYTES, HUGE)))

    def _write(self) -> None:
        path = self._random.choice(self._mine)
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            os.pwrite(fd, self._random.randbytes(64), self._random.randrange(layout.RING_AT))
        finally:
            os.close(fd)

    def _remove(self) -> None:
        self._drop(self._mine.pop(self._random.randrange(len(self._mine))))

    # -- names -----------------------------------------------------------------------------------------

    def _ledger(self) -> Path:
        self._number += 1
        return LEDGERS / f"n{self._number}.0.{self._number}.{self._random.getrandbits(32):08x}{layout.SUFFIX}"

    def _run(self) -> str:
        """Returns the label of a new run, of one of its own, or of somebody else's."""
        others = [path.name.split(".")[0] for path in self._locked if path.parent == LEDGERS]
        return self._random.choice((f"n{self._number}", f"n{self._number // 10}", "n", *others[-2:]))

    def _name(self) -> Path:
        """Returns a name that Stepscope uses, or might."""
        known = [path.name for path in self._locked if path.parent == LEDGERS]
        base = self._random.choice([*known[-3:], self._ledger().name])
        stem, label = base.removesuffix(layout.SUFFIX), base.split(".")[0]
        names = (
            *(base, f".{stem}.new", f"{stem}{line_layout.SUFFIX}", f".{stem}{line_layout.SUFFIX}.new"),
            *(f"{label}.ended", f"{base}.stack", f"{base}.stack.request"),
            *("startup", "startup/python", "startup/torch", ".observed"),
        )
        name = self._random.choice(names)
        directory = self._random.choice((LEDGERS, LEDGERS, LEDGERS, LEDGERS, self._other_directory()))
        return directory / name

    def _other_directory(self) -> Path:
        own = SHARED / f"stepscope-run-{self._random.randrange(20):08x}"
        with suppress(OSError):
            own.mkdir()
            self._mine.append(own)
        runs = [*SHARED.glob("stepscope-run-*"), *VICTIMS.glob("runs/*")]
        return self._random.choice([own, SHARED, STATE, RECORDING, VICTIMS, *runs])

    def _private(self) -> list[Path]:
        """Returns files of others that may be read: recordings and reports."""
        roots = [STATE, RECORDING, *VICTIMS.glob("runs/*")]
        return [path for root in roots for path in (*root.glob("*"), *root.glob("*/*"))][:100] or self._mine

    # -- the end ---------------------------------------------------------------------------------------

    def _drop(self, path: Path) -> None:
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def leave(self) -> None:
        """Removes everything that it made and holds."""
        for pid in self._waiters:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for descriptor in (*self._held, *self._locked.values()):
            os.close(descriptor)
        for path in self._mine:
            self._drop(path)


def main(seed: str, seconds: float) -> None:
    """Acts until stdin ends, or for these seconds."""
    folder = SHARED / "stepscope-run-neighbour"
    folder.mkdir()
    neighbour = Neighbour(Random(seed), template(folder))
    deadline = time.monotonic() + seconds
    try:
        print("ready", flush=True)
        while time.monotonic() < deadline and not select.select([sys.stdin], [], [], PAUSE)[0]:
            neighbour.meet()
            for _ in range(ACTIONS):
                neighbour.act()
    finally:
        neighbour.leave()
        shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(neighbour.done), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
