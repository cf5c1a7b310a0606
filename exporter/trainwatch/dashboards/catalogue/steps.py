"""Steps: their duration, outliers and components, and which rank the others wait for."""

from __future__ import annotations

from trainwatch.dashboards import variables
from trainwatch.dashboards.looks import coloured, numbered
from trainwatch.dashboards.page import Dashboard, of_one_run
from trainwatch.dashboards.panels import (
    COLUMNS,
    Panel,
    bar_chart,
    bars,
    histogram_heatmap,
    section,
    shares,
    stat,
    time_series,
)
from trainwatch.dashboards.queries import (
    OF_RANK,
    OF_RANK_IF_KNOWN,
    OF_RUN,
    buckets,
    gained,
    last,
    lines,
    now,
    parameter,
    per_second,
    rows,
    threshold,
)
from trainwatch.prometheus_rules.usage import LONG_STEPS
from trainwatch.runs.model import COMPONENTS
from trainwatch.training.layout import STEP_BOUNDS

UID = "trainwatch-steps"
RANK = "rank {{rank}} ({{instance}})"
TRAIN = 'phase="train"'
WORKERS_PER_CORE = "run_instance:trainwatch_dataloader_workers_per_core:ratio"
STEPS = "trainwatch_step_duration_seconds"
SELF_TIME = f"run_instance_rank:trainwatch_step_self_time:mean_seconds{{{OF_RANK}}}"


def dashboard() -> Dashboard:
    return of_one_run(
        UID,
        "Steps",
        "Duration, outliers and components of training steps, and which rank the others wait for.",
        [*_durations(), *_outliers(), *_parts(), *_data(), *_ranks()],
        variables.rank(),
        variables.by_range("step_bucket", f"{STEPS}_bucket", LONG_STEPS),
    )


def _durations() -> list[Panel]:
    bucket = f"${{step_bucket}}{{{OF_RANK_IF_KNOWN}, {TRAIN}}}"
    by_le = f"sum by (le) ({per_second(bucket)})"
    of_rank = f"{{{OF_RANK}, {TRAIN}}}"
    return [
        histogram_heatmap(
            1,
            "Duration of training steps",
            """Each column is a histogram of the steps that ended at that time. One narrow band is good. A
            second band above it, or single cells far above, are outliers. Hover over the marks of
            exemplars to see the step's number, then check what the script does there (a checkpoint, an
            evaluation, garbage collection). Ranges over four days do not distinguish ranks.""",
            buckets(f"sum by (le) ({gained(bucket)})", exemplars=True),
            unit="s",
        ),
        time_series(
            2,
            "Step time",
            """Exact mean, and percentiles from the histogram (four buckets per power of ten). "limit" is
            mean + StepOutlier.stddev standard deviations, since the run began. A p99 far above the p95
            means that some steps take far longer.""",
            lines(
                f"""
                sum({per_second(f"{STEPS}_sum{of_rank}")}) / sum({per_second(f"{STEPS}_count{of_rank}")})
                """,
                "mean",
            ),
            *(
                lines(f"histogram_quantile({quantile}, {by_le})", name, exemplars=name == "max")
                for name, quantile in {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1}.items()
            ),
            lines(
                f"max(run_instance_rank_phase:trainwatch_step_outlier_limit:seconds{of_rank})",
                "fires above limit (mean + StepOutlier.stddev standard deviations)",
            ),
            unit="s",
            height=9,
            points=COLUMNS,
            overrides=coloured(("mean", "p50", "p95", "p99", "max")),
        ),
        bar_chart(
            3,
            "Durations by node",
            """Number of training steps by duration, per node, over the whole run. All nodes should have the
            same distribution; bars far to the right are outliers.""",
            rows(_by_node()),
            across="le",
            colour="instance",
            across_unit="s",
            unit="short",
        ),
        time_series(
            4,
            "Time since the last step",
            """Seconds since any rank of a node finished a step. A saw-tooth near zero is normal training. A
            rising line means that the run has stalled although its processes are alive (TrainingStalled):
            `py-spy dump` shows where they wait.""",
            lines(f"run_instance:trainwatch_time_since_last_step:seconds{{{OF_RUN}}}", "{{instance}}"),
            lines(
                f"""
                clamp_min(
                  max(run_instance:trainwatch_time_between_steps:mean_seconds{{{OF_RUN}}})
                    * on () max({parameter("TrainingStalled", "factor")}),
                  60 * scalar(max({parameter("TrainingStalled", "minimum")}))
                )
                """,
                "fires above (TrainingStalled.factor times the usual time between steps)",
            ),
            unit="s",
            height=9,
        ),
    ]


def _by_node() -> str:
    """Returns the counts between two bounds; those in Prometheus are cumulative."""
    series = f"${{step_bucket}}{{{OF_RANK_IF_KNOWN}, {TRAIN}"
    counts = []
    for lower, upper in zip((None, *STEP_BOUNDS), STEP_BOUNDS, strict=False):
        at_most = f"sum by (instance) ({last(f'{series}, {_at(upper)}}}')})"
        less = f" - sum by (instance) ({last(f'{series}, {_at(lower)}}}')})" if lower is not None else ""
        counts.append(f'label_replace({at_most}{less} > 0, "le", "{upper:g}", "", "")')
    return " or ".join(counts)


def _at(bound: float) -> str:
    return f'le=~"{bound:g}|{bound:.1f}"' if bound == int(bound) else f'le="{bound:g}"'


def _outliers() -> list[Panel]:
    outliers = f"run_instance_rank_phase:trainwatch_step_outliers:count{{{OF_RANK}, {TRAIN}}}"
    return [
        section(10, "Outliers"),
        time_series(
            11,
            "Outliers of each rank",
            """Steps since the run began that took longer than the limit. StepOutlier fires above the dashed
            line. Stairs of equal width are periodic work: a checkpoint, an evaluation, logging.""",
            lines(outliers, RANK),
            threshold("StepOutlier", "n_outliers", percent=False),
            overrides=numbered("rank"),
        ),
        time_series(
            12,
            "Steps per second",
            """Rate of each rank, all phases. In data-parallel training all ranks have the same rate; look
            for drops.""",
            lines(f"sum without (phase) ({per_second(f'{STEPS}_count{{{OF_RANK}}}')})", RANK),
            overrides=numbered("rank"),
        ),
    ]


def _parts() -> list[Panel]:
    seconds = per_second(f"trainwatch_step_component_seconds_total{{{OF_RANK}}}")
    steps = per_second(f"{STEPS}_count{{{OF_RANK}}}")
    return [
        section(20, "Components of a step"),
        time_series(
            21,
            "Step time by component",
            """Mean host time of each component, over the chosen ranks. Much data_wait: data comes too late
            (DataStarved). Much communication: ranks exchange too much, or wait for a straggler. GPU work
            is asynchronous: its time appears where the host waits for it.""",
            lines(f"sum by (component) ({seconds}) / on () group_left () sum({steps})", "{{component}}"),
            unit="s",
            stacked=True,
            overrides=coloured(COMPONENTS),
        ),
        bars(
            22,
            "Share of step time by component",
            """The same over the whole run, as a share of all time in steps. Forward, backward and
            optimizer are useful work; the rest is overhead.""",
            now(
                f"""
                sum by (component) ({last(f"trainwatch_step_component_seconds_total{{{OF_RANK}}}")})
                  / on () group_left () sum({last(f"{STEPS}_sum{{{OF_RANK}}}")})
                """,
                "{{component}}",
            ),
            unit="percentunit",
            width=12,
            highest=1,
            overrides=coloured(COMPONENTS),
        ),
    ]


def _data() -> list[Panel]:
    wait, fetch = (
        f"sum by (le) ({per_second(f'trainwatch_dataloader_{what}_seconds_bucket{{{OF_RANK}}}')})"
        for what in ("wait", "fetch")
    )
    return [
        section(30, "Data"),
        time_series(
            31,
            "Waiting for a batch",
            """How long the training loop waits for its next batch, and how long a worker takes to fetch
            one. Waits of milliseconds are good. If a fetch takes longer than a step times the number of
            workers, use more workers or a cheaper transform.""",
            lines(f"histogram_quantile(0.5, {wait})", "wait p50"),
            lines(f"histogram_quantile(0.95, {wait})", "wait p95"),
            lines(f"histogram_quantile(0.5, {fetch})", "fetch p50"),
            unit="s",
            logarithmic=True,
            lowest=None,
            overrides=coloured(("wait p50", "wait p95", "fetch p50")),
        ),
        shares(
            32,
            "Share of step time that waits for data",
            """Share of each rank since the run began. DataStarved fires above the dashed line; Trainwatch /
            Run overview shows its recommendation.""",
            lines(f"run_instance_rank:trainwatch_data_wait:ratio{{{OF_RANK}}}", RANK),
            threshold("DataStarved", "threshold"),
            overrides=numbered("rank"),
        ),
        stat(
            33,
            "Loader workers per node",
            """Workers of the training loaders of all ranks of a node. It should be about the number of
            cores, which the rule Dataloader checks.""",
            now(
                f"sum by (instance) ({last(f'trainwatch_dataloader_workers{{{OF_RUN}, {TRAIN}}}')})",
                "{{instance}}",
            ),
            width=12,
            show_names=True,
        ),
        stat(
            34,
            "Workers per core",
            """The same as a share of the cores. Below 70 %, idle cores could prepare data. Above 200 %,
            workers compete for cores.""",
            now(f"max by (instance) ({last(f'{WORKERS_PER_CORE}{{{OF_RUN}}}')})", "{{instance}}"),
            unit="percentunit",
            width=12,
            show_names=True,
        ),
    ]


def _ranks() -> list[Panel]:
    communication = f"run_instance_rank:trainwatch_communication:ratio{{{OF_RANK}}}"
    return [
        section(40, "Ranks compared"),
        time_series(
            41,
            "Step time of each rank by itself",
            """Step time without communication, in which fast ranks wait for slow ones; mean of the last 5
            minutes. The steps of all ranks end together, so only this shows which rank is slow. The
            highest line is the straggler (Straggler): check its machine and its share of the data.""",
            lines(SELF_TIME, RANK),
            unit="s",
            overrides=numbered("rank"),
        ),
        shares(
            42,
            "Share of step time in communication",
            """Share of each rank since the run began. It counts communication that does not overlap with
            computing. High on all ranks: exchange less or faster (CommunicationBound, the dashed line).
            High on all but one: they wait for that one.""",
            lines(communication, RANK),
            threshold("CommunicationBound", "threshold"),
            overrides=numbered("rank"),
        ),
        stat(
            43,
            "Slowest rank",
            """The rank with the longest step time by itself, and that time. The next panel compares it with
            the other ranks.""",
            now(f"topk(1, max by (rank, instance) ({last(SELF_TIME)}))", RANK),
            unit="s",
            width=6,
            height=8,
            show_names=True,
        ),
        stat(
            44,
            "Peers relative to slowest",
            """Compute time per step of the other ranks, relative to the slowest rank. 100 %: all ranks are
            equally fast. Below Straggler's threshold (75 % by default) a rank delays the others.""",
            # Not a number with a single rank.
            now(f"min({last(f'run_instance_rank:trainwatch_peers_self_time:ratio{{{OF_RANK}}}')} >= 0)"),
            unit="percentunit",
            width=6,
            height=8,
            nothing="one rank has no peers",
        ),
        bars(
            45,
            "Mean step time of each rank by itself",
            "Step time without communication at the end of the time range. Bars should be equally long.",
            now(f"sort_desc(max by (rank, instance) ({last(SELF_TIME)}))", RANK),
            unit="s",
            width=12,
        ),
    ]
