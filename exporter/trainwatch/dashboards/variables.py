"""The variables at the top of a dashboard: data source, then run, instance, gpu and rank."""

from __future__ import annotations

from typing import Any

from trainwatch.dashboards.queries import DATASOURCE, OF_RUN

Variable = dict[str, Any]

HOUR = 3600
# Seconds; panels of longer ranges read recorded series. These have a value every four minutes, and the points
# of a chart must be twice as far apart.
LONG_RANGE = 4 * 24 * HOUR
# For queries of one moment that read the whole range.
LONG_FOR_ONE_MOMENT = 6 * HOUR
ALPHABETICAL, NUMERICAL = 1, 3  # orders of Grafana
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
    """Returns the variable of the runs in the time range."""
    return query("run", "Run", "label_values(trainwatch_samples_total, run)")


def instance() -> Variable:
    """Returns the variable of the run's nodes. "All" lists them, because metrics of a node have no run."""
    of_run = 'label_values(trainwatch_samples_total{run="$run"}, instance)'
    variable = query("instance", "Node", of_run, several=True)
    del variable["allValue"]
    return variable


def gpu() -> Variable:
    of = f"trainwatch_gpu_utilization_samples_count{{{OF_RUN}}}"
    return query("gpu", "GPU", f"label_values({of}, gpu)", several=True, sort=NUMERICAL)


def rank() -> Variable:
    of = f"trainwatch_phase_seconds_total{{{OF_RUN}}}"
    return query("rank", "Rank", f"label_values({of}, rank)", several=True, sort=NUMERICAL)


def price() -> Variable:
    """Returns the variable of a node's hourly price; 1 shows node hours."""
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
    """Returns a hidden variable with the name of a series: `long` on time ranges above `beyond` seconds.

    A query with `${name}` then reads only one of them. Prometheus chooses it, because variables of Grafana
    cannot compare.
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
    """Returns a variable with values from Prometheus, which Grafana updates with the time range."""
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
