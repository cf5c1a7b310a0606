"""The files that this process has open."""

import errno
import gc
import io
import os
from contextlib import suppress
from pathlib import Path

import pytest


def no_descriptors(patched: pytest.MonkeyPatch, call: str = "open", only: str = "") -> None:
    """Lets `listdir` of os or `open` of io fail as if too many were open; `only` for paths that end so."""
    module = io if call == "open" else os
    real = getattr(module, call)

    def full(path: Path, *words: object, **named: object) -> object:
        if str(path).endswith(only):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *words, **named)

    patched.setattr(module, call, full)


def open_below(*places: Path | str) -> list[str]:
    """Returns what is open at or below these places: other threads may open files elsewhere meanwhile."""
    gc.collect()  # closes what earlier tests left open
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was the listing's own, or another thread has closed it
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in found if any(Path(name).is_relative_to(place) for place in places))
