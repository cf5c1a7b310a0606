"""Reads the bytes of a recording's file, which may be damaged, or no file at all."""

from __future__ import annotations

from pathlib import Path


class DamageError(Exception):
    """A file of a recording that is left out. The message is a clause: "its checksum does not match"."""


def content(path: Path, offset: int = 0) -> bytes:
    """Returns a file's bytes. Raises DamageError if it cannot be read, FileNotFoundError if it is gone."""
    try:
        if path.exists() and not path.is_file():  # a pipe, for example, would never end
            raise DamageError("it is not a plain file")
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamageError(f"it cannot be read: {error.strerror}") from error
