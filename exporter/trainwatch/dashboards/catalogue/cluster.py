"""Cluster: runs side by side, what nodes do, which GPUs are paid for and idle, and what it costs.

For a thousand nodes: it reads alerts and what rules record every two minutes (prometheus_rules/usage.py),
never a raw series of each GPU or core.
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
# Other names than those of one run's dashboards, so that coming from a run shows all of them again.
RUNS = 'run=~"$runs"'
NODES = 'instance=~"$nodes"'
FIRING = f'ALERTS{{alertstate="firing", rule!="", run=~"$runs|", {NODES}}}'
PEERS = "run_instance_rank:trainwatch_peers_self_time:ratio"
# Integrals over time are sums of so many values as a chart has points: as cheap over a month as over an hour.
EACH_POINT = "[$__range:$__interval]"
HOURS_OF_A_POINT = "$__interval_ms / 3.6e6"


def dashboard() -> Dashboard:
    return page(
        UID,
        "Cluster",
        "All runs and nodes at once: who trains, what is wrong, which GPUs are idle, what it costs.",
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
    """By run: hours of nodes within the time range."""
    return f"(sum by (run) (sum_over_time({of_run(UNFINISHED)}{EACH_POINT})) * {HOURS_OF_A_POINT})"


def energy() -> str:
    """By run: kWh of its GPUs within the time range."""
    return (
        f"(sum by (run) (sum_over_time({of_run(usage.RUN_POWER)}{EACH_POINT})) / 1000 * {HOURS_OF_A_POINT})"
    )


def idle_hours() -> str:
    """By run: hours of GPUs in which they did nothing, within the time range."""
    idle = f"((1 - {of_run(usage.RUN_UTILIZATION)}) * {of_run(usage.RUN_GPUS)})"
    return f"(sum by (run) (sum_over_time({idle}{EACH_POINT})) * {HOURS_OF_A_POINT})"


def to_run() -> list[dict[str, Any]]:
    """Links from the name of a run."""
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
            """Runs that train at the end of the time range, with GPUs or without. The table below has one
            line for each.""",
            now(f"count(count by (run) ({of_run(UNFINISHED)})) or vector(0)"),
        ),
        stat(
            2,
            "Nodes",
            """Nodes whose exporter is heard. Fewer than you have: Trainwatch / Exporter health says which
            are missing.""",
            now(f"count({of_node(usage.MEMORY_USED)}) or vector(0)"),
        ),
        stat(
            3,
            "GPUs",
            """GPUs of these nodes, whether a run uses them or not.""",
            now(f"sum({of_node(usage.GPUS)}) or vector(0)"),
        ),
        stat(
            4,
            "Idle GPUs",
            """GPUs that were busy for less than 5 % of the last five minutes. Those of a run are paid for
            and wait; the table of nodes says where they are.""",
            now(f"sum({of_node(usage.GPUS_IDLE)}) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            5,
            "Alerts",
            """Alerts of Trainwatch that fire; below they are counted by run and rule. 0 is what you want.""",
            now(f"count({FIRING}) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            6,
            "GPU power",
            """What all GPUs draw together. Cooling and losses come on top of it.""",
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
            """Every run of the time range; "Waste" is the share of the time of its GPUs in which they did
            nothing. Begin with the line that costs most and has alerts or waste: a click on its name
            leads to what is wrong with it and what to do.""",
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
            """The mean of the GPUs of a run. A run that lies low all the time wastes its GPUs; one that
            falls has met something new, see the alerts. The line: below it LowGPUUtilization looks
            closer.""",
            lines(f"avg by (run) ({of_run(usage.RUN_UTILIZATION)})", "{{run}}"),
            threshold("LowGPUUtilization", "threshold_p95", "below"),
        ),
        time_series(
            13,
            "Steps a second by run",
            """Training steps of the furthest rank. Runs differ; what matters is that a line does not
            fall, and does not end before its time.""",
            lines(f"max by (run) ({of_run(usage.RUN_STEPS)})", "{{run}}"),
            logarithmic=True,
            lowest=None,
        ),
    ]


def _findings() -> list[Panel]:
    advice = f"group_left (severity, recommendation) {INFO}"
    nothing = (
        'label_replace(label_replace(vector(0), "rule", "No rule fires", "", ""), '
        '"recommendation", "Nothing was found that slows a run down.", "", "")'
    )
    rank = f"{PEERS}{{{RUNS}, {NODES}}}"
    return [
        section(20, "What is wrong"),
        table(
            21,
            "Alerts by run and rule",
            """What fires now, each with the number of its nodes, GPUs or ranks, and what to do. Critical
            ones first: these runs stand still or are about to fail.""",
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
            """How many alerts of each rule fire. Many of one rule at once, over many runs, point at what
            they share: storage, the network, the cooling of a room.""",
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
            """What the other ranks take for a step by themselves, as a share of what the slowest one
            takes. 100 %: all are alike. Below 75 %: all wait for this one (Straggler); look at its node.
            Only runs that mark communication can be judged.""",
            rows(f"bottomk by (run) (1, max by (run, instance, rank) ({rank}))"),
            columns={"run": "Run", "instance": "Node", "rank": "Rank", "Value": "Peers take"},
            unit="percentunit",
            width=12,
            sort_by=("Peers take", False),
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
            """A row a node: the mean of its GPUs over five minutes, from dark (0 %) to bright (100 %).
            Dark rows are nodes without work, or with work that waits; dark columns across all rows are an
            event that all nodes share. Choose nodes above to see fewer rows.""",
            lines(f"clamp_min(max by (instance) ({gpu}), 0.01)", "{{instance}}"),
            height=12,
        ),
        shares(
            32,
            "Nodes, from the idlest to the busiest",
            """GPU utilisation of nodes: a tenth of them lie below the lowest line, half below the middle
            one. A low lowest line: some nodes have nothing to do. All lines low: the cluster waits for
            something.""",
            *(
                lines(f"quantile({share}, max by (instance) ({gpu}))", name)
                for name, share in (("busiest tenth", 0.9), ("median", 0.5), ("idlest tenth", 0.1))
            ),
            width=8,
            overrides=coloured(("busiest tenth", "median", "idlest tenth")),
        ),
        shares(
            33,
            "Cores and I/O wait",
            """The mean of all nodes that train, and the node that waits most for its storage. Busy
            cores beside idle GPUs: data is prepared too slowly. Much I/O wait: see which nodes share
            that storage.""",
            lines(f"avg({cpu})", "cores, mean"),
            lines(f"max({cpu})", "cores, busiest node"),
            lines(f"max({of_node(usage.CPU_IO_WAIT)})", "I/O wait, worst node"),
            width=8,
            overrides=coloured(("cores, mean", "cores, busiest node", "I/O wait, worst node")),
        ),
        table(
            34,
            "Where GPUs are idle",
            """The 20 nodes with the most GPUs that did nothing in the last five minutes. With a run on
            them these are the dearest: see the run. Without one they are free for another.""",
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
            """What the GPUs of each run draw. A run that draws little for its number of GPUs does little
            with them.""",
            lines(f"sum by (run) ({of_run(usage.RUN_POWER)})", "{{run}}"),
            unit="watt",
            stacked=True,
        ),
        bars(
            42,
            "Energy by run",
            """Energy of the GPUs within the time range, each run by itself. The host, cooling and losses
            are not in it.""",
            now(f"sort_desc({energy()})", "{{run}}"),
            unit="kwatth",
            width=6,
        ),
        bars(
            43,
            "Idle hours of GPUs by run",
            """Hours in which GPUs of a run did nothing, all its GPUs added up, within the time range:
            what its findings are worth.""",
            now(f"sort_desc({idle_hours()})", "{{run}}"),
            unit="h",
            width=6,
        ),
        time_series(
            44,
            "Cost of each hour",
            """Nodes that train, times the price of a node for an hour, which you enter above.""",
            lines(f"sum by (run) ({of_run(UNFINISHED)}) * $price", "{{run}}"),
            unit="currencyUSD",
            stacked=True,
        ),
        bars(
            45,
            "Cost by run",
            """Hours of nodes within the time range, times the price of a node; with a price of 1 it shows
            the hours.""",
            now(f"sort_desc({node_hours()} * $price)", "{{run}}"),
            unit="currencyUSD",
        ),
    ]
