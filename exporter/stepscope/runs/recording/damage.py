"""Reads the bytes of a recording's file, which may be damaged, or no file at all."""

from pathlib import Path

from stepscope.common.shared_files import UntrustedError, read_file

MOST_BYTES = 1 << 30  # a part of a minute has some megabytes


class DamageError(Exception):
    """A file of a recording that is left out. The message is a clause: "its checksum does not match"."""


def content(path: Path, offset: int = 0, most: int = MOST_BYTES) -> bytes:
    """Returns a file's bytes. Raises DamageError if it cannot be read, FileNotFoundError if it is gone."""
    try:
        return read_file(path, most, offset=offset)
    except FileNotFoundError:
        raise
    except UntrustedError as error:
        raise DamageError(
            "it is too large" if error.reason == "size" else "it is not a plain file"
        ) from error
    except OSError as error:
        raise DamageError(f"it cannot be read: {error.strerror}") from error
