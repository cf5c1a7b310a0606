"""`trainwatch-runs/`: one directory per run."""

from __future__ import annotations

import re
import time
from pathlib import Path

RUNS = Path("trainwatch-runs")


def new_directory(name: str) -> Path:
    """Returns the absolute path for a run that begins now; makes nothing."""
    stem = re.sub(r"[^\w.+-]+", "_", name) + time.strftime("-%Y%m%dT%H%M%SZ", time.gmtime())
    # Two runs that start in the same second must not share a directory.
    candidates = [RUNS / stem, *(RUNS / f"{stem}-{number}" for number in range(2, 1000))]
    return next(path for path in candidates if not path.exists()).absolute()
