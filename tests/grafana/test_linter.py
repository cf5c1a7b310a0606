"""The rules of Grafana's dashboard-linter that apply, and limits on queries.

Source: docs/rules of grafana/dashboard-linter. Some of its rules do not apply. What rules record about
themselves, and the series of Prometheus, have no `job`. `last_over_time` of a counter is the count of a run
that has ended.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from stepscope.commands.dashboards import dashboards
from stepscope.grafana.queries import DATASOURCE

from tests.support.grafana import panels

DASHBOARDS = dashboards()
OF_ALL_JOBS = {"Verdict", "All rules", "cluster", "job", "problems"}  # of a whole run, whatever is chosen
LONGEST = 1000  # characters of a query
ON_THE_FIRST_SCREEN = 24  # queries of System
# Of Prometheus, of the rules themselves, of schedulers, or of the cluster as a whole.
OF_RULES = "stepscope:rule_(info|parameter|distance|advice)"
WITHOUT_JOB = re.compile(rf"({OF_RULES}|owner_instance:\w+:\w+|prometheus_\w+|ALERTS)\{{")

every_dashboard = pytest.mark.parametrize("uid", sorted(DASHBOARDS))


def variables(uid: str) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in DASHBOARDS[uid]["templating"]["list"]}


def queries(uid: str) -> Iterator[tuple[str, str]]:
    """Of panels, variables and annotations, with what asks them."""
    for panel in panels(DASHBOARDS[uid]):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for name, variable in variables(uid).items():
        if variable["type"] == "query":
            yield name, variable["query"]["query"]
    for annotation in DASHBOARDS[uid]["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


@every_dashboard
def test_data_source_job_and_instance_are_variables(uid: str) -> None:
    of = variables(uid)
    assert (of["datasource"]["type"], of["datasource"]["label"]) == ("datasource", "Data source")
    assert (of["job"]["label"], of["job"]["allValue"]) == ("Job", ".+")
    for name in ("cluster", "job", "instance"):
        assert of[name]["multi"]
        assert of[name]["includeAll"]
    for variable in of.values():
        if variable["type"] == "query":
            assert variable["datasource"] == DATASOURCE
            assert variable["refresh"] == 2, "on a change of the time range"


@every_dashboard
def test_panels_have_targets_titles_descriptions_and_the_data_source(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        assert panel["datasource"] == DATASOURCE
        assert panel["targets"]
        assert panel["title"]
        assert panel["description"]


@every_dashboard
def test_rates_have_the_interval_of_the_chart_or_the_whole_range(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        for target in panel["targets"]:
            windows = re.findall(
                r"""\b(?:rate|irate|increase)\((?:"[^"]*"|[^"[])*\[([^]]+)\]""", target["expr"]
            )
            assert set(windows) <= {"$__rate_interval", "$__range"}, panel["title"]


@every_dashboard
def test_selectors_of_scraped_series_have_the_job(uid: str) -> None:
    for title, query in queries(uid):
        for selector in re.findall(r"\b[a-zA-Z_:][\w:]*\{[^}]*\}", query):
            if WITHOUT_JOB.match(selector) or title in OF_ALL_JOBS:
                continue
            assert 'job=~"$job"' in selector, (title, selector)


@every_dashboard
def test_a_dashboard_cannot_be_edited_in_place(uid: str) -> None:
    assert DASHBOARDS[uid]["editable"] is False


@every_dashboard
def test_no_query_is_longer_than_a_thousand_characters(uid: str) -> None:
    assert {title: len(query) for title, query in queries(uid) if len(query) > LONGEST} == {}


def test_the_first_screen_of_system_asks_little() -> None:
    shown = [panel for panel in DASHBOARDS["stepscope-system"]["panels"] if panel["type"] != "row"]
    assert sum(len(panel["targets"]) for panel in shown) <= ON_THE_FIRST_SCREEN


@every_dashboard
def test_nothing_becomes_zero_and_a_panel_without_data_says_why(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        for target in panel["targets"]:
            assert "or vector(0)" not in target["expr"], panel["title"]
        is_logarithmic = "logarithm" in str(panel["fieldConfig"]) or '"log"' in str(panel["fieldConfig"])
        custom = panel["fieldConfig"]["defaults"]["custom"]
        if custom.get("scaleDistribution", {}).get("type") != "log" and not is_logarithmic:
            assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
