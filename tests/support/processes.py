"""Processes that a test runs to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.waiting import SECONDS


def ran(command: Sequence[str | Path], **settings: Any) -> subprocess.CompletedProcess[str]:
    """Returns the exit status of a command and what it prints; `settings` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **settings)
