"""Cluster: runs side by side, the load of nodes, idle GPUs, and the cost.

It works for a thousand nodes, because it reads no raw series of GPUs or cores, only alerts and what
prometheus_rules/usage.py records every two minutes.
"""

from __future__ import annotations

from typing import Any

from trainwatch.dashboards import variables
from trainwatch.dashboards.looks import SEVERITY, VERMILION, Override, by_name, coloured, steps, words
from trainwatch.dashboards.page import Dashboard, alerts
from trainwatch.dashboards.page import dashboard as page
from trainwatch.dashboards.panels import (
    Panel,
    bars,
    device_heatmap,
    section,
    shares,
    stat,
    table,
    time_series,
)
from trainwatch.dashboards.queries import lines, now, rows, threshold
from trainwatch.prometheus_rules import usage
from trainwatch.prometheus_rules.groups import INFO
from trainwatch.prometheus_rules.meta import UNFINISHED

UID = "trainwatch-cluster"
# Not the names of one run's dashboards: a link from a run must show all runs.
RUNS = 'run=~"$runs"'
NODES = 'instance=~"$nodes"'
FIRING = f'ALERTS{{alertstate="firing", rule!="", run=~"$runs|", {NODES}}}'
PEERS = "run_instance_rank:trainwatch_peers_self_time:ratio"
# Integrals over time sum one value per point of a chart: a month is as cheap as an hour.
EACH_POINT = "[$__range:$__interval]"
HOURS_OF_A_POINT = "$__interval_ms / 3.6e6"


def dashboard() -> Dashboard:
    return page(
        UID,
        "Cluster",
        "All runs and nodes at once: what is wrong, which GPUs are idle, and what runs cost.",
        [*_numbers(), *_runs(), *_findings(), *_nodes(), *_energy_and_cost()],
        [
            variables.data_source(),
            variables.query("runs", "Runs", f"label_values({UNFINISHED}, run)", several=True),
            variables.query("nodes", "Nodes", f"label_values({usage.MEMORY_USED}, instance)", several=True),
            variables.price(),
        ],
        [alerts('severity="critical"')],
    )


def of_run(series: str) -> str:
    return f"{series}{{{RUNS}, {NODES}}}"


def of_node(series: str) -> str:
    return f"{series}{{{NODES}}}"


def node_hours() -> str:
    """Returns node hours by run, within the time range."""
    return f"(sum by (run) (sum_over_time({of_run(UNFINISHED)}{EACH_POINT})) * {HOURS_OF_A_POINT})"


def energy() -> str:
    """Returns kWh of GPUs by run, within the time range."""
    return (
        f"(sum by (run) (sum_over_time({of_run(usage.RUN_POWER)}{EACH_POINT})) / 1000 * {HOURS_OF_A_POINT})"
    )


def idle_hours() -> str:
    """Returns idle GPU hours by run, within the time range."""
    idle = f"((1 - {of_run(usage.RUN_UTILIZATION)}) * {of_run(usage.RUN_GPUS)})"
    return f"(sum by (run) (sum_over_time({idle}{EACH_POINT})) * {HOURS_OF_A_POINT})"


def to_run() -> list[dict[str, Any]]:
    """Returns the links of a run's name."""
    url = (
        "/d/trainwatch-run?var-run=${__value.text:percentencode}&${datasource:queryparam}&${__url_time_range}"
    )
    return [{"title": "What is wrong with this run?", "url": url, "targetBlank": False}]


def run_column() -> Override:
    return by_name("Run", custom__width=240, links=to_run())


def _numbers() -> list[Panel]:
    return [
        stat(
            1,
            "Runs",
            """Runs that are training at the end of the time range, with or without GPUs. The table below
            lists them.""",
            now(f"count(count by (run) ({of_run(UNFINISHED)})) or vector(0)"),
        ),
        stat(
            2,
            "Nodes",
            """Nodes whose exporter is up. If some are missing, Trainwatch / Exporter health shows
            which.""",
            now(f"count({of_node(usage.MEMORY_USED)}) or vector(0)"),
        ),
        stat(
            3,
            "GPUs",
            """All GPUs of these nodes, whether or not a run uses them.""",
            now(f"sum({of_node(usage.GPUS)}) or vector(0)"),
        ),
        stat(
            4,
            "Idle GPUs",
            """GPUs that were busy for less than 5 % of the last five minutes. The table "Nodes with idle
            GPUs" shows where they are.""",
            now(f"sum({of_node(usage.GPUS_IDLE)}) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            5,
            "Alerts",
            """Firing alerts of Trainwatch. "Alerts by run and rule" lists them.""",
            now(f"count({FIRING}) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            6,
            "GPU power",
            """Power of all GPUs together, without cooling and losses.""",
            now(f"sum({of_node(usage.GPU_POWER)}) or vector(0)"),
            unit="watt",
        ),
    ]


def _runs() -> list[Panel]:
    return [
        section(10, "Runs"),
        table(
            11,
            "Runs side by side",
            """Every run of the time range. "Waste" is the share of GPU time that was idle. Begin with the
            most expensive run that has alerts or waste: click its name to see what is wrong and what to
            do.""",
            rows(f"sum by (run) (max_over_time({of_run(UNFINISHED)}[$__range]))"),
            rows(f"sum by (run) (max_over_time({of_run(usage.RUN_GPUS)}[$__range]))"),
            rows(f"1 - avg by (run) (avg_over_time({of_run(usage.RUN_UTILIZATION)}[$__range]))"),
            rows(f"max by (run) ({of_run(usage.RUN_STEPS)})"),
            rows(energy()),
            rows(f"{node_hours()} * $price"),
            rows(f"count by (run) ({FIRING})"),
            columns={
                "run": "Run",
                "Value #A": "Nodes",
                "Value #B": "GPUs",
                "Value #C": "Waste",
                "Value #D": "Steps/s",
                "Value #E": "Energy",
                "Value #F": "Cost",
                "Value #G": "Alerts",
            },
            height=10,
            sort_by=("Cost", True),
            overrides=[
                run_column(),
                by_name(
                    "Waste",
                    unit="percentunit",
                    decimals=0,
                    min=0,
                    max=1,
                    custom__displayMode="gradient-gauge",
                    color={"mode": "continuous-YlRd"},
                ),
                by_name("Steps/s", decimals=2),
                by_name("Energy", unit="kwatth", decimals=2),
                by_name("Cost", unit="currencyUSD", decimals=2),
            ],
        ),
        shares(
            12,
            "GPU utilisation by run",
            """Mean utilisation of a run's GPUs. A low line means wasted GPUs. If a line drops, check the
            alerts. The dashed line is the threshold of LowGPUUtilization.""",
            lines(f"avg by (run) ({of_run(usage.RUN_UTILIZATION)})", "{{run}}"),
            threshold("LowGPUUtilization", "threshold_p95", "below"),
        ),
        time_series(
            13,
            "Steps per second by run",
            """Training steps of the fastest rank. Rates of different runs cannot be compared; look for
            lines that drop, or that end early.""",
            lines(f"max by (run) ({of_run(usage.RUN_STEPS)})", "{{run}}"),
            logarithmic=True,
            lowest=None,
        ),
    ]


def _findings() -> list[Panel]:
    advice = f"group_left (severity, recommendation) {INFO}"
    nothing = (
        'label_replace(label_replace(vector(0), "rule", "No rule fires", "", ""), '
        '"recommendation", "Nothing slows a run down.", "", "")'
    )
    rank = f"{PEERS}{{{RUNS}, {NODES}}}"
    return [
        section(20, "What is wrong"),
        table(
            21,
            "Alerts by run and rule",
            """Firing alerts with the number of nodes, GPUs or ranks, and what to do. Fix critical ones
            first: these runs have stalled or are about to fail.""",
            rows(f"(count by (run, rule) ({FIRING}) * on (rule) {advice}) or on () {nothing}"),
            columns={
                "severity": "Severity",
                "run": "Run",
                "rule": "Rule",
                "Value": "Times",
                "recommendation": "What to do",
            },
            height=10,
            sort_by=("Severity", False),
            overrides=[
                run_column(),
                by_name("Rule", custom__width=200),
                by_name("Times", custom__width=80),
                by_name(
                    "Severity",
                    custom__width=100,
                    custom__displayMode="color-text",
                    mappings=words({name: (name, colour) for name, colour in SEVERITY.items()}),
                ),
            ],
        ),
        time_series(
            22,
            "Alerts by rule",
            """Number of firing alerts per rule. If many runs have the same alert at once, check what they
            share: storage, the network, the cooling of a room.""",
            lines(
                f"count by (alertname) ({FIRING}) or on () "
                'label_replace(vector(0), "alertname", "none", "", "")',
                "{{alertname}}",
            ),
            stacked=True,
        ),
        table(
            23,
            "The slowest rank of each run",
            """Compute time per step of the other ranks, relative to the slowest rank. 100 %: all ranks are
            equally fast. Below 75 %: all ranks wait for this straggler (Straggler); check its node. Only
            runs that mark communication can be judged.""",
            rows(f"bottomk by (run) (1, max by (run, instance, rank) ({rank}))"),
            columns={"run": "Run", "instance": "Node", "rank": "Rank", "Value": "Peers' time"},
            unit="percentunit",
            width=12,
            sort_by=("Peers' time", False),
            overrides=[run_column()],
        ),
    ]


def _nodes() -> list[Panel]:
    gpu, cpu = of_node(usage.GPU_UTILIZATION), of_node(usage.CPU_UTILIZATION)
    most_idle = f"topk(20, max by (instance) ({of_node(usage.GPUS_IDLE)} > 0))"
    none_idle = 'label_replace(vector(0), "instance", "No GPU is idle", "", "")'
    return [
        section(30, "Nodes"),
        device_heatmap(
            31,
            "GPU utilisation of each node",
            """One row per node: the mean of its GPUs over five minutes, from dark (0 %) to bright (100 %).
            Dark rows are nodes without work, or whose work waits. Dark columns across all rows are an
            event that affects all nodes. Choose nodes at the top to see fewer rows.""",
            lines(f"clamp_min(max by (instance) ({gpu}), 0.01)", "{{instance}}"),
            height=12,
        ),
        shares(
            32,
            "GPU utilisation across nodes",
            """Percentiles of the nodes' GPU utilisation. A low p10: some nodes have nothing to do. All
            lines low: the whole cluster waits for something.""",
            *(
                lines(f"quantile({share}, max by (instance) ({gpu}))", name)
                for name, share in (("p90", 0.9), ("median", 0.5), ("p10", 0.1))
            ),
            width=8,
            overrides=coloured(("p90", "median", "p10")),
        ),
        shares(
            33,
            "CPU and I/O wait",
            """Mean and maximum of all nodes that are training. Busy cores with idle GPUs: data preparation
            is too slow. High I/O wait: check which nodes share that storage.""",
            lines(f"avg({cpu})", "CPU, mean"),
            lines(f"max({cpu})", "CPU, busiest node"),
            lines(f"max({of_node(usage.CPU_IO_WAIT)})", "I/O wait, highest"),
            width=8,
            overrides=coloured(("CPU, mean", "CPU, busiest node", "I/O wait, highest")),
        ),
        table(
            34,
            "Nodes with idle GPUs",
            """The 20 nodes with the most GPUs that were idle in the last five minutes. If a run uses them,
            open the run; otherwise they are free for another one.""",
            rows(f"{most_idle} or on () {none_idle}"),
            columns={"instance": "Node", "Value": "Idle GPUs"},
            width=8,
            sort_by=("Idle GPUs", True),
        ),
    ]


def _energy_and_cost() -> list[Panel]:
    return [
        section(40, "Energy and cost"),
        time_series(
            41,
            "GPU power by run",
            """Power of each run's GPUs. Little power for the number of GPUs means little work.""",
            lines(f"sum by (run) ({of_run(usage.RUN_POWER)})", "{{run}}"),
            unit="watt",
            stacked=True,
        ),
        bars(
            42,
            "Energy by run",
            """Energy of each run's GPUs within the time range, without the host, cooling and losses.""",
            now(f"sort_desc({energy()})", "{{run}}"),
            unit="kwatth",
            width=6,
        ),
        bars(
            43,
            "Idle GPU hours by run",
            """Hours in which the run's GPUs were idle, summed over its GPUs, within the time range: what
            fixing its findings can save.""",
            now(f"sort_desc({idle_hours()})", "{{run}}"),
            unit="h",
            width=6,
        ),
        time_series(
            44,
            "Cost per hour",
            """Number of nodes of each run, times the hourly price of a node, which you enter at the top.""",
            lines(f"sum by (run) ({of_run(UNFINISHED)}) * $price", "{{run}}"),
            unit="currencyUSD",
            stacked=True,
        ),
        bars(
            45,
            "Cost by run",
            """Node hours within the time range, times the hourly price of a node. With a price of 1 it
            shows node hours.""",
            now(f"sort_desc({node_hours()} * $price)", "{{run}}"),
            unit="currencyUSD",
        ),
    ]
