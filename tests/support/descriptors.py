"""The files that this process has open."""

import gc
import os
from contextlib import suppress
from pathlib import Path


def open_below(*places: Path | str) -> list[str]:
    """Returns what is open at or below these places: other threads may open files elsewhere meanwhile."""
    gc.collect()  # closes what earlier tests left open
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was the listing's own, or another thread has closed it
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in found if any(Path(name).is_relative_to(place) for place in places))
