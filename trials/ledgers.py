"""Ledgers as other people leave them: genuine ones, dead or live, and everything else."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from math import inf, nan
from pathlib import Path
from random import Random
from struct import pack

from stepscope.common.shared_files import try_lock
from stepscope.training import layout

from tests.support.environment import unobserved

_SCRIPT = """
import stepscope
stepscope.start(run="template", framework="torch", framework_version="2.4")
stepscope.gauge("loss", 0.5)
now = 100.0
for step in range(300):
    phase = "eval" if step % 10 == 9 else "train"
    stepscope.record_step(phase, now, now + 0.01, data_wait=0.002, forward=0.003, backward=0.004)
    now += 0.011
with stepscope.step():
    with stepscope.component("forward"):
        pass
stepscope.finish()
"""

_DOUBLES = (inf, -inf, nan, -1.0, -0.0, 0.5, 5e-324, 1e300, 1e30, 2.0**53, 2.0**63, 2.0**64)
_INTEGERS = (-1, 0, 1, 7, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))

Fault = Callable[[Path, Random], None]


def template(folder: Path) -> bytes:
    """Returns a genuine ledger with steps in two phases, which its process has finished."""
    directory = folder / "template"
    environment = unobserved()
    environment |= {"STEPSCOPE_LEDGER_DIR": str(directory), "RANK": "0"}
    subprocess.run([sys.executable, "-c", _SCRIPT], env=environment, check=True)
    (ledger,) = directory.iterdir()
    return ledger.read_bytes()


def write(path: Path, content: bytes, run: str, rank: int = 0, live: bool = False) -> int | None:
    """Writes a ledger of another run and rank. Pages of zeros take no room on the disk.

    Holds the lock of a live one, as its process does. Closing the descriptor, which is returned, ends that.
    """
    magic, version, size, _, _, _, _, start, offset = layout.HEADER.unpack_from(content)
    head = bytearray(content[: layout.HEADER_BYTES])
    layout.HEADER.pack_into(head, 0, magic, version, size, 1, rank, rank, rank + 1, start, offset)
    head[layout.RUN_AT : layout.RUN_AT + layout.RUN_BYTES] = run.encode().ljust(layout.RUN_BYTES, b"\0")
    hidden = path.with_name(f".{path.name}.new")
    with open(hidden, "wb") as file:
        file.write(head)
        for at, page in _used_pages(content):
            file.seek(at)
            file.write(page)
        file.truncate(len(content))
    descriptor = os.open(hidden, os.O_RDWR | os.O_CLOEXEC) if live else None
    assert descriptor is None or try_lock(descriptor, layout.LOCK_ALIVE)
    hidden.rename(path)
    return descriptor


@cache
def _used_pages(content: bytes) -> list[tuple[int, bytes]]:
    """Returns the pages after the header that are not zero, with their places."""
    pages = ((at, content[at : at + 4096]) for at in range(layout.HEADER_BYTES, len(content), 4096))
    return [(at, page) for at, page in pages if any(page)]


def put(path: Path, at: int, data: bytes) -> None:
    """Overwrites bytes of a file in place, as a process that has it mapped does."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)


# -- faults: each changes a ledger in place ------------------------------------------------------------


def flip_bits(path: Path, random: Random) -> None:
    """Flips up to 64 bits among the bytes that are in use."""
    content = bytearray(path.read_bytes())
    used = [at for at, byte in enumerate(content) if byte] or [0]
    for _ in range(random.randint(1, 64)):
        content[random.choice(used)] ^= 1 << random.randrange(8)
    put(path, 0, bytes(content))


def odd_number(path: Path, random: Random) -> None:
    """Writes infinity, NaN, a negative or an immense number over a number of the counters or the ring."""
    first, last = random.choice(
        ((layout.COUNTERS_AT, layout.WORKERS_AT), (layout.RING_AT, layout.RING_AT + 128 * 300))
    )
    for _ in range(random.randint(1, 8)):
        put(path, random.randrange(first, last, 8), pack("<d", random.choice(_DOUBLES)))


def infinite_wait(path: Path, random: Random) -> None:
    """Writes an infinite wait into the newest step and the total."""
    put(path, layout.COUNTERS_AT + 8 * layout.COUNTER_OUTSIDE, pack("<d", inf))
    for record in range(layout.RING_RECORDS):
        if random.random() < 0.1:
            put(path, layout.RING_AT + record * layout.RECORD_BYTES + 7 * 8, pack("<d", inf))


def odd_header(path: Path, random: Random) -> None:
    """Writes an impossible version, size, rank, process or place of a section."""
    for _ in range(random.randint(1, 3)):
        put(path, random.randrange(8, layout.RUN_AT, 8), pack("<q", random.choice(_INTEGERS)))


def rank_too_large(path: Path, _: Random) -> None:
    """Writes the rank 2**31 of a world of that size."""
    put(path, 32, pack("<qqq", 2**31, 0, 2**31 + 1))


def other_magic(path: Path, random: Random) -> None:
    put(path, 0, random.randbytes(8))


def other_version(path: Path, random: Random) -> None:
    put(path, 8, pack("<q", random.choice((0, 99, -1, 2**40))))


def odd_name(path: Path, random: Random) -> None:
    """Writes random bytes over the names of run and framework."""
    put(path, layout.RUN_AT, random.randbytes(random.randint(1, layout.RUN_BYTES)))
    if random.random() < 0.5:
        put(path, layout.FRAMEWORK_AT, random.randbytes(layout.FRAMEWORK_BYTES))


def shrink(path: Path, random: Random) -> None:
    """Cuts the file off while it is mapped."""
    os.truncate(path, random.choice((0, 1, layout.HEADER_BYTES, random.randrange(layout.FILE_BYTES))))


def grow(path: Path, random: Random) -> None:
    os.truncate(path, layout.FILE_BYTES + random.choice((1, 4096, 2**30)))


def fall(path: Path, random: Random) -> None:
    """Sets all counters, or one of them, back to zero."""
    if random.random() < 0.5:
        put(path, layout.COUNTERS_AT, bytes(layout.WORKERS_AT - layout.COUNTERS_AT))
    else:
        put(path, random.randrange(layout.COUNTERS_AT, layout.WORKERS_AT, 8), bytes(8))


def random_bytes(path: Path, random: Random) -> None:
    """Overwrites a range, or everything, with random bytes."""
    at = random.choice((0, random.randrange(layout.FILE_BYTES)))
    put(path, at, random.randbytes(random.randint(1, layout.FILE_BYTES - at)))


def empty(path: Path, _: Random) -> None:
    os.truncate(path, 0)


def _replaced(make: Callable[[Path], object]) -> Fault:
    """Returns a fault that replaces the file by something else."""

    def replace(path: Path, _: Random) -> None:
        path.unlink()  # the faults above fail in the same way if the exporter has removed the ledger
        make(path)

    return replace


FAULTS: dict[str, Fault] = {
    "flipped bits": flip_bits,
    "infinity, NaN and the like": odd_number,
    "infinite wait": infinite_wait,
    "impossible header": odd_header,
    "rank 2**31": rank_too_large,
    "other magic": other_magic,
    "other version": other_version,
    "random name": odd_name,
    "shrunk": shrink,
    "grown": grow,
    "fallen totals": fall,
    "random bytes": random_bytes,
    "empty": empty,
    "fifo": _replaced(os.mkfifo),
    "directory": _replaced(os.mkdir),
    "symbolic link": _replaced(lambda path: path.symlink_to("/etc/passwd")),
    "symbolic link to itself": _replaced(lambda path: path.symlink_to(path.name)),
    "symbolic link to a device": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "socket": _replaced(lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)),
    "gone": _replaced(lambda _: None),
}
