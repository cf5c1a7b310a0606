"""The entry point of the `trainwatch` command, where another package of that name is installed too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trainwatch_exporter

FIX = "pip uninstall trainwatch && pip install --force-reinstall trainwatch-exporter"


def trainwatch(path: Path) -> subprocess.CompletedProcess[str]:
    """Runs `trainwatch --version` with packages in `path` first."""
    return subprocess.run(
        [sys.executable, "-m", "trainwatch_exporter", "--version"],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(path)},
        timeout=300,
    )


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with a package `trainwatch` that is not ours and must not be imported."""
    package = tmp_path / "trainwatch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    return tmp_path


def test_our_package_runs(tmp_path: Path) -> None:
    result = trainwatch(tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("trainwatch ")


def test_another_package_called_trainwatch_gets_one_line_with_its_place_and_the_fix(foreign: Path) -> None:
    result = trainwatch(foreign)
    (line,) = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{foreign}/trainwatch/__init__.py" in line
    assert FIX in line


def test_a_package_that_overwrote_ours_gets_the_same_line(foreign: Path) -> None:
    source = Path(trainwatch_exporter.__file__)
    shutil.copy(source, foreign)
    shutil.copy(source.parent / "trainwatch" / "cli.py", foreign / "trainwatch")
    result = trainwatch(foreign)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2
    assert "another package" in line
    assert FIX in line


def test_what_is_left_when_the_other_package_is_uninstalled_gets_the_fix_too(foreign: Path) -> None:
    (foreign / "trainwatch" / "__init__.py").unlink()
    shutil.copy(trainwatch_exporter.__file__, foreign)
    result = subprocess.run(
        [sys.executable, "-S", "trainwatch_exporter.py"],
        capture_output=True,
        text=True,
        cwd=foreign,
        timeout=300,
    )
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2
    assert "missing or incomplete" in line
    assert FIX in line
