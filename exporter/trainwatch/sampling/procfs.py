"""What the collectors of /proc share: how psutil is pointed at a root, how a flag leaves devices out."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def psutil_reading(procfs: Path, file: str) -> Iterator[None]:
    """psutil reads below `procfs` inside the block; what it chokes on names PROCFS/`file`.

    psutil's root is one variable of the whole process, so it is put back at once: whoever asks psutil
    about this very process still gets the real /proc.

    Raises OSError where the file cannot be read, ValueError where psutil cannot make sense of it.
    """
    before = psutil.PROCFS_PATH
    psutil.PROCFS_PATH = str(procfs)
    try:
        yield
    except (ValueError, LookupError, AssertionError, RuntimeError) as error:
        raise ValueError(f"{procfs / file}: not understood ({type(error).__name__}: {error})") from error
    finally:
        psutil.PROCFS_PATH = before


def device_pattern(text: str) -> re.Pattern[str]:
    """The type of a `--collector.NAME.device-exclude` flag: a regular expression for whole device names."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
