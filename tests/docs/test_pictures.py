"""The pictures in docs/heuristics.md: each shows a run that its rule fires on, as it is drawn now."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.settings import Settings
from stepscope.rules import all_rules

from tests.support.rule_pictures import draw, pictures

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = pictures()
NEVER_FIRE = {"OverallSystemUsage", "OverallFrameworkMetrics", "HostBound"}  # in a live run


def test_every_rule_that_can_fire_has_a_picture_in_its_section() -> None:
    assert set(PICTURES) == set(all_rules()) - NEVER_FIRE
    page = (DOCS / "heuristics.md").read_text()
    for rule in PICTURES:
        section = page.split(f"\n## {rule}\n", 1)[1].split("\n## ", 1)[0]
        assert f"](pictures/rules/{rule}.svg)" in section, rule


@pytest.mark.parametrize("rule", sorted(PICTURES))
def test_the_run_of_the_picture_fires_its_rule_and_golden_picture_is_of_it(
    rule: str, golden: Callable[[Path, str], None]
) -> None:
    picture = PICTURES[rule]
    analysis = evaluate(picture.source, Settings.parse([]))
    (result,) = [result for result in analysis.rules if result.rule == rule]
    assert result.status == "found", result.finding
    golden(DOCS / "pictures" / "rules" / f"{rule}.svg", draw(rule, picture))
