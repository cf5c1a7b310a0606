"""The JSON and Markdown reports of each demo scenario against golden files; `make golden` renews them."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from stepscope.common.status import Status
from stepscope.demo.scenarios import all_scenarios
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.report.document import document
from stepscope.report.markdown import render_markdown
from stepscope.runs.open import open_source

from tests.support.scenarios import WrittenScenarios
from tests.support.schemas import validator_of
from tests.support.shifted_source import ShiftedSource

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"
PRICE = 55.04  # of a node of 8 GPUs for an hour
BEGIN = 1_800_000_000.0  # a whole minute, at which all scenarios are taken to have begun

COMPLETE = "cpu-bottleneck"  # of the others, the verdict and the rules that fire
SAME_IN_ALL = {"question", "description", "parameters"}  # of a rule: the complete one has them


@pytest.fixture(scope="module")
def analysis_of(scenarios: WrittenScenarios) -> Callable[[str], Analysis]:
    """The analysis of a scenario, always the same whenever and by whatever version it was written."""

    @cache
    def of(name: str) -> Analysis:
        source = open_source(scenarios.written(name).recording_directory)
        analysis = replace(evaluate(ShiftedSource(source, BEGIN)), versions={"stepscope": "0.0.0"})
        assert [rule.finding for rule in analysis.rules if rule.status is Status.FAILED] == []
        return analysis

    return of


@pytest.mark.parametrize("name", sorted(all_scenarios()))
def test_the_golden_document_of_a_scenario(
    analysis_of: Callable[[str], Analysis], golden: Callable[[Path, str], None], name: str
) -> None:
    content = document(analysis_of(name), PRICE)
    validator_of(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(content)
    if name != COMPLETE:
        fired = [rule for rule in content["rules"] if rule["status"] == "found"]
        found = [{name: rule[name] for name in rule if name not in SAME_IN_ALL} for rule in fired]
        content = {"verdict": content["verdict"], "found": found}
    golden(GOLDEN / f"{name}.json", json.dumps(shortened(content), indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", [COMPLETE, "few-dataloaders"])
def test_the_golden_markdown_of_a_scenario(
    analysis_of: Callable[[str], Analysis], golden: Callable[[Path, str], None], name: str
) -> None:
    golden(GOLDEN / f"{name}.md", render_markdown(analysis_of(name), PRICE))


def shortened(value: Any) -> Any:
    """Numbers to six digits, as sums differ in the last ones between processors; lists of them on a line."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        short = [shortened(item) for item in value]
        numbers = bool(short) and all(isinstance(item, int | float) for item in short)
        return " ".join(map(str, short)) if numbers else short
    return float(f"{value:.6g}") if isinstance(value, float) else value
