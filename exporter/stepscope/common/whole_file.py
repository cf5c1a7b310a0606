"""Writes a file whole: a reader sees the old file or the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stepscope.common.shared_files import create_file, move, remove

DEVICES = Path("/dev")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Gives a file to write to, and moves it to `path` at the end.

    Only its owner may write to it, whatever the umask. Raises OSError, leaving `path` as it was. A device,
    such as /dev/null, is written to: root could replace it.
    """
    if path.absolute().parent == DEVICES:
        with path.open("wb") as device:
            yield device
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    remove(unfinished)  # of an earlier process with this pid
    try:
        with os.fdopen(create_file(unfinished, 0o644, os.O_WRONLY), "wb") as file:
            yield file
            # A rename may reach the disk before the content does, so a power loss could leave an empty file.
            file.flush()
            os.fsync(file.fileno())
        move(unfinished, path)
    except BaseException:  # Ctrl-C, too
        remove(unfinished)
        raise


def write_whole(path: Path, text: str) -> None:
    """Replaces the file's content; half a character, as JSON may have it, becomes `?`. Raises OSError."""
    with replacing(path) as file:
        file.write(text.encode(errors="replace"))
