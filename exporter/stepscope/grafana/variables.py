"""The variables at the top of a dashboard: data source, cluster, job, run, instance, gpu and rank."""

from typing import Any

from stepscope.grafana.queries import DATASOURCE, OF_CLUSTER, OF_JOB, OF_RUN, THE_RUN, last
from stepscope.measurements.own_times import HOST
from stepscope.prometheus.rules.usage import LONG_GPU_MEMORY_SAMPLES, LONG_GPU_SAMPLES
from stepscope.rules import straggler

Variable = dict[str, Any]

HOUR = 3600
# Seconds; panels of longer ranges read recorded series. These have a value every four minutes, and the points
# of a chart must be twice as far apart.
LONG_RANGE = 4 * 24 * HOUR
# For queries of one moment that read the whole range.
LONG_FOR_ONE_MOMENT = 6 * HOUR
UNSORTED, ALPHABETICAL, NUMERICAL = 0, 1, 3  # orders of Grafana
ON_TIME_RANGE_CHANGE = 2
SHOWN, HIDDEN = 0, 2

# Ends legends of nodes and GPUs: the node's name only if there are several nodes.
OF_WHICH_NODE = "${of_node}"


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


def cluster(metric: str = "stepscope_samples_total") -> Variable:
    """Returns the variable of the clusters; it has no values if series have no label `cluster`."""
    return query("cluster", "Cluster", f"label_values({metric}, cluster)")


def job(metric: str = "stepscope_samples_total") -> Variable:
    """Returns the variable of the scrape jobs."""
    of_cluster = f"label_values({metric}{{{OF_CLUSTER}}}, job)"
    return {**query("job", "Job", of_cluster), "allValue": ".+"}


def run() -> Variable:
    """Returns the variable of the runs in the time range, the newest first.

    The subquery reads one value every five minutes: a month of a thousand nodes would be too much.
    """
    start = f"stepscope_run_start_time_seconds{{{OF_JOB}}}"
    newest = f"sort_desc(max by (run) ({start} or last_over_time({start}[$__range:5m])))"
    return {**named("run", "Run", newest, "run"), "regex": '/\\brun="(.+)"\\}/'}  # it may have quotes


def instance() -> Variable:
    """Returns the variable of the run's nodes. "All" lists them, because metrics of a node have no run."""
    of_run = f"label_values(stepscope_samples_total{{{OF_JOB}, {THE_RUN}}}, instance)"
    variable = query("instance", "Node", of_run)
    del variable["allValue"]
    return variable


def gpu() -> Variable:
    of = f"stepscope_gpu_utilization_samples_count{{{OF_RUN}}}"
    return query("gpu", "GPU", f"label_values({of}, gpu)", sort=NUMERICAL)


def rank() -> Variable:
    of = f"stepscope_phase_seconds_total{{{OF_RUN}}}"
    return query("rank", "Rank", f"label_values({of}, rank)", sort=NUMERICAL)


def of_node() -> Variable:
    """Returns the hidden variable OF_WHICH_NODE; a variable cannot be empty, so it may be a space."""
    nodes = f"count(count by (instance) (stepscope_run_start_time_seconds{{{OF_RUN}}})) > 1"
    name, space = (
        f'label_replace(vector(1), "node", "{text}", "", "")' for text in (" {{instance}}", "\xa0")
    )
    return hidden(
        named("of_node", "Node in legends", f"({name} and on () ({nodes})) or on () {space}", "node")
    )


def slowest_rank() -> Variable:
    """Returns the hidden variable of the slowest rank of a run."""
    own = last(f"{straggler.OWN}{{{OF_RUN}}}")
    return hidden(named("slowest", "Slowest rank", f"topk(1, max by (rank) ({own}))", "rank"))


def slow_component() -> Variable:
    """Returns the component that the slowest rank spends more time on than the others."""
    return hidden(named("part", "Slow component", f"topk(1, {slower_by()})", "component"))


def slower_by() -> str:
    """Returns the excess of the slowest rank over the others' median, in seconds per second, by component."""

    def spent(matcher: str) -> str:
        seconds = f'stepscope_step_component_seconds_total{{{OF_RUN}, rank{matcher}"$slowest"'
        parts = f'rate({seconds}, component!="communication"}}[$__range])'
        return f"{parts} or 1 - sum by (rank) (rate({seconds}}}[$__range]))"

    slower = f"max by (component) ({spent('=')}) - quantile by (component) (0.5, {spent('!=')})"
    return f'label_replace({slower}, "component", "{HOST}", "component", "")'


def price(of: str = "a node") -> Variable:
    """Returns the variable of an hourly price, at first unknown: see `priced`."""
    return _entered("price", f"Price of {of} ($/h)")


def reports() -> Variable:
    """Returns the variable of the address that lists `stepscope-runs/`, at first unknown."""
    return _entered("reports", "Reports at (URL)")


def _entered(name: str, label: str) -> Variable:
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": "",
        "current": {"text": "", "value": "", "selected": True},
        "options": [{"text": "", "value": "", "selected": True}],
        "hide": SHOWN,
        "skipUrlSync": False,
    }


def priced(hours: str) -> str:
    """Returns the cost; nothing without a price, because `e0` then is the name of a series that none has."""
    return f"{hours} * ${{price}}e0"


def by_range(name: str, short: str, long: str, beyond: int = LONG_RANGE) -> Variable:
    """Returns a hidden variable with the name of a series: `long` on time ranges above `beyond` seconds.

    A query with `${name}` then reads only one of them. Prometheus chooses it, because variables of Grafana
    cannot compare.
    """
    choice = " or ".join(
        f'label_replace(vector(1), "series", "{series}", "", "") and on () (vector($__range_s) {comparison})'
        for series, comparison in ((short, f"<= {beyond}"), (long, f"> {beyond}"))
    )
    return hidden(named(name, name, choice, "series"))


def gpu_samples(beyond: int = LONG_RANGE) -> list[Variable]:
    """Returns the hidden variables of the histograms of utilisation and memory of GPUs, see `by_range`."""
    return [
        by_range(name, f"stepscope_{what}_samples_bucket", long, beyond)
        for name, what, long in (
            ("gpu_samples", "gpu_utilization", LONG_GPU_SAMPLES),
            ("gpu_memory_samples", "gpu_memory", LONG_GPU_MEMORY_SAMPLES),
        )
    ]


def named(name: str, label: str, expression: str, of: str, several: bool = False) -> Variable:
    """Returns a variable with the values of a label in a query's result, in its order; "All" lists them."""
    variable = query(name, label, f"query_result({expression})", several, UNSORTED)
    variable.pop("allValue", None)
    return {**variable, "regex": f'/\\b{of}="([^"]+)"/'}


def hidden(variable: Variable) -> Variable:
    return {**variable, "hide": HIDDEN}


def query(name: str, label: str, expression: str, several: bool = True, sort: int = ALPHABETICAL) -> Variable:
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
