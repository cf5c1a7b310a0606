"""Links between dashboards, and of their tables: the variables in their addresses."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from stepscope.commands.dashboards import dashboards
from stepscope.common import PUBLIC_DOCS
from stepscope.grafana.findings import ALL_RULES
from stepscope.grafana.page import panel_id

from tests.support.grafana import panels
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest

DASHBOARDS = dashboards()


def link(uid: str, title: str, column: str, number: int = 0) -> str:
    """Returns the address of a link in a column of a table."""
    (table,) = (panel for panel in panels(DASHBOARDS[uid]) if panel["title"] == title)
    overrides = [each for each in table["fieldConfig"]["overrides"] if each["matcher"]["options"] == column]
    found = [each["value"] for one in overrides for each in one["properties"] if each["id"] == "links"]
    return str(found[0][number]["url"])


def carried(url: str) -> set[str]:
    """Returns the variables and times that an address carries, in the ways that Grafana knows."""
    found = re.findall(r"[?&](?:\$\{(\w+)(?::queryparam)?\}|([\w-]+)=)", url)
    return {variable or name for variable, name in found}


def test_a_finding_leads_to_its_panel_with_the_same_run_nodes_and_all_ranks_to_compare() -> None:
    url = link("stepscope-run", "What is wrong", "Rule")
    kept = {"datasource", "cluster", "job", "run", "instance"}
    assert carried(url) == kept | {"var-rank", "var-gpu", "from", "to"}
    assert url.endswith("&to=${__to}")


@pytest.mark.parametrize(
    "table", ["Runs side by side", "Alerts by run and rule", "The slowest rank of each run"]
)
def test_each_run_of_the_cluster_leads_to_its_overview_at_the_same_time(table: str) -> None:
    url = link("stepscope-cluster", table, "Run")
    assert urlsplit(url).path == "/d/stepscope-run"
    assert carried(url) == {"var-run", "datasource", "cluster", "job", "__url_time_range"}


def test_rules_without_a_runbook_are_explained_by_the_panel_of_all_rules() -> None:
    run: dict[str, Any] = DASHBOARDS["stepscope-run"]
    assert panel_id(run, "All rules") == ALL_RULES
    (table,) = (panel for panel in panels(run) if panel["title"] == "What is wrong")
    name = "${run:percentencode}"
    place = f'"runbook", "/d/stepscope-run?viewPanel={ALL_RULES}&var-run={name}", "runbook", ""'
    assert any(place in target["expr"] for target in table["targets"])


def test_a_finding_has_the_command_that_shows_its_operators_and_leads_to_its_page() -> None:
    (table,) = (panel for panel in panels(DASHBOARDS["stepscope-run"]) if panel["title"] == "What is wrong")
    assert "stepscope profile ${run}" in str(table["fieldConfig"]["overrides"])
    base, _, page = link("stepscope-run", "What is wrong", "Rule", 2).rpartition("/")
    assert base == PUBLIC_DOCS
    assert (Path(__file__).parents[2] / "docs" / page).is_file()


@needs_prometheus
@pytest.mark.parametrize(
    ("reports", "place"),
    [
        ("", f"{PUBLIC_DOCS}/report.md"),
        ("https://a/runs", "https://a/runs/"),
    ],
)
def test_a_finding_leads_to_the_recordings_once_their_address_was_entered(
    tmp_path: Path, reports: str, place: str
) -> None:
    (table,) = (panel for panel in panels(DASHBOARDS["stepscope-run"]) if panel["title"] == "What is wrong")
    (query,) = (target["expr"] for target in table["targets"] if '"report"' in target["expr"])
    run = {"${run:percentencode}": "a-run"}
    for variable, value in {"$reports": reports, "$problems": ".*", "$cluster": "", **run}.items():
        query = query.replace(variable, value)
    test = RuleTest()
    test.add({'stepscope:rule_info{rule="Straggler", severity="warning"}': [1] * 3})
    leads = f'label_replace(vector(1), "report", "{place}", "", "")'
    test.equals(f"sum(({query}) * on (report) group_left () {leads})", 30, 1)
    test.run(tmp_path)
    assert link("stepscope-run", "What is wrong", "Rule", 3) == "${__data.fields.Report}"
