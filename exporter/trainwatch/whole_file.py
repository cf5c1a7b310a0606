"""Writes a file whole: a reader sees the old file or the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write to, and moves that file to `path` at the end.

    Only its owner may write to it, whatever the umask. Raises OSError, leaving `path` as it was.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    unfinished.unlink(missing_ok=True)  # of an earlier process with this pid
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        yield unfinished
        # A rename may reach the disk before the content does, so a power loss could leave an empty file.
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Replaces the file's content; half a character, as JSON may have it, becomes `?`. Raises OSError."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="replace")
