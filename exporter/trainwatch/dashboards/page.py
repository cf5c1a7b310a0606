"""A whole dashboard: layout of panels, variables, marks of alerts and phases, links to other dashboards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainwatch.dashboards.looks import PURPLE, VERMILION
from trainwatch.dashboards.panels import WIDTH, Panel
from trainwatch.dashboards.queries import DATASOURCE, OF_RUN
from trainwatch.dashboards.variables import Variable, data_source, instance, run

Dashboard = dict[str, Any]
Annotation = dict[str, Any]

TAG = "trainwatch"
SCHEMA_VERSION = 37  # of Grafana 9.4; later versions migrate it when they load it


def dashboard(
    uid: str,
    title: str,
    description: str,
    panels: Iterable[Panel],
    variables: Sequence[Variable],
    annotations: Sequence[Annotation] = (),
) -> Dashboard:
    """Returns a dashboard. Raises ValueError if two panels have the same id."""
    placed = laid_out(panels)
    ids = [panel["id"] for panel in placed]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{title}: two panels have the same id among {sorted(ids)}")
    return {
        "uid": uid,
        "title": f"Trainwatch / {title}",
        "description": " ".join(description.split()),
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
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
    uid: str, title: str, description: str, panels: Iterable[Panel], *variables: Variable
) -> Dashboard:
    """Returns a dashboard of one run and its chosen nodes, with more `variables` to choose."""
    chosen = (data_source(), run(), instance(), *variables)
    return dashboard(uid, title, description, panels, chosen, [alerts(), *phases()])


def laid_out(panels: Iterable[Panel]) -> list[Panel]:
    """Places panels from left to right and from top to bottom, like words in a text."""
    placed: list[Panel] = []
    x = y = tallest = 0
    for panel in panels:
        size = panel["gridPos"]
        if x + size["w"] > WIDTH or panel["type"] == "row":
            x, y, tallest = 0, y + tallest, 0
        placed.append({**panel, "gridPos": {**size, "x": x, "y": y}})
        x, tallest = x + size["w"], max(tallest, size["h"])
    return placed


def alerts(matchers: str = OF_RUN) -> Annotation:
    """Marks the time in which each alert fires."""
    return _annotation(
        "Alerts",
        f'ALERTS{{alertstate="firing", {matchers}}}',
        title="{{alertname}}",
        text="{{severity}}: {{instance}} {{gpu}} {{rank}}",
        colour=VERMILION,
        tags="alertname",
    )


def phases() -> list[Annotation]:
    """Marks the run's start, first step and end, and the times of evaluation and prediction."""
    moments = (
        ("start", "run_start", "min"),
        ("first step", "run_first_step", "min"),
        ("end", "run_end", "max"),
    )
    times = (
        (moment, f"{operator}(trainwatch_{metric}_time_seconds{{{OF_RUN}}})")
        for moment, metric, operator in moments
    )
    ends = " or ".join(f'label_replace({time}, "moment", "{moment}", "", "")' for moment, time in times)
    other = f'trainwatch_step_duration_seconds_count{{{OF_RUN}, phase!="train"}}'
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
        "title": "Trainwatch",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "dashboard",
        "tooltip": "",
        "url": "",
    }
