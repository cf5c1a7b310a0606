from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def ledgers() -> Iterator[Path]:
    """A folder for ledgers, in shared memory where there is such a thing (as it is by default)."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(prefix="trainwatch-test-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder) / "ledgers"
