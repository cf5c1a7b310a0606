"""The page on large clusters: what it renders and sends is what rules that compare nodes need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.profiles import alerting_rules

PAGE = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()
RENDERED = [
    words.split() for words in re.findall(r"^stepscope rules render .*--only (.*)$", PAGE, re.MULTILINE)
]
METRIC = re.compile(r"(?<![\w:])stepscope_\w+(?![\w:])")


@pytest.fixture(scope="module")
def expressions() -> dict[str, str]:
    """The expressions and queries in annotations of each rule."""
    return {
        rule.name: "\n".join(
            text
            for group in yaml.safe_load(render(Options(only=(rule.name,)))[RULES])["groups"]
            for each in group["rules"]
            for text in (each["expr"], *each.get("annotations", {}).values())
        )
        for rule in alerting_rules(Options())
    }


def test_exactly_the_rules_that_compare_nodes_are_on_top(expressions: dict[str, str]) -> None:
    parts, top = RENDERED
    joined = {
        rule: [labels for labels in re.findall(r"(?:by|on) \(([^)]*)\)", text) if "instance" not in labels]
        for rule, text in expressions.items()
    }
    assert {rule for rule, labels in joined.items() if "cluster, run" in labels} == set(top)
    assert sorted(parts + top) == sorted(expressions)


def test_the_top_gets_every_series_that_its_rules_read(expressions: dict[str, str]) -> None:
    sent = re.compile(re.findall(r'regex: "(up\|.*)"', PAGE)[0])
    read = {name for rule in RENDERED[1] for name in METRIC.findall(expressions[rule])}
    assert {name for name in read if not sent.fullmatch(name)} == set()
