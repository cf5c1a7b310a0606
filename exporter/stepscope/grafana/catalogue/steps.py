"""Steps: their duration, outliers and components, and which rank the others wait for."""

from stepscope.grafana import variables
from stepscope.grafana.looks import by_pattern, coloured, dashed, dotted, numbered, words
from stepscope.grafana.page import Dashboard, of_one_run
from stepscope.grafana.panels import (
    COLUMNS,
    EMPTY_CELL,
    Panel,
    bars,
    column,
    histogram_heatmap,
    section,
    shares,
    stat,
    table,
    time_series,
)
from stepscope.grafana.queries import (
    OF_NODE,
    OF_RANK,
    OF_RANK_IF_KNOWN,
    OF_RUN,
    buckets,
    in_range,
    last,
    lines,
    now,
    parameter,
    per_second,
    rows,
    share_of_column,
    threshold,
)
from stepscope.grafana.variables import Variable
from stepscope.prometheus.rules.usage import LONG_STEPS
from stepscope.rules import straggler
from stepscope.rules.communication_bound import CommunicationBound
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.step_outlier import BOUNDS, COUNT, LIMIT, LOST, MEAN, OUTLIERS, StepOutlier
from stepscope.rules.training_stalled import TrainingStalled
from stepscope.runs.model import COMPONENTS

UID = "stepscope-steps"
RANK = "rank {{rank}}"
RANK_AND_NODE = "rank {{rank}} ({{instance}})"
TRAIN = 'phase="train"'
WORKERS_PER_CORE = "run_instance:stepscope_dataloader_workers_per_core:ratio"
STEPS = "stepscope_step_duration_seconds"
BUCKETS = "${step_bucket}"
OF_BUCKETS = f"{OF_RANK_IF_KNOWN}, {TRAIN}"
BY_NODE = "max by (cluster, instance)"
OWN_TIME = f"{straggler.OWN}{{{OF_RANK}}}"
COMPONENT = "{{component}}"


def dashboard() -> Dashboard:
    return of_one_run(
        UID,
        "Steps",
        "Duration, outliers and components of training steps, and which rank the others wait for.",
        [_durations(), _ranks(), _outliers(), _parts(), _data()],
        variables.slowest_rank(),
        variables.by_range("step_bucket", f"{STEPS}_bucket", LONG_STEPS),
        _bounds_in_use(),
        shown=["rank"],
    )


def _bounds_in_use() -> Variable:
    """Returns the bounds from the shortest step to the longest one, and one more below."""
    counts = f"sum by (le) ({in_range(f'{BUCKETS}{{{OF_BUCKETS}}}')})"
    bound = f"max by (le) ({last(f'{BOUNDS}{{{OF_NODE}}}')})"
    # Rounding makes the last bucket in use as full as those above it, or nearly so.
    longest = f"scalar(histogram_quantile({1 - 1e-9:.9f}, {counts}))"
    shortest = f"scalar(min({bound} and on (le) {counts} > 0))"
    # Bounds are 1.75 to 2 times as high as the next lower one.
    shown = f"({bound} < 1.5 * {longest}) > 0.4 * {shortest}"
    return variables.hidden(variables.named("step_bounds", "Bounds of steps", shown, "le", several=True))


def _durations() -> list[Panel]:
    by_le = f"sum by (le) ({per_second(f'{BUCKETS}{{{OF_BUCKETS}}}')})"
    of_rank = f"{{{OF_RANK}, {TRAIN}}}"
    return [
        histogram_heatmap(
            "Duration of training steps",
            """Each column is a histogram of the steps that ended at that time. One narrow band is good. A
            second band above it, or single cells far above, are outliers. Hover over the marks of
            exemplars to see the step's number, then check what the script does there (a checkpoint, an
            evaluation, garbage collection). The axis has the buckets with steps of the time range. Ranges
            over four days do not distinguish ranks.""",
            buckets(share_of_column(BUCKETS, OF_BUCKETS, 'le=~"$step_bounds"'), exemplars=True),
            unit="s",
        ),
        time_series(
            "Step time",
            """Exact mean, and percentiles from the histogram (four buckets per power of ten). "limit" is
            mean + StepOutlier.stddev standard deviations, in the last minutes. A p99 far above the p95
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
                f"max({LIMIT}{of_rank})",
                "fires above limit (mean + StepOutlier.stddev standard deviations)",
            ),
            unit="s",
            height=9,
            points=COLUMNS,
            overrides=coloured(("mean", "p50", "p95", "p99", "max")),
        ),
        table(
            "Long steps of each node",
            """Training steps above the limit (mean + StepOutlier.stddev standard deviations), and the least
            share of the step time that they cost beyond the mean. They are those of the node's worst rank,
            and means of the time range. If one node loses more than the others, look for the cause there.""",
            column("Cluster", "cluster"),
            column("Node", "instance", least_width=180),
            column("Mean", rows(f"{BY_NODE} ({_mean_of(MEAN)})")),
            column("Limit", rows(f"{BY_NODE} ({_mean_of(LIMIT)})")),
            column("Long steps", rows(f"{BY_NODE} ({_mean_of(OUTLIERS)} / {_mean_of(COUNT)})")),
            column("Time lost", rows(f"{BY_NODE} ({_mean_of(LOST)})")),
            width=12,
            height=9,
            sort_by=("Time lost", True),
            overrides=[
                by_pattern("^(Mean|Limit)$", width=80, unit="s"),
                by_pattern("^(Long steps|Time lost)$", width=100, unit="percentunit", decimals=1),
            ],
        ),
        time_series(
            "Time since the last step",
            """Seconds since any rank of a node finished a step, on the node where it is longest ago. A
            saw-tooth near zero is normal training. A rising line means that the run has stalled although
            its processes are alive (TrainingStalled): `py-spy dump` shows where they wait.""",
            lines(f"max(stepscope_run_last_step_age_seconds{{{OF_RUN}}})", "longest of all nodes"),
            lines(
                f"""
                clamp_min(
                  max(run_instance:stepscope_time_between_steps:mean_seconds{{{OF_RUN}}})
                    * on () max({parameter(TrainingStalled, "factor")}),
                  60 * scalar(max({parameter(TrainingStalled, "minimum")}))
                )
                """,
                "fires above (TrainingStalled.factor times the usual time between steps)",
            ),
            unit="s",
            height=9,
        ),
    ]


def _mean_of(recorded: str) -> str:
    """Returns the mean of a recorded series in the time range, from one value per point of a chart."""
    return f"avg_over_time({recorded}{{{OF_RANK}, {TRAIN}}}[$__range:$__interval])"


def _outliers() -> list[Panel]:
    lost = f"{LOST}{{{OF_RANK}, {TRAIN}}}"
    return [
        section("Outliers"),
        time_series(
            "Time lost to outliers",
            """The least share of a rank's step time that steps above the limit cost beyond the mean, in the
            last StepOutlier.live_window minutes. StepOutlier fires above the dashed line.""",
            lines(lost, RANK),
            threshold(StepOutlier, "time_lost", lost),
            unit="percentunit",
            width=24,
            overrides=numbered("rank"),
        ),
    ]


def _parts() -> list[Panel]:
    seconds = per_second(f"stepscope_step_component_seconds_total{{{OF_RANK}}}")
    steps = per_second(f"{STEPS}_count{{{OF_RANK}}}")
    operators = last(f"stepscope_operator_seconds_total{{{OF_RANK}}}")
    by_device = f"on (device) group_left () sum by (device) ({operators})"
    share = f"sum by (device, operator) ({operators})\n  / {by_device}"
    return [
        section("Components of a step", collapsed=True),
        time_series(
            "Step time by component",
            """Mean host time of each component, over the chosen ranks. Much data_wait: data comes too late
            (DataStarved). Much communication: ranks exchange too much, or wait for a straggler. GPU work
            is asynchronous: its time appears where the host waits for it.""",
            lines(f"sum by (component) ({seconds}) / on () group_left () sum({steps})", "{{component}}"),
            unit="s",
            stacked=True,
            many=False,
            overrides=coloured(COMPONENTS),
        ),
        bars(
            "Share of step time by component",
            """The same over the time range, as a share of all time in steps. Forward, backward and
            optimizer are useful work; the rest is overhead.""",
            now(
                f"""
                sum by (component) ({in_range(f"stepscope_step_component_seconds_total{{{OF_RANK}}}")})
                  / on () group_left () sum({in_range(f"{STEPS}_sum{{{OF_RANK}}}")})
                """,
                "{{component}}",
            ),
            unit="percentunit",
            highest=1,
            overrides=coloured(COMPONENTS),
        ),
        table(
            "Operators",
            """Time of operators on CPU and GPU in all profile windows so far, without what they called: the
            mean of the chosen ranks, the longest, and the share of all on such devices. `stepscope profile
            $run` on a node takes a window. If a rank takes much longer than the mean, look at its input.""",
            column("Operator", "operator", least_width=300),
            column("Device", "device"),
            column("Mean", rows(f"avg by (device, operator) ({operators})")),
            column("Longest", rows(f"max by (device, operator) ({operators})")),
            column("Share", rows(share), width=100, unit="percentunit", decimals=1),
            width=24,
            sort_by=("Share", True),
            nothing="no profile window",
            overrides=[by_pattern("^(Mean|Longest)$", width=100, unit="s")],
        ),
    ]


def _data() -> list[Panel]:
    wait, fetch = (
        f"sum by (le) ({per_second(f'stepscope_dataloader_{what}_seconds_bucket{{{OF_RANK}}}')})"
        for what in ("wait", "fetch")
    )
    waiting = f"run_instance_rank:stepscope_data_wait:ratio{{{OF_RANK}}}"
    return [
        section("Data", collapsed=True),
        time_series(
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
            "Share of step time that waits for data",
            """Share of each rank in the last 15 minutes (`live_window`). DataStarved fires above the dashed
            line; Stepscope / Run overview shows its recommendation.""",
            lines(waiting, RANK),
            threshold(DataStarved, "threshold", waiting),
            overrides=numbered("rank"),
        ),
        stat(
            "Loader workers per node",
            """Workers of the training loaders of all ranks of a node. It should be about the number of
            cores, which the rule Dataloader checks.""",
            now(
                f"sum by (cluster, instance) ({last(f'stepscope_dataloader_workers{{{OF_RUN}, {TRAIN}}}')})",
                "{{instance}}",
            ),
            width=12,
            show="value_and_name",
        ),
        stat(
            "Workers per core",
            """The same as a share of the cores. Below 70 %, idle cores could prepare data. Above 200 %,
            workers compete for cores.""",
            now(f"max by (cluster, instance) ({last(f'{WORKERS_PER_CORE}{{{OF_RUN}}}')})", "{{instance}}"),
            unit="percentunit",
            width=12,
            show="value_and_name",
        ),
    ]


def _places() -> str:
    """Returns for how long each rank has been in its place: 0 if it is in none for long."""
    state = f"max by (cluster, instance, rank, state) (stepscope_rank_process_state{{{OF_RANK}}})"
    place = f"stepscope_rank_component_age_seconds{{{OF_RANK}}}"
    joined = f'label_join({place}, "place", ": ", "component", "operation")'
    named = f'label_replace({joined}, "place", "$1", "place", "(.*): ")'
    known = f"max by (cluster, instance, rank, place) ({named})"
    rank = "on (cluster, instance, rank)"
    return f"""
        {known} * {rank} group_left (state) {state}
          or {rank}
        label_replace(0 * {state}, "place", "nowhere for more than 10 s", "", "")
        """


def _ranks() -> list[Panel]:
    communication = f"run_instance_rank:stepscope_communication:ratio{{{OF_RANK}}}"
    paused = per_second(f"stepscope_rank_paused_seconds_total{{{OF_RANK}}}")
    steps = f"max(rate({STEPS}_count{{{OF_RUN}, {TRAIN}}}[$__range]))"
    return [
        section("Ranks compared"),
        table(
            "Present place of each rank",
            """The component or collective in which a rank has been for more than 10 s, for how long, and
            what its process does. If no step finishes, ranks in communication wait: look at the rank that
            is elsewhere, stopped or dead (CollectiveHang). `stepscope stacks` shows its Python stack.""",
            column("Rank", "rank", width=60),
            column("Node", "instance"),
            column("Place", "place"),
            column("Process", "state"),
            column("For", rows(_places()), unit="s", mappings=words({"0": (EMPTY_CELL, "text")})),
            height=9,
            sort_by=("For", True),
        ),
        time_series(
            "Own time of each rank",
            """Training steps without communication, in which fast ranks wait for slow ones; mean of the
            last 5 minutes. The steps of all ranks end together, so only this shows which rank is slow. If
            one line is above the others, they wait for that rank (Straggler). `stepscope profile $run` on
            its node shows its operators.""",
            lines(OWN_TIME, RANK),
            unit="s",
            overrides=numbered("rank"),
        ),
        shares(
            "Share of step time in communication",
            """Share of each rank in the last 15 minutes (`live_window`). It counts communication that does
            not overlap with computing. High on all ranks: exchange less or faster (CommunicationBound, the
            dashed line). High on all but one: they wait for that one.""",
            lines(communication, RANK),
            threshold(CommunicationBound, "threshold", communication),
            overrides=numbered("rank"),
        ),
        stat(
            "Slowest rank",
            """The rank with the longest own time per step, and that time. The next panel compares it with
            the other ranks.""",
            now(f"topk(1, max by (cluster, rank, instance) ({last(OWN_TIME)}))", RANK_AND_NODE),
            unit="s",
            width=6,
            height=8,
            show="value_and_name",
        ),
        stat(
            "Excess of the slowest rank",
            """Own time per step of the slowest rank beyond the median of the others. They wait for it that
            long at each step. Straggler needs more than 5 % of the step, 2 ms and 3 standard errors.""",
            now(f"max({last(f'{straggler.EXCESS}{{{OF_RANK}}}')})"),
            unit="s",
            width=6,
            height=8,
            nothing="not known, or only one rank",
        ),
        bars(
            "What the slowest rank takes longer for",
            """Excess per step of each component over the median of the other ranks, in the time range. The
            longest bar is the cause. "host" is the rest of the step.""",
            now(f"sort_desc(round(({variables.slower_by()}) / scalar({steps}), 1e-6))", COMPONENT),
            unit="s",
            overrides=coloured(COMPONENTS),
        ),
        time_series(
            "Pauses of each rank",
            """Share of the time in which a rank had work but could not run: stopped by a signal, ready but
            without a core (no_core, dashed), or throttled by its CPU limit (dotted). Others wait for a rank
            that pauses, but its own work is not slow.""",
            lines(f"sum by (rank, reason) ({paused})", RANK + " {{reason}}"),
            unit="percentunit",
            width=24,
            overrides=[*numbered("rank"), dashed("no_core$"), dotted("throttled$")],
        ),
    ]
