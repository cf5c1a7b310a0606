"""`stepscope run` on the example: the report names the cause that `--slow` put there."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.examples.conftest import Observed

pytestmark = pytest.mark.alone("the report names what slows a training down, and that may be another test")

CAUSES = ("CPUBottleneck", "IOBottleneck", "DataStarved", "StepOutlier", "Dataloader")


def reports_of(run: Observed) -> dict[str, dict[str, Any]]:
    """Returns the JSON of each rule."""
    return {path.stem: json.loads(path.read_text()) for path in (run.folder / "profiler-reports").iterdir()}


def fired(reports: dict[str, dict[str, Any]]) -> set[str]:
    return {rule for rule in CAUSES if reports[rule]["RuleTriggered"]}


@pytest.mark.parametrize(
    ("way", "steps", "rules", "words"),
    [
        ("augmentation", 45, {"DataStarved"}, "the transform is too heavy for the cores"),
        pytest.param("storage", 45, {"DataStarved"}, "for a network", marks=pytest.mark.trial),
        ("none", 60, set(), "✓ Healthy"),  # as test_compared.py looks at
    ],
)
def test_the_report_names_the_cause(
    observed: Callable[..., Observed], way: str, steps: int, rules: set[str], words: str
) -> None:
    run = observed(way, steps)
    assert fired(reports_of(run)) == rules
    if "the cores are full of neighbours" in run.said:  # true while other programs use them
        return
    assert words in run.said
    if rules:
        assert words in (run.folder / "report.html").read_text()


@pytest.mark.trial
def test_the_report_counts_the_stalls_and_says_when_they_come(observed: Callable[..., Observed]) -> None:
    run = observed("stall", 192, 32)
    reports = reports_of(run)
    assert fired(reports) == {"StepOutlier"}
    assert reports["StepOutlier"]["Violations"] == 12
    assert "every 16th" in run.said
    assert "checkpoint" in run.said
