"""mixin/: what jsonnet users import is what everybody else loads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import REPOSITORY

_jsonnet = pytest.importorskip("_jsonnet", reason="needs jsonnet")


@pytest.fixture(scope="module")
def mixin() -> dict[str, Any]:
    """Returns what another mixin becomes if this one is added to it, as kube-prometheus does."""
    others = "{prometheusAlerts+:: {groups+: ['other']}, grafanaDashboards+:: {'other.json': {}}}"
    fields = "'prometheusAlerts', 'prometheusRules', 'grafanaDashboards'"
    file = REPOSITORY / "mixin" / "mixin.libsonnet"
    program = f"local all = {others} + (import '{file}'); {{[field]: all[field] for field in [{fields}]}}"
    joined: dict[str, Any] = json.loads(_jsonnet.evaluate_snippet("mixin", program))
    assert joined["prometheusAlerts"]["groups"].pop(0) == "other"
    assert joined["grafanaDashboards"].pop("other.json") == {}
    return joined


def test_every_group_of_the_repository_is_in_it_once(mixin: dict[str, Any]) -> None:
    known = [
        group
        for path in (REPOSITORY / "rules").glob("*.yml")
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]
    ]
    groups = [*mixin["prometheusAlerts"]["groups"], *mixin["prometheusRules"]["groups"]]
    assert sorted(groups, key=by_name) == sorted(known, key=by_name)


def by_name(group: dict[str, Any]) -> str:
    name: str = group["name"]
    return name


def test_what_has_alerts_is_among_the_alerts_and_nothing_else_is(mixin: dict[str, Any]) -> None:
    for field, expected in (("prometheusAlerts", True), ("prometheusRules", False)):
        assert mixin[field]["groups"]
        for group in mixin[field]["groups"]:
            assert any("alert" in rule for rule in group["rules"]) is expected


def test_the_page_writes_the_alerts_as_a_rule_file(mixin: dict[str, Any]) -> None:
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    (program,) = re.findall(r"(?ms)^```jsonnet\n(.*?)^```", page)
    program = program.replace("github.com/stepscope/stepscope", str(REPOSITORY))  # where jb puts it
    program = program.replace("manifestYamlDoc", "toString")  # JSON is YAML too, and does not take 20 s
    ((name, text),) = json.loads(_jsonnet.evaluate_snippet("page", program)).items()
    assert name == "stepscope-alerts.yaml"
    assert yaml.load(text, yaml.CSafeLoader) == mixin["prometheusAlerts"]


def test_every_dashboard_of_the_repository_is_in_it(mixin: dict[str, Any]) -> None:
    known = {path.name: json.loads(path.read_text()) for path in dashboards()}
    assert mixin["grafanaDashboards"] == known


def dashboards() -> list[Path]:
    return list((REPOSITORY / "grafana" / "dashboards").glob("*.json"))
