"""A whole dashboard: layout of panels, variables, marks of alerts and phases, links to other dashboards."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stepscope.grafana.looks import PURPLE, VERMILION
from stepscope.grafana.panels import WIDTH, Panel
from stepscope.grafana.queries import DATASOURCE, OF_RUN
from stepscope.grafana.variables import Variable, cluster, data_source, gpu, hidden, instance, job, rank, run

Dashboard = dict[str, Any]
Annotation = dict[str, Any]

TAG = "stepscope"
# The variables of every dashboard, in this order.
VARIABLES = ("datasource", "cluster", "job", "run", "instance", "gpu", "rank")
SCHEMA_VERSION = 37  # of Grafana 9.4; later versions migrate it when they load it


def dashboard(
    uid: str,
    title: str,
    description: str,
    groups: Sequence[Sequence[Panel]],
    variables: Sequence[Variable],
    annotations: Sequence[Annotation] = (),
) -> Dashboard:
    """Returns a dashboard. Raises ValueError if a group has so many panels that two have the same id."""
    placed = laid_out(_folded(_identified(groups)))
    ids = [panel["id"] for panel in _unfolded(placed)]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{title}: two panels have the same id among {sorted(ids)}")
    return {
        "uid": uid,
        "title": f"Stepscope / {title}",
        "description": " ".join(description.split()),
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,  # a save would be lost when the dashboards are provisioned again
        "graphTooltip": 1,  # one crosshair for all panels
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "links": [_to_other_dashboards()],
        "annotations": {"list": [*annotations]},
        "templating": {"list": [*variables]},
        "panels": placed,
    }


def of_one_run(
    uid: str,
    title: str,
    description: str,
    groups: Sequence[Sequence[Panel]],
    *variables: Variable,
    shown: Sequence[str] = (),
) -> Dashboard:
    """Returns a dashboard of one run and its chosen nodes, with more `variables` to choose.

    All such dashboards have the variables `gpu` and `rank`, so that links keep them; only those in `shown`
    can be chosen.
    """
    devices = (each if each["name"] in shown else hidden(each) for each in (gpu(), rank()))
    chosen = (data_source(), cluster(), job(), run(), instance(), *devices, *variables)
    return dashboard(uid, title, description, groups, chosen, [alerts(), *phases()])


def of_all_runs(
    uid: str,
    title: str,
    description: str,
    groups: Sequence[Sequence[Panel]],
    metric: str,
    variables: Sequence[Variable],
    annotations: Sequence[Annotation],
) -> Dashboard:
    """Returns a dashboard that keeps the chosen run for the links to the dashboards of one run.

    It has the clusters and jobs of which there is the `metric`.
    """
    kept = {each["name"]: hidden(each) for each in (run(), instance(), gpu(), rank())}
    own = {each["name"]: each for each in (data_source(), cluster(metric), job(metric), *variables)}
    ordered = {name: own.get(name) or kept.get(name) for name in (*VARIABLES, *own)}
    return dashboard(uid, title, description, groups, [*filter(None, ordered.values())], annotations)


def _identified(groups: Sequence[Sequence[Panel]]) -> Iterator[Panel]:
    """Yields panels with their ids, which are in links: in the second group 10 (its heading), 11, 12, ..."""
    for number, group in enumerate(groups):
        first = 10 * number + (group[0]["type"] != "row")
        yield from ({"id": first + place, **panel} for place, panel in enumerate(group))


def _folded(panels: Iterable[Panel]) -> Iterator[Panel]:
    """Yields the panels; those below a collapsed heading become a part of it."""
    heading: Panel | None = None
    for panel in panels:
        if panel["type"] == "row" or heading is None:
            if heading is not None:
                yield heading
            heading = panel if panel["type"] == "row" and panel["collapsed"] else None
            if heading is None:
                yield panel
        else:
            heading = {**heading, "panels": [*heading["panels"], panel]}
    if heading is not None:
        yield heading


def _unfolded(panels: Iterable[Panel]) -> Iterator[Panel]:
    for panel in panels:
        yield panel
        yield from panel.get("panels", ())


def laid_out(panels: Iterable[Panel], top: int = 0) -> list[Panel]:
    """Places panels from left to right and from top to bottom, like words in a text."""
    placed: list[Panel] = []
    x, y, tallest = 0, top, 0
    for panel in panels:
        size = panel["gridPos"]
        if x + size["w"] > WIDTH or panel["type"] == "row":
            x, y, tallest = 0, y + tallest, 0
        inside = {"panels": laid_out(panel["panels"], y + 1)} if panel.get("panels") else {}
        placed.append({**panel, **inside, "gridPos": {**size, "x": x, "y": y}})
        x, tallest = x + size["w"], max(tallest, size["h"])
    return placed


def alerts(matchers: str = OF_RUN) -> Annotation:
    """Marks the time in which each alert fires, once per run: with many ranks, regions would hide lines."""
    return _annotation(
        "Alerts",
        f'max by (cluster, run, alertname, severity) (ALERTS{{alertstate="firing", {matchers}}})',
        title="{{alertname}}",
        text="{{severity}} {{run}}",
        colour=VERMILION,
        tags="alertname",
    )


def phases() -> list[Annotation]:
    """Marks the run's start, first step and end, and the times of evaluation and prediction."""
    moments = (("start", "start", "min"), ("first step", "first_step", "min"), ("end", "end", "max"))
    ends = " or ".join(
        f"label_replace({operator}(stepscope_run_{metric}_time_seconds{{{OF_RUN}}}), "
        f'"moment", "{moment}", "", "")'
        for moment, metric, operator in moments
    )
    other = f'stepscope_step_duration_seconds_count{{{OF_RUN}, phase!="train"}}'
    return [
        {
            **_annotation(
                "Start and end", f"1000 * ({ends})", title="{{moment}}", text="$run", colour=PURPLE
            ),
            "useValueForTime": "on",
        },
        _annotation(
            "Phases",
            f"sum by (phase) (rate({other}[$__rate_interval])) > 0",
            title="{{phase}}",
            text="steps of {{phase}}",
            colour=PURPLE,
        ),
    ]


def _annotation(name: str, expression: str, title: str, text: str, colour: str, tags: str = "") -> Annotation:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expression,
        "step": "60s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": tags,
        "useValueForTime": False,
    }


def _to_other_dashboards() -> dict[str, Any]:
    """Returns links to the dashboards with TAG, with the same variables and time range."""
    return {
        "type": "dashboards",
        "title": "Stepscope",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "dashboard",
        "tooltip": "",
        "url": "",
    }


def panel_id(board: Dashboard, title: str) -> int:
    """Returns the id of a panel, for a link to it. Raises ValueError if there is none of that title."""
    found = [panel["id"] for panel in _unfolded(board["panels"]) if panel["title"] == title]
    if len(found) != 1:
        raise ValueError(f"{board['title']} has {len(found)} panels with the title {title!r}")
    return int(found[0])
