"""What is asked of every rule, in the spirit of pint; each check is shown to find what it looks for."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stepscope.prometheus.rules.files import META, RULES, render
from stepscope.prometheus.rules.meta import WATCHDOG
from stepscope.prometheus.rules.options import Options

from tests.support.prometheus import needs_prometheus

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "rules").rglob("*.yml"))
STATES = {
    "ExporterDown",
    "ExporterMissing",
    "CollectorFailing",
    "GPULost",
    "ProfileDiffers",
    "RunFailed",
    "RowRemapping",
    "InfinibandLinkDown",
    "Watchdog",
}  # have no value to show
ANNOTATIONS = {"summary", "description", "recommendation"}
CRITICAL = {
    "CollectiveHang",
    "TrainingStalled",
    "GPUError",
    "RowRemapping",
    "NVLinkErrors",
    "DiskFilling",
} | {"RunsStalled"}
LEVEL_METRIC_OPERATIONS = re.compile(r"[a-z_]+:[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")
FINDING = "stepscope:rule_finding"
OF_ALL = {FINDING, "stepscope:rule_status", "stepscope:rule_parameter", "stepscope:rule_info"} | {
    "stepscope:rule_lost_ratio",
    "stepscope:rule_distance",
    "stepscope:rule_advice",
}
# A recorded series, and the rule of which it is read.
RECORDED = re.compile(r"""\b([a-zA-Z_]\w*(?::\w+)+)(?:\{rule="(\w+)")?""")
SMOOTHED = re.compile(r"\b(rate|increase|\w+_over_time|deriv)\(|\boffset\b")
# Peers of a rank are on all nodes of its run; readings of other exporters and schedulers know no run.
ACROSS_NODES = {"CollectiveHang", "CommunicationBound", "Straggler", "TrainingStalled"} | {
    "stepscope-meta",
    "stepscope-outage",
    "stepscope-hardware",
    "stepscope-owners",
}

Rule = dict[str, Any]


def rules_of(file: Path) -> Iterator[tuple[str, Rule]]:
    """An alert that reads a finding comes with the expression of that."""
    for group in yaml.load(file.read_text(), yaml.CSafeLoader)["groups"]:
        assert group["interval"], "durations in expressions are made for an interval"
        findings = [rule for rule in group["rules"] if rule.get("record") == FINDING]
        for rule in group["rules"]:
            of_alert = [one["expr"] for one in findings if "alert" in rule and is_read_by(rule, one)]
            assert of_alert or "alert" not in rule or FINDING not in rule["expr"], (
                "reads what is not recorded"
            )
            yield group["name"], {**rule, "expr": "\n".join(of_alert) or rule["expr"]}


def is_read_by(alert: Rule, finding: Rule) -> bool:
    labels = ", ".join(f'{name}="{value}"' for name, value in finding["labels"].items())
    return bool(alert["expr"] == f"{FINDING}{{{labels}}}")


def complaints(group: str, rule: Rule) -> list[str]:
    """What is wrong with a rule."""
    found = [check(rule) for check in CHECKS]
    if not any(name in group for name in (*ACROSS_NODES, "existing-clusters")):
        found.append(loses_run_or_instance(rule))
    return [complaint for complaint in found if complaint]


def is_misnamed(rule: Rule) -> str | None:
    name = rule.get("record")
    if name is None or name in OF_ALL or LEVEL_METRIC_OPERATIONS.fullmatch(name):
        return None
    return f"{name} is not level:metric:operations"


def lacks_words(rule: Rule) -> str | None:
    if "alert" not in rule:
        return None
    missing = ANNOTATIONS - {name for name, text in rule.get("annotations", {}).items() if text.strip()}
    return f"lacks {sorted(missing)}" if missing else None


def hides_its_value(rule: Rule) -> str | None:
    """A description has a value, formatted; alerts on a state of 0 or 1 have none to show."""
    if "alert" not in rule or rule["labels"].get("rule") in STATES:
        return None
    text = rule.get("annotations", {}).get("description", "")
    formatted = re.search(r"\$value \| humanize|printf .* \$value", text)
    return None if formatted else "the description shows no formatted value"


def is_wrongly_labelled(rule: Rule) -> str | None:
    if "alert" not in rule:
        return None
    labels = rule.get("labels", {})
    if f"Stepscope{labels.get('rule')}" != rule["alert"]:
        return "the label rule is not the alert's name without its prefix"
    if labels.get("severity") == "none" and labels["rule"] == WATCHDOG:
        return None
    if labels.get("severity") not in ("info", "warning", "critical"):
        return f"{labels.get('severity')} is no severity"
    if labels["severity"] == "critical" and labels["rule"] not in CRITICAL:
        return "is critical"
    return None


def waits_twice(rule: Rule) -> str | None:
    # A pause of a minute is in each window of four minutes that contains it, but in none eight minutes later.
    if rule.get("labels", {}).get("trouble") == "fluctuating":
        return None
    judged = rule["expr"].partition("unless on (run) last_over_time(stepscope_samples_total")[0]
    return "has `for` and is smoothed" if "for" in rule and SMOOTHED.search(judged) else None


def has_a_needless_regex(rule: Rule) -> str | None:
    """A regex that is a plain word should be `=`."""
    for pattern in re.findall(r'[=!]~"([^"]*)"', rule["expr"]):
        if not re.search(r"[|*+?\[\].]", pattern):
            return f"needs no regex for {pattern}"
    return None


def is_dear(rule: Rule) -> str | None:
    """Subqueries, and standard deviations of rates.

    Readings of other exporters have no counters; with one per GPU, subqueries are cheap.
    """
    has_subquery = re.search(r"\[\w+:\w*\]", rule["expr"])
    if has_subquery and rule.get("labels", {}).get("resolution") != "scrape":
        return "has a subquery"
    if re.search(r"stddev_over_time|stdvar_over_time", rule["expr"]):
        return "has a standard deviation over time"
    return None


def is_of_another_version(rule: Rule) -> str | None:
    """What Prometheus 3 changed: a whole number in `le`, holt_winters, quoted names."""
    if re.search(r'\ble="\d+"', rule["expr"]):
        return "has a whole number for le, which Prometheus 3 spells 1.0"
    if "holt_winters" in rule["expr"] or re.search(r'\{"', rule["expr"]):
        return "has what only one of the versions knows"
    return None


def loses_run_or_instance(rule: Rule) -> str | None:
    if re.search(r"\b(sum|min|max|avg|count|quantile|group)\s*\(", rule["expr"]):
        return "aggregates all labels away"
    for kind, labels in re.findall(r"\b(by|without) \(([^)]*)\)", rule["expr"]):
        of_node = rule.get("record", "").startswith("instance:")  # whatever runs there
        kept = {"instance"} if of_node else {"run", "instance"}
        names = {name.strip() for name in labels.split(",")}
        if not (kept <= names if kind == "by" else not kept & names):
            return f"{kind} ({labels}) loses run or instance"
    return None


CHECKS: list[Callable[[Rule], str | None]] = [
    is_misnamed,
    lacks_words,
    hides_its_value,
    is_wrongly_labelled,
    waits_twice,
    has_a_needless_regex,
    is_dear,
    is_of_another_version,
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_rule_is_as_rules_should_be(file: Path) -> None:
    found = {
        (rule.get("alert") or rule["record"], group): complaints(group, rule)
        for group, rule in rules_of(file)
    }
    assert not {rule: wrong for rule, wrong in found.items() if wrong}


def alert(**changes: Any) -> Rule:
    annotations = dict.fromkeys(ANNOTATIONS, "words") | {"description": "{{ $value | humanize }}"}
    rule = {"alert": "StepscopeAny", "expr": "a > 1", "labels": {"rule": "Any", "severity": "info"}}
    return {**rule, "annotations": annotations, **changes}


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"record": "a:b", "expr": "b"}, "a:b is not level:metric:operations"),
        (alert(annotations={"description": "{{ $value | humanize }}"}), "lacks"),
        (alert(annotations=dict.fromkeys(ANNOTATIONS, "words")), "the description shows no formatted value"),
        (alert(labels={"severity": "info"}), "the label rule is not the alert's name without its prefix"),
        (alert(labels={"rule": "Any", "severity": "page"}), "page is no severity"),
        (alert(labels={"rule": "Any", "severity": "critical"}), "is critical"),
        (alert(**{"for": "2m", "expr": "rate(a[5m]) > 1"}), "has `for` and is smoothed"),
        (alert(expr='a{b=~"word"}'), "needs no regex for word"),
        (alert(expr="max_over_time(a[10m:1m]) > 1"), "has a subquery"),
        (alert(expr="stddev_over_time(a[5m]) > 1"), "has a standard deviation over time"),
        (alert(expr='a_bucket{le="1"} > 1'), "has a whole number for le, which Prometheus 3 spells 1.0"),
        (alert(expr='{"a.b"} > 1'), "has what only one of the versions knows"),
        (alert(expr="sum(a) > 1"), "aggregates all labels away"),
        (alert(expr="sum by (instance) (a) > 1"), "by (instance) loses run or instance"),
        (alert(expr="sum without (gpu, run) (a) > 1"), "without (gpu, run) loses run or instance"),
    ],
)
def test_each_check_finds_what_it_looks_for(rule: Rule, complaint: str) -> None:
    (found,) = complaints("group", rule)
    assert found.startswith(complaint)


def test_a_good_rule_has_no_complaint() -> None:
    assert complaints("group", alert(expr="sum without (gpu) (a) > 1")) == []
    assert complaints("group", {"record": "instance:a:max", "expr": "max without (run) (a)"}) == []


def test_every_runbook_is_a_section_of_the_docs() -> None:
    anchors = {
        (page.name, line[3:].strip().lower().replace(" ", "-"))
        for page in (ROOT / "docs").glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("## ")
    } | {
        (page.name, line[4:].strip().lower().replace(" ", "-"))
        for page in (ROOT / "docs").glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("### ")
    }
    for text in render(Options(docs_url="https://docs.test")).values():
        for group in yaml.load(text, yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    page, _, anchor = rule["annotations"]["runbook_url"].rpartition("/")[2].partition("#")
                    assert (page, anchor) in anchors


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_groups_are_small_and_read_only_what_they_record(file: Path) -> None:
    """Prometheus evaluates groups in any order, and at different times."""
    for group in yaml.load(file.read_text(), yaml.CSafeLoader)["groups"]:
        assert len(group["rules"]) <= 20, group["name"]
        recorded = [rule for rule in group["rules"] if "record" in rule]
        for rule in group["rules"]:
            for name, of_rule in RECORDED.findall(rule["expr"]):
                sources = [one for one in recorded if one["record"] == name]
                assert sources, f"{group['name']} reads {name}"
                assert not of_rule or of_rule in [one["labels"]["rule"] for one in sources], group["name"]


def test_an_alert_links_only_where_its_settings_say() -> None:
    settings = Options(grafana_url="https://grafana.test", docs_url="https://docs.test")
    for options, links in (
        (Options(docs_url=""), set()),
        (Options(), {"runbook_url"}),
        (settings, {"dashboard_url", "runbook_url"}),
    ):
        for text in render(options).values():
            assert "localhost" not in text
            for group in yaml.load(text, yaml.CSafeLoader)["groups"]:
                for rule in group["rules"]:
                    if "alert" in rule:
                        shown = {"value", "value_order"} if "value" in rule["annotations"] else set()
                        assert rule["annotations"].keys() == ANNOTATIONS | links | shown
    with_links = render(settings)[META]
    assert "https://grafana.test/d/stepscope-exporter?var-instance=" in with_links
    assert "https://docs.test/rules.md#exporterdown" in with_links


@pytest.mark.parametrize(
    ("prefix", "down", "stalled"),
    [
        ("Stepscope", "StepscopeExporterDown", "StepscopeTrainingStalled"),
        ("ML_", "ML_ExporterDown", "ML_TrainingStalled"),
        ("", "ExporterDown", "TrainingStalled"),
        ("Training", "TrainingExporterDown", "TrainingStalled"),  # nothing is prefixed twice
    ],
)
def test_names_of_alerts_have_the_prefix_and_their_label_rule_has_none(
    prefix: str, down: str, stalled: str
) -> None:
    texts = render(Options(alert_prefix=prefix))
    for text in texts.values():
        names = {
            rule["alert"]: rule["labels"]["rule"]
            for group in yaml.load(text, yaml.CSafeLoader)["groups"]
            for rule in group["rules"]
            if "alert" in rule
        }
        assert names.get(down, "ExporterDown") == "ExporterDown"
        assert names.get(stalled, "TrainingStalled") == "TrainingStalled"
        assert all(name in (rule, prefix + rule) for name, rule in names.items())
    assert f"alert: {down}\n" in texts[META]
    assert f"alert: {stalled}\n" in texts[RULES]


@needs_prometheus
def test_promtool_takes_the_configuration_and_finds_the_rules() -> None:
    file = ROOT / "prometheus" / "prometheus.yml"
    done = subprocess.run(
        ["promtool", "check", "config", "--lint=all", "--lint-fatal", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 rule files found" in done.stdout
