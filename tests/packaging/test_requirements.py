"""What an installation needs: pyproject.toml, and what repeats it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_all_that_repeats_the_oldest_python_repeats_pyproject() -> None:
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    as_tuple = f"({oldest.replace('.', ', ')})"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == oldest
    for name, said in {
        "README.md": f"Python {oldest} or later",
        "CONTRIBUTING.md": f"Python {oldest} or later",
        "Makefile": f"({oldest} or later)",
        "docs/run.md": f"Python {oldest} or later",
        "exporter/trainwatch/run/hooks.py": f"Python {oldest} or later",
        "exporter/trainwatch/hooks/command.py": f"OLDEST = {as_tuple}",
        "exporter/trainwatch/training/startup/sitecustomize.py": f"sys.version_info < {as_tuple}",
    }.items():
        assert said in (ROOT / name).read_text(), name
