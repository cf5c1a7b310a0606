"""A small file that is often replaced as a whole and is never half-written.

Two slots take turns. Each has a sequence number and a checksum, and the newest complete slot counts. So a
`kill -9` between or within two writes leaves the state before or the state after. Writing is one `pwrite`
and not a store into a mapping. It takes some microseconds longer, but a full file system then raises
OSError, whereas a store would end the process with SIGBUS.
"""

import errno
import os
import struct
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from zlib import crc32

from stepscope.common.shared_files import UntrustedError, create_file, move, open_file, remove

MAGIC = b"SSSTATE\n"
VERSION = 1

_HEADER = struct.Struct("<8sII")  # magic, version, bytes per slot
_SLOT = struct.Struct("<QII")  # sequence number, length and checksum of the state that follows
_SLOT_ALIGNMENT = 4096
_LARGEST = 16 * 1024 * 1024

UNSAVED_SAMPLES = 4  # while more of them wait for the disk, counts are published unsaved


class StateFileError(Exception):
    """The file cannot be used; the message has the reason, on one line."""


class StateFile:
    """One state, replaced by `write`. Raises OSError if the file system refuses, otherwise StateFileError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._slot_bytes = 0
        self._sequence = 0

    def read(self) -> bytes:
        """Returns the newest complete state. Raises StateFileError on a corrupt or foreign file."""
        with os.fdopen(_open_own(self.path, os.O_RDONLY), "rb") as file:
            content = file.read(_LARGEST)
        if len(content) < _HEADER.size or not content.startswith(MAGIC):
            raise StateFileError("not a state file")
        _, version, slot_bytes = _HEADER.unpack_from(content)
        if version != VERSION:
            raise StateFileError(f"version {version}, this exporter reads version {VERSION}")
        found: tuple[int, bytes] | None = None
        for start in (_HEADER.size, _HEADER.size + slot_bytes):
            state = _read_slot(content[start : start + slot_bytes])
            if state and (found is None or state[0] > found[0]):
                found = state
        if found is None:
            raise StateFileError("corrupt: neither of its two checksums is right")
        self._slot_bytes = slot_bytes
        self._sequence = found[0]
        return found[1]

    def write(self, state: bytes) -> None:
        """Stores the state that `read` returns, now or in a later process."""
        if self._slot_bytes < _SLOT.size + len(state) or self._is_gone():
            self._create(state)
            return
        if self._descriptor is None:
            self._descriptor = _open_own(self.path, os.O_RDWR)
        sequence = self._sequence + 1
        start = _HEADER.size + sequence % 2 * self._slot_bytes
        slot = _slot(sequence, state)
        if os.pwrite(self._descriptor, slot, start) < len(slot):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._sequence = sequence

    def write_counts(self, counts: bytes) -> None:
        """Stores counts, or removes the file: its counts would be lower than those published meanwhile."""
        try:
            self.write(counts)
        except (OSError, StateFileError):
            with suppress(OSError):
                self.remove()
            raise

    def remove(self) -> None:
        """Deletes the file. Raises OSError if it cannot be deleted."""
        self.close()
        self._slot_bytes = 0  # the next write makes a new file
        if reason := remove(self.path):
            raise OSError(errno.EPERM, reason, str(self.path))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_gone(self) -> bool:
        """Returns whether somebody has deleted the file."""
        if self._descriptor is None:
            return not os.path.lexists(self.path)
        return os.fstat(self._descriptor).st_nlink == 0

    def _create(self, state: bytes) -> None:
        """Replaces the file by a new file with room for `state`, atomically."""
        self.close()
        slot_bytes = -(-(_SLOT.size + len(state)) // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT
        sequence = (self._sequence + 2) & ~1  # even: the first slot's
        content = _HEADER.pack(MAGIC, VERSION, slot_bytes) + _slot(sequence, state)
        unfinished = self.path.with_suffix(".new")
        remove(unfinished)  # left by a writer that was killed
        descriptor = create_file(unfinished, flags=os.O_WRONLY)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content.ljust(_HEADER.size + 2 * slot_bytes, b"\0"))
            move(unfinished, self.path)
        except OSError:
            remove(unfinished)
            raise
        self._slot_bytes, self._sequence = slot_bytes, sequence


def _open_own(path: Path, flags: int) -> int:
    """Opens a plain file of this user. Raises StateFileError if it is another's, or something else."""
    try:
        return open_file(path, {os.geteuid()}, flags, _LARGEST)
    except UntrustedError:
        raise StateFileError("not a plain file of this user, or too large") from None


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Returns what distinguishes this boot of the node from others; empty if the kernel does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _slot(sequence: int, state: bytes) -> bytes:
    return _SLOT.pack(sequence, len(state), _checksum(sequence, state)) + state


def _checksum(sequence: int, state: bytes) -> int:
    return crc32(state, sequence & 0xFFFFFFFF)


def _read_slot(slot: bytes) -> tuple[int, bytes] | None:
    if len(slot) < _SLOT.size:
        return None
    sequence, length, checksum = _SLOT.unpack_from(slot)
    state = slot[_SLOT.size : _SLOT.size + length]
    if not sequence or len(state) != length or checksum != _checksum(sequence, state):
        return None
    return sequence, state
