"""A small file that is often replaced as a whole and is never half-written.

Two slots take turns. Each has a sequence number and a checksum, and the newest complete slot counts. So a
`kill -9` between or within two writes leaves the state before or the state after. Writing is one `pwrite`
and not a store into a mapping. It takes some microseconds longer, but a full file system then raises
OSError, whereas a store would end the process with SIGBUS.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from zlib import crc32

MAGIC = b"TWSTATE\n"
VERSION = 1

_HEADER = struct.Struct("<8sII")  # magic, version, bytes per slot
_SLOT = struct.Struct("<QII")  # sequence number, length and checksum of the state that follows
_SLOT_ALIGNMENT = 4096
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW  # every user may be able to write to the directory


class StateFileError(Exception):
    """The file cannot be used; the message has the reason, on one line."""


class StateFile:
    """One state, replaced by `write`. Raises OSError if the file system refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._slot_bytes = 0
        self._sequence = 0

    def read(self) -> bytes:
        """Returns the newest complete state. Raises StateFileError on a corrupt or foreign file."""
        content = self.path.read_bytes()
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
        if self._slot_bytes < _SLOT.size + len(state):
            self._create(state)
            return
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | _OPEN)
        sequence = self._sequence + 1
        start = _HEADER.size + sequence % 2 * self._slot_bytes
        os.pwrite(self._descriptor, _slot(sequence, state), start)
        self._sequence = sequence

    def remove(self) -> None:
        """Deletes the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _create(self, state: bytes) -> None:
        """Replaces the file by a new file with room for `state`, atomically."""
        self.close()
        slot_bytes = -(-(_SLOT.size + len(state)) // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT
        sequence = (self._sequence + 2) & ~1  # even: the first slot's
        content = _HEADER.pack(MAGIC, VERSION, slot_bytes) + _slot(sequence, state)
        unfinished = self.path.with_suffix(".new")
        unfinished.unlink(missing_ok=True)  # left by a writer that was killed
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o644)
        with open(descriptor, "wb") as file:
            file.write(content.ljust(_HEADER.size + 2 * slot_bytes, b"\0"))
        unfinished.replace(self.path)
        self._slot_bytes, self._sequence = slot_bytes, sequence


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
