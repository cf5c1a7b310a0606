"""The rendering of each engine keeps its limits; on engines that store late, no rule reads the present."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from stepscope.commands.cli import main
from stepscope.common.durations import parse_duration
from stepscope.common.errors import UserError
from stepscope.prometheus.rules.files import RULES, USAGE, render
from stepscope.prometheus.rules.groups import FINDING, Entry, Group
from stepscope.prometheus.rules.options import COMMAND, ENGINES, Options
from stepscope.rules import all_rules
from stepscope.rules.parts.promql import Scraping

MOST_RULES = 20  # in a group: Mimir's default of ruler_max_rules_per_rule_group
MOST_GROUPS = 70  # of a tenant: Mimir's default of ruler_max_rule_groups_per_tenant
LONGEST_QUERY = 16 * 1024  # bytes: the default of VictoriaMetrics's -search.maxQueryLen
RECORDED = re.compile(r"(?P<name>\b[a-zA-Z_]\w*:[\w:]+)(?:\{[^}]*\})?(?:\[\w+\])?(?: offset (?P<ago>\w+))?")
LATE = [name for name, engine in ENGINES.items() if not engine.stores_at_once]
WITH_EVERYTHING = Options(
    ("StepOutlier.mode=train",),
    docs_url="https://docs",
    grafana_url="https://grafana",
    label=("team=ml",),
)


@cache
def groups(engine: str, options: Options = WITH_EVERYTHING) -> list[Group]:
    texts = render(replace(options, engine=engine))
    return [group for text in texts.values() for group in yaml.load(text, yaml.CSafeLoader)["groups"]]


def reads(group: Group) -> Iterator[tuple[Entry, re.Match[str]]]:
    for rule in group["rules"]:
        for read in RECORDED.finditer(rule["expr"]):
            yield rule, read


def recorded(group: Group) -> set[str]:
    return {rule["record"] for rule in group["rules"] if "record" in rule}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_group_and_no_query_exceeds_the_limits_of_mimir_and_victoriametrics(engine: str) -> None:
    found = groups(engine)
    assert max(len(group["rules"]) for group in found) <= MOST_RULES
    assert min(len(group["rules"]) for group in found) > 0
    assert len(found) <= MOST_GROUPS
    longest = max(len(rule["expr"].encode()) for group in found for rule in group["rules"])
    assert longest < 0.8 * LONGEST_QUERY


@pytest.mark.parametrize("engine", ENGINES)
def test_no_group_depends_on_a_series_that_another_group_records(engine: str) -> None:
    found = groups(engine)
    everything = set().union(*map(recorded, found))
    foreign = {
        (group["name"], read["name"])
        for group in found
        for _, read in reads(group)
        if read["name"] in everything - recorded(group)
    }
    assert foreign == set()


@pytest.mark.parametrize("engine", LATE)
def test_where_results_are_stored_late_whatever_is_read_of_the_own_group_is_at_least_one_evaluation_old(
    engine: str,
) -> None:
    """But for a record's own last value, which is always from before, and findings that keep an alert."""
    seen = 0
    for group in groups(engine):
        interval = parse_duration(group["interval"])
        for rule, read in reads(group):
            if read["name"] not in recorded(group) or read["name"] == rule.get("record"):
                continue
            seen += 1
            kept = read["name"] == FINDING and "alert" in rule
            assert kept or parse_duration(read["ago"] or "0s") >= interval, (rule, read[0])
    assert seen > 100


@pytest.mark.parametrize("engine", LATE)
def test_where_results_are_stored_late_an_alert_is_at_most_one_evaluation_late(engine: str) -> None:
    """What it reads of its group is at most one evaluation old, or wanted from before by the rule itself."""
    wanted = {group["name"]: offsets(group) for group in groups("prometheus")}
    late = {group["name"]: lateness(group, wanted[group["name"]]) for group in groups(engine)}
    assert set(late.values()) == {0, 1}
    assert late["stepscope-Straggler"] == 1


def offsets(group: Group) -> set[tuple[str, str]]:
    return {(read["name"], read["ago"]) for _, read in reads(group) if read["ago"]}


def lateness(group: Group, wanted: set[tuple[str, str]]) -> int:
    """Returns how many evaluations old the values are on which the group's alerts build, at most."""
    late: dict[str, int] = {}
    for rule in group["rules"]:
        own = [read for read in RECORDED.finditer(rule["expr"]) if read["name"] in late]
        levels = [late[read["name"]] + ((read["name"], read["ago"]) not in wanted) for read in own]
        if "alert" in rule:
            late["alerts"] = max(late.get("alerts", 0), *levels, 0)
        elif not rule["record"].startswith("stepscope:"):
            late[rule["record"]] = max(levels, default=0)
    return late.get("alerts", 0)


def test_older_versions_of_vmalert_find_no_field_that_they_do_not_know() -> None:
    rules = [rule for group in groups("victoriametrics") for rule in group["rules"]]
    known = {"record", "alert", "expr", "for", "labels", "annotations"}
    assert {field for rule in rules for field in rule} == known
    assert any("keep_firing_for" in rule for group in groups("thanos") for rule in group["rules"])


def test_an_alert_that_is_kept_without_the_field_has_no_pending_time() -> None:
    """Both together would need two expressions."""
    for group in groups("prometheus"):
        assert not [rule for rule in group["rules"] if "for" in rule and "keep_firing_for" in rule]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_counts_its_failed_evaluations_by_its_own_metric(engine: str) -> None:
    (failing,) = (
        rule
        for group in groups(engine)
        for rule in group["rules"]
        if rule.get("alert") == "StepscopeRuleEvaluationFailing"
    )
    metric = {"mimir": "cortex_prometheus_rule_", "victoriametrics": "vmalert_recording_rules_errors_total"}
    assert metric.get(engine, "(prometheus_rule_") in failing["expr"]


def test_the_rendering_of_an_engine_is_checked_as_that(tmp_path: Path) -> None:
    words = ["--engine=victoriametrics", "--window=30m", "--label=team=ml", "--only", "Straggler", "IdleGPU"]
    assert main(["rules", "render", "--out", str(tmp_path), *words]) == 0
    assert main(["rules", "check", str(tmp_path)]) == 0
    (tmp_path / RULES).write_text((tmp_path / RULES).read_text().replace(" offset 4m", " offset 5m"))
    assert main(["rules", "check", str(tmp_path)]) == 1


def test_a_window_is_that_of_every_rule_that_has_one_unless_it_is_set_for_a_rule() -> None:
    options = Options(("CPUBottleneck.live_window=20",), window=1800.0)
    windows = {rule.name: getattr(rule.parameters, "live_window", None) for rule in options.settings.rules()}
    assert windows["CPUBottleneck"] == 20
    assert windows["IOBottleneck"] == windows["StepOutlier"] == 30
    assert windows["Dataloader"] is None


def test_a_window_that_a_rule_cannot_have_is_an_error_that_names_its_bounds() -> None:
    with pytest.raises(UserError, match="live_window must be a number from 2 to 1440"):
        render(Options(window=60.0))


def test_only_the_rules_asked_for_are_rendered_next_to_the_alerts_on_stepscope_itself() -> None:
    names = {group["name"] for group in groups("prometheus", Options(only=("Straggler", "IdleGPU")))}
    judging = {name for name in names if name.removeprefix("stepscope-") in all_rules()}
    assert judging == {"stepscope-Straggler", "stepscope-IdleGPU"}
    assert "stepscope-meta" in names


def test_labels_are_added_to_every_alert_and_to_no_record() -> None:
    for group in groups("prometheus"):
        for rule in group["rules"]:
            assert (rule.get("labels", {}).get("team") == "ml") == ("alert" in rule)


def test_an_added_namespace_is_that_of_every_alert() -> None:
    found = groups("prometheus", Options(label=("namespace=stepscope",)))
    alerts = [rule for group in found for rule in group["rules"] if "alert" in rule]
    assert {rule["labels"]["namespace"] for rule in alerts} == {"stepscope"}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_label_that_alerts_have_can_be_added(engine: str) -> None:
    alerts = [rule for group in groups(engine) for rule in group["rules"] if "alert" in rule]
    used = {name for rule in alerts for name in rule["labels"]} - {"team"}
    texts = [text for rule in alerts for text in rule["annotations"].values()]
    used |= {name for text in texts for name in re.findall(r"\$labels\.(\w+)", text)}
    for name in sorted(used - {"namespace"}):
        with pytest.raises(UserError, match=f"alerts have a label '{name}' already"):
            Options.from_command(f"{COMMAND} --label {name}=ml")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--label", "severity=page"], "alerts have a label 'severity' already"),
        (["--label", "team"], "'team' is not a label such as team=ml"),
        (["--label", "team={{ bad"], "Prometheus takes {{ for a template"),
        (["--label", "team={{ $labels.namespace }} {{ $labels }}"], "such as {{ $labels.namespace }}"),
        (["--scrape-interval", "3m"], "'3m' is too long: rates over 5 minutes need several scrapes"),
        (["--only", "Stragler"], "did you mean Straggler?"),
        (["--only", "OverallSystemUsage"], "with alerts"),
        (["--engine", "influx"], "invalid choice"),
    ],
)
def test_a_flag_that_cannot_be_is_refused_with_the_reason(
    words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "render", "--out", str(tmp_path), *words]) == 2
    assert error in capsys.readouterr().err


def test_an_added_label_may_have_the_value_of_another_label() -> None:
    options = Options.from_command(f"{COMMAND} --label 'team={{{{ $labels.namespace }}}}-ml'")
    assert options.labels() == {"team": "{{ $labels.namespace }}-ml"}


def test_charts_of_weeks_have_no_gaps_if_nodes_are_scraped_every_two_minutes() -> None:
    """Prometheus keeps a value for five minutes."""
    for group in yaml.load(render(Options(scraping=Scraping(120)))[USAGE], yaml.CSafeLoader)["groups"]:
        assert parse_duration(group["interval"]) < 300, group["name"]


def test_the_addresses_of_links_have_a_second_spelling(tmp_path: Path) -> None:
    words = ["--external-url=https://grafana.test", "--runbook-url=https://docs.test"]
    assert main(["rules", "render", "--out", str(tmp_path), *words]) == 0
    text = (tmp_path / RULES).read_text()
    assert "--grafana-url https://grafana.test --docs-url https://docs.test" in text
    assert "runbook_url: https://docs.test/heuristics.md#straggler" in text
