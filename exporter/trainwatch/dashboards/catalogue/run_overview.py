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
# The lowest bound of a histogram with samples above it: for a quantile of 0 there is none.
QUANTILES = {"max": 1, "p99": 0.99, "p95": 0.95, "p50": 0.5, "min": 1e-6}

START = f"min({last(f'trainwatch_run_start_time_seconds{{{OF_RUN}}}')})"
# The end; or now, while it is scraped; or the last step that was seen.
END = f"""(
  max({last(f"trainwatch_run_end_time_seconds{{{OF_RUN}}}")})
    or
  max(0 * trainwatch_samples_total{{{OF_RUN}}} + time())
    or
  max({last(f"trainwatch_run_last_step_time_seconds{{{OF_RUN}}}")})
)"""
STATES = words({"0": ("healthy", GREY), "1": ("found before", "text"), "2": ("found", VERMILION)})
# 1 for each rule that held at some time, for some node, GPU or rank.
FIRED = f"(max by (rule) (max_over_time({STATUS}{{{OF_RUN}}}[$__range])) == 1)"
STEPS = f'trainwatch_step_duration_seconds_count{{{OF_RUN}, phase="train"}}'


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
        "recommendation": "Nothing was found that slows this run down.",
        **dict.fromkeys(("kind", "severity", "question"), "–"),
    }.items():
        nothing = f'label_replace({nothing}, "{label}", "{text}", "", "")'
    return [
        table(
            1,
            "What is wrong",
            """Rules that fire, or that fired within the time range; causes before the symptoms that they
            explain. Read it from the top: do what the first line recommends, then look again. Trainwatch
            / System and Trainwatch / Steps show what it was seen from.""",
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
            """Every rule, and what it said within the time range. "found before" held at some time but
            does not hold now. "Times triggered" counts the minutes at which the condition held for some
            node, GPU or rank, as the scans of a profiler report do; "Datapoints" are the samples or steps
            that it was judged by. Nothing in "State" means not enough data.""",
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
                "recommendation": "What to do where it fires",
            },
            height=19,
            sort_by=("State", True),
            overrides=[
                by_name("Rule", custom__width=200),
                by_name("State", custom__width=80, mappings=STATES, custom__displayMode="color-text"),
                by_name("Times triggered", custom__width=130, decimals=0),
                by_name("Datapoints", custom__width=110, decimals=0, unit="short"),
                by_name("Parameters", custom__width=420),
                wrapped("What to do where it fires"),
            ],
        ),
    ]


def _datapoints() -> str:
    """By rule: the snapshots, or the steps, that it was judged by."""
    of_steps: list[str] = []
    of_snapshots: list[str] = []
    for name, heuristic in all_rules().items():
        rules = heuristic().prometheus_rules(Scraping())
        if rules is not None:
            (of_steps if "step_duration" in rules.targets else of_snapshots).append(name)
    steps_seen = f"sum({last(f'trainwatch_step_duration_seconds_count{{{OF_RUN}}}')})"
    snapshots_seen = f"sum({last(f'trainwatch_samples_total{{{OF_RUN}}}')})"
    return " or ".join(
        f'max by (rule) ({INFO}{{rule=~"{"|".join(names)}"}}) * on () group_left () {seen}'
        for names, seen in ((of_snapshots, snapshots_seen), (of_steps, steps_seen))
    )


def _numbers() -> list[Panel]:
    node_hours = f"count(count by (instance) ({last(f'trainwatch_run_start_time_seconds{{{OF_RUN}}}')}))"
    return [
        section(10, "The run"),
        stat(
            11,
            "Findings",
            """How many rules fire, or fired within the time range; the table above names them. 0 is what
            you want.""",
            now(f"sum({FIRED}) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            12,
            "Duration",
            """From the start of the first process to the end of the run; to now while it runs. Compare it
            with the time in training steps below: the rest is overhead.""",
            now(f"{END} - {START}"),
            unit="s",
        ),
        stat(
            13,
            "Training steps",
            """Steps of the phase train that the furthest rank has finished. If it stands still, see
            TrainingStalled.""",
            now(f"max({last(STEPS)})"),
            decimals=0,
        ),
        stat(
            14,
            "Steps a second",
            """Over the last minutes of the time range, of one rank; all ranks make the same steps in
            data-parallel training. A fall at equal settings means that something new holds the run up.""",
            now(f"max(sum without (phase) (rate({STEPS}[5m]))) or vector(0)"),
            decimals=2,
        ),
        stat(
            15,
            "Step time",
            """The mean duration of a training step over the whole run. Trainwatch / Steps has its
            distribution, and what it is spent on.""",
            now(
                f"""
                sum({last(f'trainwatch_step_duration_seconds_sum{{{OF_RUN}, phase="train"}}')})
                  / sum({last(STEPS)})
                """
            ),
            unit="s",
        ),
        stat(
            16,
            "Cost so far",
            """Nodes x hours x the price of a node for an hour, which you enter above; with a price of 1
            it shows the hours of nodes. What it buys is in "Where the time went".""",
            now(f"{node_hours} * ({END} - {START}) / 3600 * $price"),
            unit="currencyUSD",
            decimals=2,
        ),
    ]


def _time() -> list[Panel]:
    phase_seconds = f"trainwatch_phase_seconds_total{{{OF_RUN}}}"
    rate = f"sum without (phase) (rate(trainwatch_step_duration_seconds_count{{{OF_RUN}}}[$__rate_interval]))"
    return [
        bars(
            21,
            "Where the time went",
            """Seconds of a rank by phase, over the whole run. Only train, eval and predict do what the
            run is for. A long initialization (loading data, compiling) or much "other" (between the
            steps: checkpoints, logging) is time in which GPUs are paid for and idle.""",
            now(f"avg by (phase) ({last(phase_seconds)})", "{{phase}}"),
            unit="s",
            overrides=coloured(ALL_PHASES),
        ),
        shares(
            22,
            "Share of time by phase",
            """What ranks did at each moment. 100 % train is best; gaps of "other" that come again and
            again are checkpoints or evaluations that are not marked as a phase.""",
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
            """Steps a second, the slowest and the fastest node. A step down that stays is worth an
            explanation: look for a mark of an alert at its beginning.""",
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
            """Percentiles of the 500 ms samples since the run began (memory: of readings each minute, in
            the time range), over all GPUs or cores of a node. A GPU p95 below 70 % means that even busy
            moments are low; a low p50 with a high p95 means fits and starts; a CPU max of 100 % beside
            idle GPUs: see CPUBottleneck. Bounds of the counters are 2 points apart.""",
            *(rows(_percentiles(quantile)) for quantile in QUANTILES.values()),
            columns={
                "instance": "Node",
                "what": "Of",
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
            """Where GPUs are low while CPUs are high, data is prepared too slowly; where both are low,
            look for waiting: storage, communication, synchronisation with the host, small batches.""",
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
    """By node: a percentile of what the sample counters counted, and of the readings of memory."""
    counted = {
        "GPU": "${gpu_samples}",
        "GPU memory": "${gpu_memory_samples}",
        "CPU": "trainwatch_cpu_utilization_samples_bucket",
        "I/O wait": "trainwatch_io_wait_samples_bucket",
    }
    parts = {
        what: f"histogram_quantile({quantile:.6f}, sum by (instance, le) ({last(f'{series}{{{OF_RUN}}}')}))"
        for what, series in counted.items()
    }
    memory = f"{MEMORY_USED}{{{OF_NODE}}}"
    parts["memory"] = f"max by (instance) (quantile_over_time({quantile}, {memory}[$__range]))"
    return " or ".join(
        f'label_replace({expression}, "what", "{what}", "", "")' for what, expression in parts.items()
    )
