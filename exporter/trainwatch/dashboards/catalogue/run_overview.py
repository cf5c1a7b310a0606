"""Run overview: what is wrong with this run, what to do about it, and what it costs."""

from __future__ import annotations

from trainwatch.dashboards.looks import GREY, SEVERITY, VERMILION, by_name, coloured, steps, words, wrapped
from trainwatch.dashboards.page import Dashboard, of_one_run
from trainwatch.dashboards.panels import Panel, bars, section, shares, stat, table, time_series
from trainwatch.dashboards.queries import OF_NODE, OF_RUN, last, lines, now, per_second, rows, threshold
from trainwatch.dashboards.variables import LONG_FOR_ONE_MOMENT, by_range, price
from trainwatch.prometheus_rules.groups import INFO, STATUS
from trainwatch.prometheus_rules.usage import (
    CPU_UTILIZATION,
    LONG_GPU_MEMORY_SAMPLES,
    LONG_GPU_SAMPLES,
    MEMORY_USED,
)
from trainwatch.rules import all_rules
from trainwatch.rules.promql import Scraping
from trainwatch.training.layout import PHASES

UID = "trainwatch-run"
ALL_PHASES = (*PHASES, "other", "initialization", "finalization")
# The minimum is the lowest non-empty bucket of a histogram; a quantile of 0 would have no value.
QUANTILES = {"max": 1, "p99": 0.99, "p95": 0.95, "p50": 0.5, "min": 1e-6}

START = f"min({last(f'trainwatch_run_start_time_seconds{{{OF_RUN}}}')})"
# The end; while the run is scraped, now; otherwise the last step.
END = f"""(
  max({last(f"trainwatch_run_end_time_seconds{{{OF_RUN}}}")})
    or
  max(0 * trainwatch_samples_total{{{OF_RUN}}} + time())
    or
  max({last(f"trainwatch_run_last_step_time_seconds{{{OF_RUN}}}")})
)"""
STATES = words({"0": ("healthy", GREY), "1": ("found before", "text"), "2": ("found", VERMILION)})
# 1 for each rule that fired at some time, for any node, GPU or rank.
FIRED = f"(max by (rule) (max_over_time({STATUS}{{{OF_RUN}}}[$__range])) == 1)"
DURATION = "trainwatch_step_duration_seconds"
STEPS = f'{DURATION}_count{{{OF_RUN}, phase="train"}}'


def dashboard() -> Dashboard:
    return of_one_run(
        UID,
        "Run overview",
        "What is wrong with a training run, what to do about it, and what it costs. Alerts lead here.",
        [*_verdict(), *_numbers(), *_time(), *_usage()],
        price(),
        by_range(
            "gpu_samples",
            "trainwatch_gpu_utilization_samples_bucket",
            LONG_GPU_SAMPLES,
            LONG_FOR_ONE_MOMENT,
        ),
        by_range(
            "gpu_memory_samples",
            "trainwatch_gpu_memory_samples_bucket",
            LONG_GPU_MEMORY_SAMPLES,
            LONG_FOR_ONE_MOMENT,
        ),
    )


def _verdict() -> list[Panel]:
    status = f"{STATUS}{{{OF_RUN}}}"
    nothing = "vector(0)"
    for label, text in {
        "rule": "No rule fires",
        "recommendation": "Nothing slows this run down.",
        **dict.fromkeys(("kind", "severity", "question"), "–"),
    }.items():
        nothing = f'label_replace({nothing}, "{label}", "{text}", "", "")'
    return [
        table(
            1,
            "What is wrong",
            """Rules that fire, or that fired within the time range; causes before the symptoms that they
            explain. Follow the recommendation of the first row, then check again. Trainwatch / System and
            Trainwatch / Steps show the measurements.""",
            rows(
                f"""
                (max by (rule) ({last(status)}) + {FIRED})
                  * on (rule) group_left (kind, severity, question, recommendation)
                    max by (rule, kind, severity, question, recommendation) ({INFO})
                or on () {nothing}
                """
            ),
            columns={
                "kind": "Kind",
                "rule": "Rule",
                "Value": "State",
                "severity": "Severity",
                "question": "Question",
                "recommendation": "What to do",
            },
            height=8,
            sort_by=("Kind", False),
            overrides=[
                by_name("Kind", custom__width=110),
                by_name("Rule", custom__width=200),
                by_name("State", custom__width=80, mappings=STATES, custom__displayMode="color-text"),
                by_name("Question", custom__width=400),
                wrapped("What to do"),
                by_name(
                    "Severity",
                    custom__width=100,
                    mappings=words({name: (name, colour) for name, colour in SEVERITY.items()}),
                    custom__displayMode="color-text",
                ),
            ],
        ),
        table(
            2,
            "All rules",
            """Every rule and its state. "found before" fired within the time range, but does not fire now.
            "Times triggered" counts the minutes in which the rule fired for any node, GPU or rank, like
            the scans of the report. "Datapoints" are the samples or steps that it judged. An empty "State"
            means not enough data.""",
            rows(f"max by (rule) ({last(status)}) + max by (rule) (max_over_time({status}[$__range]))"),
            rows(f"sum_over_time(max by (rule) ({status})[$__range:1m])"),
            rows(_datapoints()),
            rows(f"max by (rule, kind, severity, parameters, recommendation) ({INFO})"),
            columns={
                "rule": "Rule",
                "Value #A": "State",
                "Value #B": "Times triggered",
                "Value #C": "Datapoints",
                "parameters": "Parameters",
                "recommendation": "What to do if it fires",
            },
            height=19,
            sort_by=("State", True),
            overrides=[
                by_name("Rule", custom__width=200),
                by_name("State", custom__width=80, mappings=STATES, custom__displayMode="color-text"),
                by_name("Times triggered", custom__width=130, decimals=0),
                by_name("Datapoints", custom__width=110, decimals=0, unit="short"),
                by_name("Parameters", custom__width=420),
                wrapped("What to do if it fires"),
            ],
        ),
    ]


def _datapoints() -> str:
    """Returns the samples or steps that each rule judged."""
    rules_of: dict[str, list[str]] = {"trainwatch_samples_total": [], f"{DURATION}_count": []}
    for name, rule in all_rules().items():
        rules = rule().prometheus_rules(Scraping())
        if rules is not None:
            of_steps = "step_duration" in rules.targets
            rules_of[f"{DURATION}_count" if of_steps else "trainwatch_samples_total"].append(name)
    return " or ".join(
        f'max by (rule) ({INFO}{{rule=~"{"|".join(names)}"}}) * on () group_left () '
        f"sum({last(f'{counter}{{{OF_RUN}}}')})"
        for counter, names in rules_of.items()
    )


def _numbers() -> list[Panel]:
    node_hours = f"count(count by (instance) ({last(f'trainwatch_run_start_time_seconds{{{OF_RUN}}}')}))"
    return [
        section(10, "The run"),
        stat(
            11,
            "Findings",
            """Number of rules that fire, or fired within the time range. The table above lists them.""",
            now(f"sum({FIRED}) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            12,
            "Duration",
            """From the start of the first process to the end of the run, or until now. Compare it with the
            time in training steps below: the rest is overhead.""",
            now(f"{END} - {START}"),
            unit="s",
        ),
        stat(
            13,
            "Training steps",
            """Finished steps of the phase train, of the fastest rank. If it does not grow, see
            TrainingStalled.""",
            now(f"max({last(STEPS)})"),
            decimals=0,
        ),
        stat(
            14,
            "Steps per second",
            """Rate of one rank, over the last minutes of the time range. In data-parallel training all ranks
            have the same rate. A drop at equal settings means that something new slows the run down.""",
            now(f"max(sum without (phase) (rate({STEPS}[5m]))) or vector(0)"),
            decimals=2,
        ),
        stat(
            15,
            "Step time",
            """Mean duration of a training step over the whole run. Trainwatch / Steps shows its
            distribution and components.""",
            now(
                f"""
                sum({last(f'{DURATION}_sum{{{OF_RUN}, phase="train"}}')})
                  / sum({last(STEPS)})
                """
            ),
            unit="s",
        ),
        stat(
            16,
            "Cost so far",
            """Nodes x hours x the hourly price of a node, which you enter at the top. With a price of 1 it
            shows node hours. "Time by phase" shows what you get for it.""",
            now(f"{node_hours} * ({END} - {START}) / 3600 * $price"),
            unit="currencyUSD",
            decimals=2,
        ),
    ]


def _time() -> list[Panel]:
    phase_seconds = f"trainwatch_phase_seconds_total{{{OF_RUN}}}"
    rate = f"sum without (phase) ({per_second(f'{DURATION}_count{{{OF_RUN}}}')})"
    return [
        bars(
            21,
            "Time by phase",
            """Seconds of a rank per phase, over the whole run. Only train, eval and predict are useful work.
            GPUs are idle in a long initialization (loading data, compiling), and in "other" (between
            steps: checkpoints, logging).""",
            now(f"avg by (phase) ({last(phase_seconds)})", "{{phase}}"),
            unit="s",
            overrides=coloured(ALL_PHASES),
        ),
        shares(
            22,
            "Share of time by phase",
            """Phases of the ranks over time. 100 % train is best. Periodic gaps of "other" are checkpoints
            or evaluations that are not marked as a phase.""",
            lines(
                f"""
                sum by (phase) (rate({phase_seconds}[$__rate_interval]))
                  / on () group_left () sum(rate({phase_seconds}[$__rate_interval]))
                """,
                "{{phase}}",
            ),
            width=8,
            stacked=True,
            overrides=coloured(ALL_PHASES),
        ),
        time_series(
            23,
            "Throughput",
            """Steps per second of the slowest and the fastest node. Investigate a lasting drop: look for an
            alert's mark where it begins.""",
            lines(f"max(max without (rank) ({rate}))", "fastest node"),
            lines(f"min(min without (rank) ({rate}))", "slowest node"),
            width=8,
            overrides=coloured(("fastest node", "slowest node")),
        ),
    ]


def _usage() -> list[Panel]:
    return [
        section(30, "Utilisation"),
        table(
            31,
            "Utilisation of each node",
            """Percentiles of the 500 ms samples since the run began, over all GPUs or cores of a node.
            (Memory: of one reading per minute in the time range.) A GPU p95 below 70 % is low even at its
            best. A low p50 with a high p95 fluctuates. A CPU max of 100 % with idle GPUs: see
            CPUBottleneck. Values are rounded to 2 points.""",
            *(rows(_percentiles(quantile)) for quantile in QUANTILES.values()),
            columns={
                "instance": "Node",
                "resource": "Resource",
                **{f"Value #{letter}": name for letter, name in zip("ABCDE", QUANTILES, strict=True)},
            },
            unit="percentunit",
            width=14,
            height=10,
            sort_by=("Node", False),
        ),
        shares(
            32,
            "GPU and CPU, mean of all nodes",
            """High CPU and low GPU: data preparation is too slow. Both low: something waits for storage,
            communication or synchronisation with the host, or batches are small.""",
            lines(
                f"""
                sum({per_second(f"trainwatch_gpu_utilization_samples_sum{{{OF_RUN}}}")})
                  / sum({per_second(f"trainwatch_gpu_utilization_samples_count{{{OF_RUN}}}")})
                """,
                "GPU",
            ),
            lines(f"avg({CPU_UTILIZATION}{{{OF_NODE}}})", "CPU"),
            threshold("LowGPUUtilization", "threshold_p95", "below"),
            width=10,
            height=10,
            overrides=coloured(("GPU", "CPU")),
        ),
    ]


def _percentiles(quantile: float) -> str:
    """Returns a percentile of each resource by node, from sample counters and readings of memory."""
    counted = {
        "GPU": "${gpu_samples}",
        "GPU memory": "${gpu_memory_samples}",
        "CPU": "trainwatch_cpu_utilization_samples_bucket",
        "I/O wait": "trainwatch_io_wait_samples_bucket",
    }
    parts = {
        name: f"histogram_quantile({quantile:.6f}, sum by (instance, le) ({last(f'{series}{{{OF_RUN}}}')}))"
        for name, series in counted.items()
    }
    memory = f"{MEMORY_USED}{{{OF_NODE}}}"
    parts["memory"] = f"max by (instance) (quantile_over_time({quantile}, {memory}[$__range]))"
    return " or ".join(
        f'label_replace({expression}, "resource", "{name}", "", "")' for name, expression in parts.items()
    )
