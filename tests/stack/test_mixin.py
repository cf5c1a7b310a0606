"""mixin/: what jsonnet users import is what everybody else loads."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from stepscope.common import PUBLIC_DOCS
from stepscope.prometheus.rules.files import render
from stepscope.prometheus.rules.options import Options

from tests.support.compose import REPOSITORY

_jsonnet = pytest.importorskip("_jsonnet", reason="needs jsonnet")


@pytest.fixture(scope="module")
def mixin() -> dict[str, Any]:
    return joined("{}")


def joined(config: str) -> dict[str, Any]:
    """Returns what another mixin becomes if this one and a `_config` are added to it."""
    others = "{prometheusAlerts+:: {groups+: ['other']}, grafanaDashboards+:: {'other.json': {}}}"
    fields = "'prometheusAlerts', 'prometheusRules', 'grafanaDashboards'"
    file = REPOSITORY / "mixin" / "mixin.libsonnet"
    added = f"{others} + (import '{file}') + {{_config+:: {config}}}"
    program = f"local all = {added}; {{[field]: all[field] for field in [{fields}]}}"
    found: dict[str, Any] = json.loads(_jsonnet.evaluate_snippet("mixin", program))
    assert found["prometheusAlerts"]["groups"].pop(0) == "other"
    assert found["grafanaDashboards"].pop("other.json") == {}
    return found


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
    program, configured = re.findall(r"(?ms)^```jsonnet\n(.*?)^```", page)
    for written, here in (("github.com/stepscope/stepscope", REPOSITORY), ("my-rules", REPOSITORY / "rules")):
        configured = configured.replace(written, str(here))
    labelled = json.loads(_jsonnet.evaluate_snippet("page", f"({configured}).prometheusAlerts"))
    labels = [rule["labels"] for group in labelled["groups"] for rule in group["rules"] if "alert" in rule]
    assert {each["team"] for each in labels} == {"ml"}
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


def test_its_config_sets_thresholds_by_rendered_rules(mixin: dict[str, Any]) -> None:
    rendered = render(Options(("CPUBottleneck.cpu_threshold=80",)))
    texts = {Path(name).stem: text for name, text in rendered.items() if "/" not in name}
    found = joined(f"{{rules: {json.dumps(texts)}}}")
    assert found["prometheusRules"] == mixin["prometheusRules"]
    (changed,) = (
        group
        for group, before in zip(
            found["prometheusAlerts"]["groups"], mixin["prometheusAlerts"]["groups"], strict=True
        )
        if group != before
    )
    assert 'cause_above="0.8"' in json.dumps(changed["rules"]).replace("\\", "")


def test_its_config_adds_labels_to_alerts_and_links_to_a_copy_of_the_docs(mixin: dict[str, Any]) -> None:
    found = joined("{alertLabels: {team: 'ml'}, docsUrl: 'https://docs.example'}")
    for group, before in zip(
        found["prometheusAlerts"]["groups"], mixin["prometheusAlerts"]["groups"], strict=True
    ):
        for rule, old in zip(group["rules"], before["rules"], strict=True):
            assert rule.get("labels", {}) == linked(old.get("labels", {})) | (
                {"team": "ml"} if "alert" in rule else {}
            )
            assert rule.get("annotations", {}) == linked(old.get("annotations", {}))
            assert rule["expr"] == old["expr"]


def linked(texts: dict[str, str]) -> dict[str, str]:
    return {name: text.replace(PUBLIC_DOCS, "https://docs.example") for name, text in texts.items()}


def test_its_config_chooses_the_data_sources_and_jobs_of_dashboards(mixin: dict[str, Any]) -> None:
    found = joined("{datasourceFilterRegex: '/prod/', jobFilterRegex: '/stepscope/'}")["grafanaDashboards"]
    for name, dashboard in found.items():
        chosen = {one["name"]: one["regex"] for one in dashboard["templating"]["list"] if "regex" in one}
        assert (chosen.pop("datasource"), chosen.pop("job")) == ("/prod/", "/stepscope/")
        before = mixin["grafanaDashboards"][name]["templating"]["list"]
        assert chosen.items() <= {one["name"]: one.get("regex") for one in before}.items()
