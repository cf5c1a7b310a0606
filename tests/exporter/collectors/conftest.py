"""A host made of files: what the collectors of /proc are pointed at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """A copy of the fixture host's /proc, to be changed at will."""
    return Path(shutil.copytree(FIXTURES / "host" / "proc", tmp_path / "proc"))
