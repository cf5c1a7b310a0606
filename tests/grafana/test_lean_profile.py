"""Dashboards and reports of nodes with the lean profile, under the default rules: unknown, never healthy."""

import math
import re
from collections.abc import Iterator

import pytest
from stepscope.commands.cli import main
from stepscope.commands.dashboards import dashboards
from stepscope.exporter.sampling.profiles import LEAN
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.profiles import alerting_rules

from tests.grafana.test_nothing_there import SCENARIO, look, verdict
from tests.support.backfill import RETENTION_SECONDS, RULES, Backfill, run_of, scrapes, seconds_of
from tests.support.grafana import panels
from tests.support.prometheus import Prometheus, needs_prometheus

LEAN_RULES = {rule.name for rule in alerting_rules(Options(profile="lean"))}
RECORDED = {"Utilisation of each node"}  # that of GPUs, from what the lean profile has

pytestmark = needs_prometheus


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    backfill = Backfill(tmp_path_factory.mktemp("lean"))
    backfill.store([scrapes(SCENARIO, "lean")])
    backfill.evaluate(RULES, seconds_of(SCENARIO) + RETENTION_SECONDS)
    with backfill.serving() as running:
        yield running


def test_the_verdict_speaks_only_of_the_rules_that_were_evaluated(server: Prometheus) -> None:
    assert verdict(look(server, "stepscope-run")) == "✓ healthy: none of the evaluated rules fired"


def test_its_nodes_are_counted_and_can_be_chosen(server: Prometheus) -> None:
    cluster = look(server, "stepscope-cluster")
    assert [series.values[-1] for series in cluster.lines("Nodes").values()] == [1]
    queries = {each["name"]: each.get("definition", "") for each in cluster.dashboard["templating"]["list"]}
    for name in ("cluster", "job", "nodes"):
        (series,) = re.findall(r"label_values\((\w+)", queries[name])
        assert series in LEAN, name


def test_rules_that_need_more_have_no_state(server: Prometheus) -> None:
    states = {row["Rule"]: row.get("State") for row in look(server, "stepscope-run").table("All rules")}
    unknown = {rule for rule, state in states.items() if state is None}
    assert unknown & LEAN_RULES == {"CPUThrottled"}  # the simulated run has no CPU limit
    assert unknown - LEAN_RULES == states.keys() - LEAN_RULES


@pytest.mark.parametrize("uid", sorted(dashboards()))
def test_what_the_lean_profile_lacks_is_missing_and_never_0(server: Prometheus, uid: str) -> None:
    reader = look(server, uid)
    shown = set()
    for panel in panels(reader.dashboard):
        for target in panel["targets"]:
            names = re.findall(r"(?<![:\w])stepscope_\w+(?![:\w])", target["expr"])
            families = {re.sub("_(bucket|sum|count)$", "", name) for name in names}
            if families and families.isdisjoint(LEAN):
                values = [value for found in reader.series(target) for value in found.values]
                if not all(map(math.isnan, values)):
                    shown.add(panel["title"])
    assert shown == (RECORDED if uid == "stepscope-run" else set())


def test_a_report_is_refused_and_says_why(server: Prometheus, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", f"prometheus+{server.url}?run={run_of(SCENARIO)}", "--out", "nowhere"]) == 2
    assert "publishes too few metrics for a report (--metrics.profile=lean)" in capsys.readouterr().err
