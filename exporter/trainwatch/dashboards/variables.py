"""The variables at the top of a dashboard: data source, then run, instance, gpu and rank."""

from __future__ import annotations

from typing import Any

from trainwatch.dashboards.queries import DATASOURCE, OF_RUN

Variable = dict[str, Any]

HOUR = 3600
# Seconds; from here on panels read recorded series. These have a value every four minutes, so a chart of them
# needs points that are twice as far apart.
LONG_RANGE = 4 * 24 * HOUR
# For what is read at one moment, but looked for in the whole range.
LONG_FOR_ONE_MOMENT = 6 * HOUR
ALPHABETICAL, NUMERICAL = 1, 3  # Grafana's numbers of orders
ON_TIME_RANGE_CHANGE = 2
SHOWN, HIDDEN = 0, 2


def data_source() -> Variable:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "current": {},
        "options": [],
        "multi": False,
        "includeAll": False,
        "refresh": 1,
        "hide": SHOWN,
        "skipUrlSync": False,
    }


def run() -> Variable:
    """The runs that there were in the time range."""
    return query("run", "Run", "label_values(trainwatch_samples_total, run)")


def instance(of: str = 'trainwatch_samples_total{run="$run"}') -> Variable:
    """The nodes of the run. "All" is all of these, for readings of a node know no run."""
    variable = query("instance", "Node", f"label_values({of}, instance)", several=True)
    del variable["allValue"]
    return variable


def gpu() -> Variable:
    of = f"trainwatch_gpu_utilization_samples_count{{{OF_RUN}}}"
    return query("gpu", "GPU", f"label_values({of}, gpu)", several=True, sort=NUMERICAL)


def rank() -> Variable:
    of = f"trainwatch_phase_seconds_total{{{OF_RUN}}}"
    return query("rank", "Rank", f"label_values({of}, rank)", several=True, sort=NUMERICAL)


def price() -> Variable:
    """What a node costs, for who knows it; 1 shows hours of nodes."""
    return {
        "name": "price",
        "label": "Price of a node ($/h)",
        "type": "textbox",
        "query": "1",
        "current": {"text": "1", "value": "1", "selected": True},
        "options": [{"text": "1", "value": "1", "selected": True}],
        "hide": SHOWN,
        "skipUrlSync": False,
    }


def by_range(name: str, short: str, long: str, beyond: int = LONG_RANGE) -> Variable:
    """The name of a series: of the raw one, or on time ranges beyond so many seconds of the recorded one.

    So a query reads one of them only; `${name}` stands for it. Prometheus itself is asked which it is, for a
    variable of Grafana's cannot compare.
    """
    choice = " or ".join(
        f'label_replace(vector(1), "series", "{series}", "", "") and on () (vector($__range_s) {comparison})'
        for series, comparison in ((short, f"<= {beyond}"), (long, f"> {beyond}"))
    )
    return {
        **query(name, name, f"query_result({choice})", sort=0),
        "regex": '/series="([^"]+)"/',
        "hide": HIDDEN,
    }


def query(
    name: str, label: str, expression: str, several: bool = False, sort: int = ALPHABETICAL
) -> Variable:
    """A variable whose values Prometheus is asked for, anew when the time range changes."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": expression,
        "query": {"query": expression, "refId": "StandardVariableQuery"},
        "regex": "",
        "refresh": ON_TIME_RANGE_CHANGE,
        "sort": sort,
        "multi": several,
        "includeAll": several,
        **({"allValue": ".*"} if several else {}),
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if several else {},
        "options": [],
        "hide": SHOWN,
        "skipUrlSync": False,
    }
