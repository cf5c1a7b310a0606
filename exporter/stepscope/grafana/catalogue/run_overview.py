"""Run overview: what is wrong with this run, what to do about it, and what it costs."""

from stepscope.common.status import Status
from stepscope.evaluation.account import HOST, Key
from stepscope.grafana import findings, verdict
from stepscope.grafana.catalogue import histograms, system
from stepscope.grafana.catalogue import steps as steps_of_run
from stepscope.grafana.looks import GREEN, VERMILION, by_name, coloured, fixed, steps, words, wrapped
from stepscope.grafana.page import Dashboard, of_one_run
from stepscope.grafana.panels import Panel, bars, column, section, shares, stat, table, time_series, unshown
from stepscope.grafana.queries import (
    OF_CLUSTER,
    OF_NODE,
    OF_RUN,
    in_range,
    last,
    lines,
    now,
    or_zero,
    per_second,
    rows,
    threshold,
    wasted,
)
from stepscope.grafana.variables import (
    LONG_FOR_ONE_MOMENT,
    gpu_samples,
    price,
    priced,
    reports,
    slow_component,
    slowest_rank,
)
from stepscope.prometheus.rules.groups import INFO, STATUS
from stepscope.prometheus.rules.meta import ENDED_RUN, raised
from stepscope.prometheus.rules.usage import CPU_UTILIZATION, MEMORY_USED
from stepscope.rules import all_rules
from stepscope.rules.low_gpu_utilization import LowGPUUtilization
from stepscope.rules.parts.promql import Scraping
from stepscope.training.layout import COMPONENTS, FLOPS, PEAK, PHASES

UID = "stepscope-run"
ALL_PHASES = (*PHASES, "other", "initialization", "finalization")
# The minimum is the lowest non-empty bucket of a histogram; a quantile of 0 would have no value.
QUANTILES = {"max": 1, "p99": 0.99, "p95": 0.95, "p50": 0.5, "min": 1e-6}

START = f"min({last(f'stepscope_run_start_time_seconds{{{OF_RUN}}}')})"
# Now, while the run is scraped and has not ended on some node; then its end; otherwise the last step.
END = f"""(
  max(
    0 * stepscope_samples_total{{{OF_RUN}}} + time()
      unless on (cluster, instance) stepscope_run_end_time_seconds{{{OF_RUN}}}
  )
    or
  max({last(f"stepscope_run_end_time_seconds{{{OF_RUN}}}")})
    or
  max({last(f"stepscope_run_last_step_time_seconds{{{OF_RUN}}}")})
)"""
STATES = words(
    {
        "0": (str(Status.HEALTHY), GREEN),
        "1": (f"{Status.FOUND} before", "text"),
        "2": (str(Status.FOUND), VERMILION),
    }
)

ACCOUNT = f"stepscope_account_seconds_total{{{OF_RUN}}}"
PARTS = [Key("train", component).label for component in COMPONENTS]
REST = Key("train", HOST).label
DURATION = "stepscope_step_duration_seconds"
STEPS = f'{DURATION}_count{{{OF_RUN}, phase="train"}}'
JUDGED = f"{STATUS}{{{OF_RUN}}}"

# Labels of stepscope_run_info, with their headings.
LAUNCH = {
    "name": "Name",
    "user": "User",
    "attempt": "Attempt",
    "framework": "Framework",
    "world_size": "Ranks",
    "scheduler": "Scheduler",
    "scheduler_job": "Job",
    "namespace": "Namespace",
}


def dashboard() -> Dashboard:
    return of_one_run(
        UID,
        "Run overview",
        "What is wrong with a training run, what to do about it, and what it costs. Alerts lead here.",
        [
            _verdict(),
            _numbers(),
            _problems(),
            _time(),
            _of_the_script(),
            _usage(),
            _details(),
        ],
        price(),
        reports(),
        findings.problems(),
        slowest_rank(),
        slow_component(),
        findings.busy_cores(),
        *gpu_samples(LONG_FOR_ONE_MOMENT),
    )


def _problems() -> list[Panel]:
    boards = system.dashboard(), histograms.dashboard(), steps_of_run.dashboard()
    return [findings.what_is_wrong(*boards), findings.what_to_do()]


def _verdict() -> list[Panel]:
    ended = last(f"stepscope_run_ended_info{{{OF_RUN}}}")
    of_node = f"on ({ENDED_RUN})"
    exception = raised(f"{{{OF_RUN}}}", "$__range")
    known = f"{ended} * {of_node} group_left (type, place) {exception} or {of_node} {ended}"
    unknown = 'label_replace(vector(0), "reason", "not known to have ended", "", "")'
    return [
        stat(
            "Verdict",
            """The state of the run: found, healthy, not enough data (and what is missing), collecting, or
            failed. It checks that the exporter is scraped, that the run exists, and that rules judged it,
            before it says that nothing was found.""",
            now(verdict.chain(verdict.OF_ONE_RUN)),
            width=10,
            size=26,
            mappings=verdict.mappings(verdict.OF_ONE_RUN),
            nothing="Prometheus does not answer",
        ),
        stat(
            "How it ended",
            """How the run ended. With `stepscope run`, finished, the exit status or the signal that ended
            it, or out of memory; otherwise "ended without saying so". An exception has its type and line.""",
            now(
                f"count by (reason, type, place) ({known}) or on () {unknown}",
                "{{reason}} {{type}} {{place}}",
            ),
            width=6,
            size=22,
            show="name",
        ),
        stat(
            "Findings",
            """Number of problems that were found in the time range. The table below lists them.""",
            now(or_zero(f"count(count by (rule) ({last(findings.FOUND)}))", last(JUDGED))),
            width=4,
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            "Rules that judge it",
            """Number of rules that look at this run. A rule that lacks its series, such as those on GPUs for
            a run without any, does not.""",
            now(f"count(count by (rule) ({last(JUDGED)}))"),
            width=4,
        ),
    ]


def _datapoints() -> str:
    """Returns the samples or steps that each rule judged."""
    rules_of: dict[str, list[str]] = {"stepscope_samples_total": [], f"{DURATION}_count": []}
    for name, rule in all_rules().items():
        rules = rule().prometheus_rules(Scraping())
        if rules is not None:
            of_steps = "step_duration" in f"{rules.targets}"
            rules_of[f"{DURATION}_count" if of_steps else "stepscope_samples_total"].append(name)
    return " or ".join(
        f'max by (rule) ({INFO}{{rule=~"{"|".join(names)}", {OF_CLUSTER}}}) * on () group_left () '
        f"sum({last(f'{counter}{{{OF_RUN}}}')})"
        for counter, names in rules_of.items()
    )


def _numbers() -> list[Panel]:
    node_hours = f"{findings.NODES} * ({END} - {START}) / 3600"
    return [
        stat(
            "Duration",
            """From the start of the first process to the end of the run, or until now. Compare it with the
            time in training steps below: the rest is overhead.""",
            now(f"{END} - {START}"),
            unit="s",
        ),
        stat(
            "Training steps",
            """Finished steps of the phase train, of the fastest rank. If it does not grow, see
            TrainingStalled.""",
            now(f"max({last(STEPS)})"),
            decimals=0,
            nothing="not recorded",
        ),
        stat(
            "Steps per second",
            """Rate of one rank, over the last minutes of the time range. In data-parallel training all ranks
            have the same rate. A drop at equal settings means that something new slows the run down.""",
            now(f"max(sum without (phase) ({per_second(STEPS)}))"),
            decimals=2,
            nothing="not recorded",
        ),
        stat(
            "Step time",
            """Mean duration of a training step in the time range. Stepscope / Steps shows its distribution
            and components.""",
            now(
                f"""
                sum({in_range(f'{DURATION}_sum{{{OF_RUN}, phase="train"}}')})
                  / sum({in_range(STEPS)})
                """
            ),
            unit="s",
            nothing="not recorded",
        ),
        stat(
            "Wasted",
            """Share of the time range in which the GPUs were idle, or in which steps waited for data or for
            other ranks, whichever is larger. At least so much is wasted. Initialization before the first step
            is included: "Time by phase" shows how long it was. It is the mean of five-minute means, so the
            start of a run counts more: about 13 % for a healthy run of ten minutes.""",
            now(f"max({wasted(OF_RUN)})"),
            unit="percentunit",
            decimals=0,
            nothing="not measured",
        ),
        stat(
            "Cost so far",
            """Nodes x hours x the hourly price of a node, which you enter at the top. "Time by phase" shows
            what you get for it.""",
            now(priced(node_hours)),
            unit="currencyUSD",
            decimals=2,
            nothing="enter a price at the top",
        ),
    ]


def _details() -> list[Panel]:
    state = f"max by (rule) ({last(JUDGED)}) + max by (rule) (max_over_time({JUDGED}[$__range]))"
    enough = f"max({last(verdict.SAMPLES)}) >= {verdict.ENOUGH}"
    triggered = f"sum_over_time(max by (rule) ({JUDGED})[$__range:1m])"
    return [
        section("All rules, and how the run was launched", collapsed=True),
        table(
            "All rules",
            """Every rule and its state. "found before" fired within the time range, but does not fire now.
            "Times triggered" counts the minutes in which the rule fired for any node, GPU or rank, like
            the scans of the report. "Datapoints" are the samples or steps that it judged. An empty "State"
            means not enough data.""",
            column("Rule", "rule", width=200),
            column(
                "State",
                rows(f"{state} > 0 or ({state} and on () ({enough}))"),
                width=110,
                mappings=STATES,
                mode="color-text",
            ),
            column("Times triggered", rows(triggered), width=130, decimals=0),
            column("Datapoints", rows(_datapoints()), width=110, decimals=0, unit="locale"),
            unshown(rows(f"topk by (rule) (1, {INFO}{{{OF_CLUSTER}}})")),
            column("Parameters", "parameters", **wrapped(600)),
            column("Question", "question", **wrapped(600)),
            column("What to do if it fires", "recommendation", **wrapped(900)),
            height=24,
            sort_by=("State", True),
        ),
        table(
            "Launch",
            """A run is one launch. Other launches of the same name are other runs. Each restart by its
            launcher is an attempt.""",
            unshown(
                rows(f"max by (cluster, {', '.join(LAUNCH)}) ({last(f'stepscope_run_info{{{OF_RUN}}}')})")
            ),
            *(column(heading, label) for label, heading in LAUNCH.items()),
            height=4,
            sort_by=("Attempt", True),
        ),
    ]


def _time() -> list[Panel]:
    phase_seconds = f"stepscope_phase_seconds_total{{{OF_RUN}}}"
    rate = f"sum without (phase) ({per_second(f'{DURATION}_count{{{OF_RUN}}}')})"
    return [
        bars(
            "Time by phase",
            """Seconds of a rank per phase, over the whole run. Only train, eval and predict are useful work.
            GPUs are idle in a long initialization (loading data, compiling), and in "other" (between
            steps: checkpoints, logging).""",
            now(f"round(avg by (phase) ({last(phase_seconds)}), 0.001)", "{{phase}}"),
            unit="s",
            overrides=coloured(ALL_PHASES),
            width=8,
        ),
        shares(
            "Where did the time go?",
            """Time of the ranks as it passes: before their first step, in each component of each phase, and
            between steps. "host" is in a step, but in no component: your own code. Only forward,
            backward and optimizer compute. A rank that stalls counts where it is.""",
            lines(
                f"""
                sum by (part) (rate({ACCOUNT}[$__rate_interval]))
                  / on () group_left () sum(rate({ACCOUNT}[$__rate_interval]))
                """,
                "{{part}}",
            ),
            width=8,
            stacked=True,
            overrides=[*coloured(PARTS), by_name(REST, color=fixed("text"))],
        ),
        time_series(
            "Throughput",
            """Steps per second of the slowest and the fastest node. Investigate a lasting drop: look for an
            alert's mark where it begins.""",
            lines(f"max(max without (rank) ({rate}))", "fastest node"),
            lines(f"min(min without (rank) ({rate}))", "slowest node"),
            width=8,
            overrides=coloured(("fastest node", "slowest node")),
        ),
    ]


def _of_the_script() -> list[Panel]:
    counted = "stepscope_run_counted_total"
    others = per_second(f'{counted}{{{OF_RUN}, name!="{FLOPS}"}}')
    flops = per_second(f'{counted}{{{OF_RUN}, name="{FLOPS}"}}')
    peak = f'stepscope_run_gauge{{{OF_RUN}, name="{PEAK}"}}'
    return [
        section("Numbers of the training script", collapsed=True),
        time_series(
            "Counted per second, all ranks",
            """What the script counts with `stepscope.count`, such as tokens and samples. Unlike steps per
            second, it can be compared between batch sizes.""",
            lines(f"sum by (name) ({others})", "{{name}}"),
            width=8,
            nothing="the script counts nothing",
        ),
        shares(
            "Model FLOPs utilisation (MFU)",
            """Operations that the script counts as `flops`, of those that its GPUs can do according to its
            gauge `peak_flops`. If it counts none, a profile window does. Utilisation counts a kernel that
            waits as busy: MFU does not.""",
            lines(f"sum({flops}) / sum({peak})", "MFU"),
            width=8,
            nothing="the script gives no peak_flops, or no flops, and had no profile window",
        ),
        time_series(
            "Gauges of rank 0",
            """What the script or its framework publishes with `stepscope.gauge`, such as its loss.""",
            lines(f'max by (name) (stepscope_run_gauge{{{OF_RUN}, rank="0", name!="{PEAK}"}})', "{{name}}"),
            width=8,
            lowest=None,
            nothing="the script publishes none",
        ),
    ]


def _usage() -> list[Panel]:
    return [
        section("Utilisation"),
        table(
            "Utilisation of each node",
            """Percentiles of the 500 ms samples of the time range, over all GPUs or cores of a node.
            (Memory: of one reading every two minutes.) A GPU p95 below 70 % is low even at its
            best. A low p50 with a high p95 fluctuates. A CPU max of 100 % with idle GPUs: see
            CPUBottleneck. Values are rounded to 2 points.""",
            column("Node", "instance", least_width=220),
            column("Resource", "resource", width=125),
            *(
                column(name, rows(_percentiles(share)), width=70, decimals=0, unit="percentunit")
                for name, share in QUANTILES.items()
            ),
            width=14,
            height=10,
            sort_by=("Node", False),
        ),
        shares(
            "GPU and CPU, mean of all nodes",
            """High CPU and low GPU: data preparation is too slow. Both low: something waits for storage,
            communication or synchronisation with the host, or batches are small.""",
            lines(
                f"""
                sum({per_second(f"stepscope_gpu_utilization_samples_sum{{{OF_RUN}}}")})
                  / sum({per_second(f"stepscope_gpu_utilization_samples_count{{{OF_RUN}}}")})
                """,
                "GPU",
            ),
            lines(f"avg({CPU_UTILIZATION}{{{OF_NODE}}})", "CPU"),
            threshold(
                LowGPUUtilization,
                "threshold_p95",
                f"stepscope_gpu_utilization_samples_count{{{OF_RUN}}}",
                "below",
            ),
            width=10,
            height=10,
            overrides=coloured(("GPU", "CPU")),
        ),
        time_series(
            "Cores in use, all nodes",
            """Cores that the run's processes may use, how many of them the run keeps busy, and how many
            everything else does. If the run is at its CPU limit, see CPUThrottled. If others fill the
            cores, see NoisyNeighbour.""",
            lines(f"sum({per_second(f'stepscope_run_cpu_seconds_total{{{OF_RUN}}}')})", "the run"),
            lines(f"sum({per_second(f'stepscope_run_other_cpu_seconds_total{{{OF_RUN}}}')})", "others"),
            lines(f"sum(stepscope_run_cpu_limit_cores{{{OF_RUN}}})", "CPU limit"),
            lines(f"sum(stepscope_run_cpus{{{OF_RUN}}})", "cores that it may use"),
            width=12,
            overrides=coloured(("the run", "others", "CPU limit", "cores that it may use")),
        ),
        time_series(
            "Neighbours on the run's cores, all nodes",
            """Cores that other processes use, by user, once they use many of the run's. Ask the user with
            the highest line to move, or give the run cores of its own.""",
            lines(
                f"sum by (user) ({per_second(f'stepscope_run_neighbour_cpu_seconds_total{{{OF_RUN}}}')})",
                "{{user}}",
            ),
            width=12,
            nothing="no other process uses more than 5 % of the run's cores, or they are not measured",
        ),
    ]


def _percentiles(quantile: float) -> str:
    """Returns a percentile of each resource by node, from sample counters and readings of memory."""
    counted = {
        "GPU": "${gpu_samples}",
        "GPU memory": "${gpu_memory_samples}",
        "CPU": "stepscope_cpu_utilization_samples_bucket",
        "I/O wait": "stepscope_io_wait_samples_bucket",
    }
    samples = " or ".join(
        f'label_replace({in_range(f"{series}{{{OF_RUN}}}")}, "resource", "{name}", "", "")'
        for name, series in counted.items()
    )
    memory = (
        f"max by (cluster, instance) (quantile_over_time({quantile}, {MEMORY_USED}{{{OF_NODE}}}[$__range]))"
    )
    return (
        f"histogram_quantile({quantile:.6f}, sum by (cluster, instance, resource, le) ({samples}))"
        f' or label_replace({memory}, "resource", "memory", "", "")'
    )
