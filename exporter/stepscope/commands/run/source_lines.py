"""Reads the text of the lines in which a run spent its time, from the user's files on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from stat import S_ISREG

MOST_FILES, MOST_BYTES = 50, 4 << 20  # files that are read, and bytes of one
MOST_CHARACTERS = 100  # of a line


def source_lines(places: Iterable[str], command: Sequence[str], began: float) -> dict[str, str]:
    """Returns the text of each place (`file:line`) whose file is as it was when the run began, epoch seconds.

    Files are those below the working directory, and scripts that the command names.
    """
    named = {os.sep.join(path.parts[-2:]): path for word in command if (path := Path(word)).suffix == ".py"}
    files: dict[str, list[str]] = {}
    found = {}
    for place in places:
        name, _, number = place.rpartition(":")
        if name not in files:
            if len(files) >= MOST_FILES:
                continue
            files[name] = _read(named.get(name, Path(name)), began)
        line = int(number) if number.isdecimal() else 0
        if 0 < line <= len(files[name]) and (text := _clean(files[name][line - 1])):
            found[place] = text
    return found


def _read(path: Path, began: float) -> list[str]:
    """Returns the lines of a file; [] if it has changed since, or cannot be read."""
    try:
        if not path.is_absolute() and ".." in path.parts:
            return []
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not S_ISREG(status.st_mode) or status.st_mtime > began or status.st_size > MOST_BYTES:
                return []
            return file.read(MOST_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []


def _clean(line: str) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
