"""Writes a file whole: a reader sees the old file or the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write to, and moves that file to `path` at the end.

    Raises OSError, leaving `path` as it was.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        # A rename may reach the disk before the content does, so a power loss could leave an empty file.
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Replaces the file's content. Raises OSError, leaving the file as it was."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
