"""`stepscope run` on the example: the report names the cause that `--slow` put there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone("the report names what slows a training down, and that may be another test")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_images.py"
CAUSES = ("CPUBottleneck", "IOBottleneck", "DataStarved", "StepOutlier", "Dataloader")


def observe(data: Path, out: Path, *words: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """What `stepscope run` said, and the JSON of each rule."""
    stepscope = [sys.executable, "-m", "stepscope", "run", "--out", str(out), "--listen", "127.0.0.1:0"]
    example = [sys.executable, str(EXAMPLE), "--data", str(data), *words]
    result = subprocess.run(
        [*stepscope, "--", *example],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    reports = {path.stem: json.loads(path.read_text()) for path in (out / "profiler-reports").iterdir()}
    return result.stdout + result.stderr, reports


def fired(reports: dict[str, dict[str, Any]]) -> set[str]:
    return {rule for rule in CAUSES if reports[rule]["RuleTriggered"]}


@pytest.mark.parametrize(
    ("way", "rules", "words"),
    [
        ("augmentation", {"DataStarved"}, "the transform is too heavy for the cores"),
        pytest.param("storage", {"DataStarved"}, "storage is slow", marks=pytest.mark.trial),
        ("none", set(), "✓ Healthy"),
    ],
)
def test_the_report_names_the_cause(
    data: Path, tmp_path: Path, way: str, rules: set[str], words: str
) -> None:
    said, reports = observe(data, tmp_path / "run", "--slow", way, "--steps", "45", "--batch", "64")
    assert fired(reports) == rules
    if "the cores are full of neighbours" in said:  # true while other programs use them
        return
    assert words in said
    if rules:
        assert words in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.trial
def test_the_report_counts_the_stalls_and_says_when_they_come(data: Path, tmp_path: Path) -> None:
    words = ("--slow", "stall", "--steps", "192", "--batch", "32")
    said, reports = observe(data, tmp_path / "run", *words)
    assert fired(reports) == {"StepOutlier"}
    assert reports["StepOutlier"]["Violations"] == 12
    assert "every 16th" in said
    assert "checkpoint" in said
