"""Cluster: runs side by side, the load of nodes, idle GPUs, and the cost.

It works for a thousand nodes, because it reads no raw series of GPUs or cores, only alerts and what
prometheus_rules/usage.py records every two minutes.
"""

from stepscope.grafana import variables, verdict
from stepscope.grafana.looks import GPU_HOURS, SEVERITY, VERMILION, by_pattern, coloured, steps, words
from stepscope.grafana.page import Dashboard, alerts, of_all_runs
from stepscope.grafana.panels import (
    Column,
    Panel,
    bars,
    column,
    device_heatmap,
    section,
    shares,
    stat,
    table,
    time_series,
    unshown,
)
from stepscope.grafana.queries import (
    OF_CLUSTER,
    OF_JOB,
    OF_RULES,
    integral,
    lines,
    now,
    or_zero,
    rows,
    threshold,
    wasted,
    wasted_now,
)
from stepscope.grafana.variables import priced
from stepscope.prometheus.rules import owners, usage
from stepscope.prometheus.rules.groups import DISTANCE, INFO, LOST
from stepscope.prometheus.rules.meta import BUILD, UNFINISHED
from stepscope.prometheus.rules.usage import ADVICE
from stepscope.rules import straggler
from stepscope.rules.low_gpu_utilization import LowGPUUtilization
from stepscope.rules.parts.topics import ANY_TOPIC

UID = "stepscope-cluster"
# Not the names of one run's dashboards: a link from a run must show all runs.
NO_PRICE = "enter the price of a node at the top"
RUNS = 'run=~"$runs"'
NODES = f'{OF_JOB}, instance=~"$nodes"'
UP = f"count by (cluster, instance) ({BUILD}{{{NODES}}})"
OF_ALERTS = f"{OF_RULES}, {RUNS}, {NODES}"
FIRING = f'ALERTS{{alertstate="firing", {OF_ALERTS}}}'
# Some alerts have no run, no job or no node.
ANY_ALERT = (
    f'ALERTS{{alertstate="firing", rule!="", severity!="none", {RUNS}, '
    f'{OF_CLUSTER}, job=~"$job|", instance=~"$nodes|"}}'
)
ALERT = "cluster, run, rule"  # labels that distinguish rows
ANY_FIRING = f'ALERTS{{alertstate="firing", {OF_RULES}}}'  # also of what is not chosen at the top
OF_ANY_JOB = f'ALERTS{{alertstate="firing", {OF_RULES}, {RUNS}, {OF_CLUSTER}}}'
OF_RUNS = f"{RUNS}, {NODES}"
MOST_BARS = 12  # in a panel of bars, each a run: more are too thin to read
LEAST = "z"  # instead of info, so that words sort by severity: critical, warning, z
RULES_LOADED = f"{INFO}{{{OF_CLUSTER}}}"


def dashboard() -> Dashboard:
    return of_all_runs(
        UID,
        "Cluster",
        "All runs and nodes at once: what is wrong, which GPUs are idle, and what runs cost.",
        [_numbers(), _runs(), _findings(), _nodes(), _energy_and_cost()],
        BUILD,
        [
            variables.query("runs", "Runs", f"label_values({UNFINISHED}{{{OF_JOB}}}, run)"),
            variables.query("nodes", "Nodes", f"label_values({BUILD}{{{OF_JOB}}}, instance)"),
            variables.price(),
        ],
        [alerts(f'rule!="", severity="critical", {OF_CLUSTER}')],
    )


def of_run(series: str) -> str:
    return f"{series}{{{RUNS}, {NODES}}}"


def of_node(series: str) -> str:
    return f"{series}{{{NODES}}}"


def names() -> str:
    """Returns one series per run with its name and its user."""
    info = f"last_over_time({of_run('stepscope_run_info')}[$__range])"
    return f"topk by (cluster, run) (1, max by (cluster, run, name, user) ({info}))"


def run_column() -> Column:
    """Returns the column of runs, whose names link to their own dashboards."""
    url = (
        "/d/stepscope-run?var-run=${__value.text:percentencode}&${cluster:queryparam}"
        "&${job:queryparam}&${datasource:queryparam}&${__url_time_range}"
    )
    link = {"title": "What is wrong with this run?", "url": url, "targetBlank": False}
    return column("Run", "run", least_width=260, links=[link])


def _numbers() -> list[Panel]:
    return [
        stat(
            "Verdict",
            """The state of the cluster. It checks that exporters are scraped and up, that rules are loaded,
            and that something trains, before it says that no warning fires.""",
            now(verdict.chain(verdict.OF_THE_CLUSTER)),
            width=24,
            height=3,
            size=26,
            mappings=verdict.mappings(verdict.OF_THE_CLUSTER),
            nothing="Prometheus does not answer",
        ),
        stat(
            "Runs",
            """Runs that are training at the end of the time range, with or without GPUs. The table below
            lists them.""",
            now(or_zero(f"count(count by (cluster, run) ({of_run(UNFINISHED)}))", RULES_LOADED)),
        ),
        stat(
            "Nodes",
            """Nodes whose exporter is up. If some are missing, Stepscope / Exporter health shows
            which.""",
            now(or_zero(f"count({UP})", RULES_LOADED)),
        ),
        stat(
            "GPUs",
            """All GPUs of these nodes, whether or not a run uses them.""",
            now(or_zero(f"sum({of_node(usage.GPUS)})", of_node(usage.MEMORY_USED))),
        ),
        stat(
            "Idle GPUs",
            """GPUs that were busy for less than 5 % of the last five minutes. The table "Nodes with idle
            GPUs" shows where they are.""",
            now(f"sum({of_node(usage.GPUS_IDLE)})"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            "Alerts",
            """Firing alerts on runs. "Alerts by run and rule" lists them.""",
            now(or_zero(f"count({FIRING})", RULES_LOADED)),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            "GPU power",
            """Power of all GPUs together, without cooling and losses.""",
            now(f"sum({of_node(usage.GPU_POWER)})"),
            unit="watt",
        ),
    ]


def _runs() -> list[Panel]:
    most = "sum by (cluster, run) (max_over_time({}[$__range]))"
    steps_per_second = f"max by (cluster, run) ({of_run(usage.RUN_STEPS)})"
    kwh = f"sum by (cluster, run) ({integral(of_run(usage.RUN_POWER))}) / 1000"
    node_hours = f"sum by (cluster, run) ({integral(of_run(UNFINISHED))})"
    useful = f"avg by (cluster, run) (avg_over_time({of_run(owners.RUN_USEFUL)}[$__range]))"
    by_user = f"{useful} * on (cluster, run) group_right () {names()}"
    return [
        section("Runs"),
        table(
            "Runs side by side",
            """Every run of the time range. "Waste" is the share of the time in which GPUs were idle, or
            steps waited for data or other ranks, whichever is larger. Begin with the largest run that has
            alerts or waste: click its name to see what is wrong and what to do. Initialization before the
            first step counts as waste. Waste is the mean of five-minute means, so the start of a run counts
            more: a healthy run of ten minutes shows about 13 %.""",
            column("Cluster", "cluster"),
            run_column(),
            column("Name", "name", least_width=180),
            column("User", "user", width=90),
            column("Nodes", rows(most.format(of_run(UNFINISHED)))),
            column("GPUs", rows(most.format(of_run(usage.RUN_GPUS)))),
            column(
                "Waste",
                rows(wasted(OF_RUNS)),
                width=170,
                unit="percentunit",
                decimals=0,
                min=0,
                max=1,
                mode="gradient-gauge",
                color={"mode": "continuous-YlRd"},
            ),
            column("Steps/s", rows(steps_per_second), width=85, decimals=2),
            # Without a unit, which would have its own prefix per row.
            column("Energy (kWh)", rows(kwh), width=110, decimals=2),
            column("Cost", rows(priced(node_hours)), width=90, unit="currencyUSD", decimals=2),
            column("Alerts", rows(f"count by (cluster, run) ({FIRING})")),
            unshown(rows(names())),
            height=10,
            sort_by=("Waste", True),
            overrides=[by_pattern("^(Nodes|GPUs|Alerts)$", width=75, decimals=0)],
        ),
        shares(
            "GPU utilisation by run",
            """Mean utilisation of a run's GPUs. A low line means wasted GPUs. If a line drops, check the
            alerts. The dashed line is the threshold of LowGPUUtilization.""",
            lines(f"avg by (cluster, run) ({of_run(usage.RUN_UTILIZATION)})", "{{run}} {{cluster}}"),
            threshold(LowGPUUtilization, "threshold_p95", of_run(usage.RUN_UTILIZATION), "below"),
        ),
        time_series(
            "Steps per second by run",
            """Training steps of the fastest rank. Rates of different runs cannot be compared; look for
            lines that drop, or that end early.""",
            lines(f"max by (cluster, run) ({of_run(usage.RUN_STEPS)})", "{{run}} {{cluster}}"),
            logarithmic=True,
            lowest=None,
        ),
        bars(
            "Useful time by run",
            """Share of the time of a run's ranks that was useful: in forward, backward or the optimizer. The
            runs with the lowest shares are shown. "Where did the time go?" of the run itself shows what the
            rest was.""",
            now(f"sort(bottomk({MOST_BARS}, {by_user}))", "{{run}}, {{user}}"),
            unit="percentunit",
            width=24,
            highest=1,
            nothing="no training process, or exporters with the lean profile",
        ),
    ]


def _findings() -> list[Panel]:
    nodes = f"group by ({ALERT}, instance) ({FIRING})"
    number = f"count by ({ALERT}) ({nodes})"
    several = f'count_values by ({ALERT}) ("nodes", {number} > 1)'
    counted = f"count by (cluster, run, rule, severity, user) ({_problems(FIRING)})"
    since = _of_problems(f"1000 * min by ({ALERT}) (ALERTS_FOR_STATE{{{OF_ALERTS}}})")
    shares_lost = f"{of_run(straggler.EXCESS)} / {of_run(straggler.OWN)}"
    slowest = f"topk by (cluster, run) (1, max by (cluster, run, instance, rank) ({shares_lost}))"
    return [
        section("What is wrong"),
        table(
            "Alerts by run and rule",
            """The problems of each run. "Count" is the number of nodes, GPUs or ranks, and "Since" is when
            the first of them began. Alerts that see the same problem are one row, as on the run's own
            dashboard. Fix critical ones first: these runs have stalled or are about to fail.""",
            column(
                "Severity",
                "severity",
                width=100,
                mode="color-text",
                mappings=words(
                    {LEAST if name == "info" else name: (name, colour) for name, colour in SEVERITY.items()}
                ),
            ),
            column("Cluster", "cluster", width=120),
            run_column(),
            column("User", "user", width=90),
            column("Rule", "rule", width=190),
            column("Node", "instance", least_width=180),
            column(
                "Count",
                rows(f'label_replace({counted}, "severity", "{LEAST}", "severity", "info")'),
                width=70,
            ),
            unshown(rows(_of_problems(f"{nodes} and on ({ALERT}) {number} == 1"))),
            unshown(rows(_of_problems(f'label_replace({several}, "instance", "$1 nodes", "nodes", "(.+)")'))),
            column("Since", rows(since), width=165, unit="dateTimeAsIsoNoDateIfToday"),
            height=10,
            sort_by=("Severity", False),
            nothing="no alert; the verdict says whether any could fire",
        ),
        stat(
            "What to do",
            """The most specific advice that the alerts of a run support, for up to five problems. A run's own
            dashboard has the advice for all of its problems, and knows in which part of a step a rank is
            slow.""",
            now(f"topk(5, {_advice()})", "{{run}}, {{rule}}: {{recommendation}}"),
            width=24,
            height=7,
            show="name",
            sideways=True,
            size=14,
            nothing="no alert; the verdict says whether any could fire",
        ),
        time_series(
            "Alerts by rule",
            """Number of firing alerts per rule, also of rules on hardware and on Stepscope itself. If many
            runs have the same alert at once, check what they share: storage, the network, the cooling of a
            room.""",
            lines(f"count by (rule) ({ANY_ALERT})", "{{rule}}"),
            stacked=True,
            at_least=1,
            nothing="no alert fired in the time range, or no rules are loaded: see the verdict",
        ),
        table(
            "The slowest rank of each run",
            """How much longer the slowest rank takes by itself than the median of the other ranks, relative
            to its own time per step. They wait for it that long. Above a few percent, check its node
            (Straggler). Only runs whose communication is timed can be judged.""",
            column("Cluster", "cluster"),
            run_column(),
            column("Node", "instance", least_width=180),
            column("Rank", "rank", width=60),
            column("Excess", rows(slowest), width=80, unit="percentunit", decimals=0),
            width=12,
            sort_by=("Excess", True),
            nothing="no run with several ranks whose communication is timed",
        ),
    ]


def _problems(alerts: str) -> str:
    """Returns the alerts that report a problem: of rules with the same topic, those closest to the cause.

    As in a run's own table (findings.problems), but of many runs at once, so no variable can hold them.
    """
    closest = f"{_ranked(alerts)} <= on (cluster, run, topic) group_left () min by (cluster, run, topic) "
    effects = f'label_replace({LOST}, "topic", "{ANY_TOPIC}", "", "")'
    return f"{closest}({_ranked(ANY_FIRING)}) unless on (cluster, run, topic) {effects}"


def _of_problems(series: str) -> str:
    return f"({series}) and on ({ALERT}) {_problems(FIRING)}"


def _ranked(alerts: str) -> str:
    """Returns the alerts with their topic and distance from the cause."""
    distance = f"on (rule) group_left (topic) max by (rule, topic) ({DISTANCE})"
    return f"0 * {alerts} + {distance}"


def _advice() -> str:
    """Returns one advice by run and rule: the most specific one whose evidence is an alert of the run."""
    others = f'label_replace({ANY_FIRING}, "of", "$1", "rule", "(.+)")'
    known = f"topk by (of) (1, {ADVICE})"
    specific = f"0 * {others} + on (of) group_left (rule, recommendation) {known}"
    own = f"on (rule) group_left (recommendation) topk by (rule) (1, {INFO})"
    texts = f"topk by (cluster, run, rule) (1, {specific} or 0 * {ANY_FIRING} * {own})"
    return f"{texts} and on (cluster, run, rule) ({_problems(OF_ANY_JOB)})"


def _nodes() -> list[Panel]:
    gpu, cpu = of_node(usage.GPU_UTILIZATION), of_node(usage.CPU_UTILIZATION)
    most_idle = f"topk(20, max by (cluster, instance) ({of_node(usage.GPUS_IDLE)} > 0))"
    return [
        section("Nodes"),
        device_heatmap(
            "GPU utilisation of each node",
            """One row per node: the mean of its GPUs over five minutes, from dark (0 %) to bright (100 %).
            Dark rows are nodes without work, or whose work waits. Dark columns across all rows are an
            event that affects all nodes. Choose nodes at the top to see fewer rows.""",
            lines(f"clamp_min(max by (cluster, instance) ({gpu}), 0.01)", "{{instance}} {{cluster}}"),
            height=20,
            names=210,
        ),
        shares(
            "GPU utilisation across nodes",
            """Percentiles of the nodes' GPU utilisation. A low p10: some nodes have nothing to do. All
            lines low: the whole cluster waits for something.""",
            *(
                lines(f"quantile({share}, max by (cluster, instance) ({gpu}))", name)
                for name, share in (("p90", 0.9), ("median", 0.5), ("p10", 0.1))
            ),
            width=8,
            overrides=coloured(("p90", "median", "p10")),
        ),
        shares(
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
            "Nodes with idle GPUs",
            """The 20 nodes with the most GPUs that were idle in the last five minutes. If a run uses them,
            open the run; otherwise they are free for another one.""",
            column("Cluster", "cluster"),
            column("Node", "instance", least_width=200),
            column("Idle GPUs", rows(most_idle), width=90),
            width=8,
            sort_by=("Idle GPUs", True),
            nothing="no GPU is idle, or none is measured: see the verdict",
        ),
    ]


def _energy_and_cost() -> list[Panel]:
    wasted_gpus = f"{wasted_now(OF_RUNS)} * {of_run(usage.RUN_GPUS)}"
    wasted_hours = f"sum by (cluster, run) ({integral(wasted_gpus)})"
    return [
        section("Energy and cost", collapsed=True),
        time_series(
            "GPU power by run",
            """Power of each run's GPUs. Little power for the number of GPUs means little work.""",
            lines(f"sum by (cluster, run) ({of_run(usage.RUN_POWER)})", "{{run}} {{cluster}}"),
            unit="watt",
            stacked=True,
            width=24,
        ),
        bars(
            "Wasted GPU hours by run",
            """GPU hours of the time range in which the run's GPUs were idle, or its steps waited for data or
            other ranks. The runs with the most are shown. Fixing their findings can save them.
            Initialization before the first step counts.""",
            now(f"sort_desc(topk({MOST_BARS}, {wasted_hours}))", "{{run}} {{cluster}}"),
            unit=GPU_HOURS,
        ),
        time_series(
            "Cost per hour",
            """Number of nodes of each run, times the hourly price of a node, which you enter at the top.""",
            lines(priced(f"sum by (cluster, run) ({of_run(UNFINISHED)})"), "{{run}} {{cluster}}"),
            unit="currencyUSD",
            stacked=True,
            nothing=NO_PRICE,
        ),
    ]
