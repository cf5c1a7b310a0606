"""What holds for every dashboard: ids, descriptions, units, variables, colours, what Grafana 9.4 needs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.dashboards import dashboards
from stepscope.grafana.looks import PALETTE, SEVERITY
from stepscope.grafana.page import dashboard as page
from stepscope.grafana.panels import section, stat
from stepscope.grafana.queries import DATASOURCE, now
from stepscope.prometheus.rules.groups import DASHBOARD
from stepscope.rules import all_rules

from tests.support.grafana import panels, variables_in

DASHBOARDS = dashboards()
OF_GRAFANA = {"__range", "__range_s", "__interval", "__interval_ms", "__rate_interval"}
OLD_AND_NEW = {"timeseries", "stat", "bargauge", "barchart", "table", "heatmap"}  # in 9.4 and since
NEEDS_NO_UNIT = {"table", "heatmap"}
# Labels with more values than a legend below a chart has room for.
MANY_VALUES = {"collector", "device", "gpu", "group", "instance", "mountpoint", "rank", "rule", "run", "user"}
ORDER = ["datasource", "cluster", "job", "run", "instance", "gpu", "rank"]
KEPT = {"run", "instance", "gpu", "rank"}  # by every dashboard, for its links, even if no panel reads them

every_dashboard = pytest.mark.parametrize("uid", sorted(DASHBOARDS))


def targets(uid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in panels(DASHBOARDS[uid]):
        for target in panel["targets"]:
            yield panel["title"], target


@every_dashboard
def test_uid_file_and_schema_are_fixed(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    assert re.fullmatch(r"stepscope-[a-z]+", uid)
    assert dashboard["schemaVersion"] == 37
    assert "id" not in dashboard  # Grafana's own number of it
    assert dashboard["tags"] == ["stepscope"]
    assert dashboard["description"]


def test_alerts_link_to_the_overview_of_their_run() -> None:
    path, _, variables = DASHBOARD.partition("?")
    assert path == "/d/stepscope-run"
    named = {one["name"] for one in DASHBOARDS["stepscope-run"]["templating"]["list"]}
    assert set(re.findall(r"var-(\w+)=", variables)) <= named


@every_dashboard
def test_every_panel_has_an_id_of_its_own_and_says_how_to_read_it(uid: str) -> None:
    top = DASHBOARDS[uid]["panels"]
    ids = [panel["id"] for row in top for panel in (row, *row.get("panels", ()))]
    assert all(isinstance(one, int) and one > 0 for one in ids)
    assert len(set(ids)) == len(ids)
    titles = [(panel["type"], panel["title"]) for panel in panels(DASHBOARDS[uid])]
    assert len(set(titles)) == len(titles)
    for panel in panels(DASHBOARDS[uid]):
        assert panel["type"] in OLD_AND_NEW
        assert len(panel["description"].split()) >= 8, panel["title"]
        assert panel["description"][-1] in ".)", panel["title"]


@every_dashboard
def test_what_a_number_says_if_there_is_none_can_be_read(uid: str) -> None:
    """Grafana 9.4 shrinks a text to its panel: 68 characters on 4 of 24 columns were 4 px high."""
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] == "stat":
            text = panel["fieldConfig"]["defaults"].get("noValue", "")
            assert len(text) <= 9 * panel["gridPos"]["w"], panel["title"]


def test_a_panel_that_says_nothing_of_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="A title: has no description"):
        stat("A title", " ", now("up"), unit="none")
    with pytest.raises(ValueError, match="A title: has no query"):
        stat("A title", "What it means.", unit="none")
    many = [stat(f"Panel {number}", "What it means.", now("up"), unit="none") for number in range(10)]
    with pytest.raises(ValueError, match="two panels have the same id"):
        page("uid", "A page", "What for.", [many, [section("More")]], [])


@every_dashboard
def test_panels_have_units_and_options_that_migrations_need(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["custom"], panel["title"]
        if panel["type"] not in NEEDS_NO_UNIT:
            assert defaults["unit"], panel["title"]


@every_dashboard
def test_gpu_hours_are_not_shown_as_days_or_weeks(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        fields = panel["fieldConfig"]
        units = [
            one["value"] for each in fields["overrides"] for one in each["properties"] if one["id"] == "unit"
        ]
        assert "h" not in [fields["defaults"].get("unit"), *units], panel["title"]


@every_dashboard
def test_a_legend_of_many_lines_is_beside_the_chart_where_it_scrolls(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] != "timeseries":
            continue
        legends = " ".join(target["legendFormat"] for target in panel["targets"])
        named = set(re.findall(r"{{(\w+)}}", legends)) | variables_in(legends)
        if named & {*MANY_VALUES, "of_node"}:
            assert panel["options"]["legend"]["placement"] == "right", panel["title"]
            # Beside the chart there is no room for the name of a threshold.
            assert "dashed line" in panel["description"] or "fires " not in legends, panel["title"]


@every_dashboard
def test_a_column_has_the_same_unit_in_every_row(uid: str) -> None:
    with_a_prefix_per_value = {"watth", "kwatth", "watt", "kwatt", "joule", "hertz"}
    for panel in panels(DASHBOARDS[uid]):
        for override in panel["fieldConfig"]["overrides"] if panel["type"] == "table" else ():
            units = {one["value"] for one in override["properties"] if one["id"] == "unit"}
            assert units.isdisjoint(with_a_prefix_per_value), override["matcher"]["options"]


@every_dashboard
def test_panels_fill_rows_and_do_not_overlap(uid: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[uid]["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    for row in [DASHBOARDS[uid], *DASHBOARDS[uid]["panels"]]:
        # One that is repeated to the right is as wide as it fits.
        places = [one["gridPos"] for one in row.get("panels", ()) if one.get("repeatDirection") != "h"]
        tops = {at["y"] for at in places}
        for top in tops:
            beside = [at for at in places if at["y"] == top]
            assert sum(at["w"] for at in beside) == 24, (row["title"], top)
            assert len({at["h"] for at in beside}) == 1, (row["title"], top)


@every_dashboard
def test_variables_come_in_one_order_and_each_query_knows_its_own(uid: str) -> None:
    listed = DASHBOARDS[uid]["templating"]["list"]
    names = [variable["name"] for variable in listed]
    assert [name for name in names if name in ORDER] == sorted(set(names) & set(ORDER), key=ORDER.index)
    assert names[0] == "datasource"
    known: set[str] = set(OF_GRAFANA)
    for variable in listed:
        if variable["type"] == "query":
            assert variable["datasource"] == DATASOURCE
            assert variables_in(variable["query"]["query"]) <= known, variable["name"]
            assert "\n" not in variable["query"]["query"]  # Grafana's pattern of them has no line ends
        known.add(variable["name"])
    used: set[str] = set()
    for title, target in targets(uid):
        assert target["datasource"] == DATASOURCE
        read = variables_in(target["expr"]) | variables_in(target["legendFormat"])
        assert read <= known, title
        used |= read
    for variable in listed:  # what is not used by any panel only confuses
        others = " ".join(json.dumps(one.get("query", "")) for one in listed)
        if variable["name"] not in {"datasource", *KEPT}:
            assert variable["name"] in used | variables_in(others), variable["name"]
        if variable["name"] in KEPT - used:
            assert variable["hide"] == 2 or variable["name"] in variables_in(others), variable["name"]


@every_dashboard
def test_marks_and_links_keep_datasource_variables_and_time(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    names = [one["name"] for one in dashboard["annotations"]["list"]]
    assert "Alerts" in names
    for annotation in dashboard["annotations"]["list"]:
        assert annotation["datasource"] == DATASOURCE
    kept = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert {"cluster", "job", *KEPT} <= kept
    (link,) = (one for one in dashboard["links"] if one["type"] == "dashboards")
    assert (link["tags"], link["includeVars"], link["keepTime"]) == (["stepscope"], True, True)


@every_dashboard
def test_colours_are_those_that_everybody_can_tell_apart(uid: str) -> None:
    allowed = {*PALETTE, *SEVERITY.values(), "text"}
    text = json.dumps([panel["fieldConfig"] for panel in panels(DASHBOARDS[uid])])
    found = set(re.findall(r'"(?:fixedColor|color)": "([^"]+)"', text))
    assert found <= allowed, found - allowed
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] == "heatmap":
            assert panel["options"]["color"]["scheme"] in {"Viridis", "Cool"}


@every_dashboard
def test_no_two_lines_of_a_panel_are_given_the_same_colour(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        properties = [one for each in panel["fieldConfig"]["overrides"] for one in each["properties"]]
        given = [one["value"].get("fixedColor") for one in properties if one["id"] == "color"]
        colours = [colour for colour in given if colour not in {"text", None}]
        assert len(set(colours)) == len(colours), panel["title"]


@every_dashboard
def test_lines_of_thresholds_are_those_of_parameters_that_exist(uid: str) -> None:
    known = {
        (name, parameter)
        for name, heuristic in all_rules().items()
        for parameter in vars(heuristic().parameters)
    }
    for title, target in targets(uid):
        for rule, parameter in re.findall(
            r'stepscope:rule_parameter\{rule="(\w+)", parameter="(\w+)"\}', target["expr"]
        ):
            assert (rule, parameter) in known, title
        if target["legendFormat"].startswith("fires "):
            assert re.search(r"stepscope:rule_parameter|_limit:", target["expr"]), title


@every_dashboard
def test_heatmaps_are_drawn_from_what_prometheus_gives(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        if panel["type"] != "heatmap":
            continue
        assert panel["options"]["calculate"] is False
        formats = {target["format"] for target in panel["targets"]}
        if formats == {"heatmap"}:
            assert all(target["legendFormat"] == "{{le}}" for target in panel["targets"])
            assert panel["options"]["yAxis"]["reverse"] is False
            # Shares of each column, and no colour that looks like the page: a rare bucket is visible.
            assert panel["options"]["color"]["scheme"] == "Cool"
            assert panel["options"]["cellValues"]["unit"] == "percentunit"
            assert "/ on () group_left ()" in panel["targets"][0]["expr"]
            continue
        assert formats == {"time_series"}
        colour = panel["options"]["color"]
        assert (colour["min"], colour["max"]) == (0, 1)
        assert panel["options"]["cellValues"]["unit"] == "percentunit"
        assert panel["options"]["yAxis"]["reverse"] is True
        assert all(re.match(r"clamp(_min)?\(", target["expr"]) for target in panel["targets"])


def test_the_cluster_reads_no_raw_series_of_gpus_or_cores() -> None:
    for title, target in targets("stepscope-cluster"):
        for name in re.findall(r"(?<![:\w])stepscope_\w+(?![:\w])", target["expr"]):
            assert not re.search("_gpu|_cpu|_step|samples", name), (title, name)


@every_dashboard
def test_the_docs_have_a_section_on_every_dashboard(uid: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "dashboards.md").read_text()
    title = DASHBOARDS[uid]["title"].removeprefix("Stepscope / ")
    assert f"\n## {title}\n\nuid `{uid}`. " in page
