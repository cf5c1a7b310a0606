"""Utilisation histograms: how samples of GPUs and cores are distributed, and whether load is balanced."""

from stepscope.grafana import variables
from stepscope.grafana.looks import numbered
from stepscope.grafana.page import Dashboard, of_one_run
from stepscope.grafana.panels import (
    Panel,
    bar_chart,
    bars,
    histogram_heatmap,
    repeated,
    section,
    shares,
    time_series,
)
from stepscope.grafana.queries import (
    OF_GPU,
    OF_RUN,
    buckets,
    in_range,
    lines,
    now,
    rows,
    share_of_column,
    threshold,
)
from stepscope.rules.cpu_bottleneck import CPUBottleneck
from stepscope.rules.io_bottleneck import IOBottleneck
from stepscope.rules.load_balancing import LoadBalancing

UID = "stepscope-histograms"
HOW_TO_READ = """Each column is a histogram of the 500 ms samples of that time: the brighter a cell, the
              larger the share of samples with that value. It contains all samples, however rarely Prometheus
              scrapes."""
TENTHS = "|".join(f"0[.]{tenth}" for tenth in range(1, 10)) + "|1|1[.]0"


def dashboard() -> Dashboard:
    return of_one_run(
        UID,
        "Utilisation histograms",
        "How samples of GPUs and cores are distributed, whether load is balanced, and what GPUs wait for.",
        [_over_time(), _balance(), _waiting(), _each_gpu()],
        variables.of_node(),
        *variables.gpu_samples(),
        shown=["gpu"],
    )


def _over_time() -> list[Panel]:
    return [
        _heatmap(
            "GPU utilisation",
            """Bright at the top is good. Two bright bands, at the top and at the bottom, mean fluctuating
            utilisation (LowGPUUtilization). One band in the middle is steady work that does not fill the
            GPUs (small batches).""",
            "${gpu_samples}",
        ),
        _heatmap(
            "CPU utilisation, mean of cores",
            """Near the top while GPUs are low: the host is too small for this data pipeline. If it is low
            too, check single cores in Stepscope / System: the mean does not show one pinned core.""",
            "stepscope_cpu_utilization_samples_bucket",
        ),
        _heatmap(
            "GPU memory",
            """Used share of the memory. A rising band is a leak. A band far below the top leaves room for
            larger batches.""",
            "${gpu_memory_samples}",
        ),
        _heatmap(
            "I/O wait, mean of cores",
            """All samples at the bottom is good. Anything else with idle GPUs: storage is too slow
            (IOBottleneck).""",
            "stepscope_io_wait_samples_bucket",
        ),
    ]


def _balance() -> list[Panel]:
    bucket = f'{OF_GPU}, le=~"{TENTHS}"'
    share = f"""
    sum by (gpu, le) ({in_range(f"stepscope_gpu_utilization_samples_bucket{{{bucket}}}")})
      / on (gpu) group_left ()
    sum by (gpu) ({in_range(f"stepscope_gpu_utilization_samples_count{{{OF_GPU}}}")})
    """
    distance = f"run_instance:stepscope_gpu_load_distance:max{{{OF_RUN}}}"
    return [
        section("Is the load of a node's GPUs balanced?"),
        time_series(
            "Distance between GPUs",
            """Largest Kolmogorov-Smirnov distance between the utilisation distributions of two GPUs of a
            node: 0 is equal, 1 is disjoint. LoadBalancing fires above the dashed line: use one process
            per GPU, and equal shares of the work. It covers the last 15 minutes (`live_window`). The first
            value appears after `patience` samples.""",
            lines(distance, "{{instance}}"),
            threshold(LoadBalancing, "threshold", distance, percent=False),
            highest=1,
            width=24,
            nothing="not measured, or not for long enough (LoadBalancing.patience)",
        ),
        repeated(
            bar_chart(
                "Cumulative distribution of each GPU of $instance",
                """Share of each GPU's samples at or below a utilisation, in the time range. In
                data-parallel training all GPUs have the same work: the bars of a group should be equally
                high. LoadBalancing judges the largest difference within a group, in the last minutes.
                High bars on the left are idle GPUs.""",
                rows(f'label_replace({share.strip()}, "gpu", "GPU $1", "gpu", "(.+)")'),
                across="le",
                colour="gpu",
                overrides=numbered("GPU"),
            ),
            "instance",
            in_a_row=2,
        ),
    ]


def _waiting() -> list[Panel]:
    low = f"stepscope_gpu_low_samples_total{{{OF_RUN}}}"
    busy, storage = (f"run_instance:stepscope_{cause}_starved:ratio{{{OF_RUN}}}" for cause in ("cpu", "io"))
    return [
        section("What do GPUs wait for?"),
        shares(
            "Starved samples by cause",
            """Share of the samples of the last 15 minutes (`live_window`) in which some GPU was almost idle
            while some core was pinned ("busy core": CPUBottleneck), or waited for I/O ("storage":
            IOBottleneck). Above the dashed line the rule fires: fix that cause first.""",
            lines(f"max by (cluster, instance) ({busy})", f"busy core{variables.OF_WHICH_NODE}"),
            lines(f"max by (cluster, instance) ({storage})", f"storage{variables.OF_WHICH_NODE}"),
            threshold(CPUBottleneck, "threshold", busy),
            threshold(IOBottleneck, "threshold", storage),
        ),
        bars(
            "Samples with an idle GPU",
            """Share of the samples in the time range in which at least one GPU was below the utilisation at
            the bar, for any reason. The first bar is the time in which a GPU was almost idle.""",
            now(
                f"""
                label_replace(
                  sum by (gpu_below) ({in_range(low)})
                    / on () group_left () sum({in_range(f"stepscope_samples_total{{{OF_RUN}}}")}),
                  "gpu_below", "$1", "gpu_below", "0[.](.)"
                )
                """,
                "below {{gpu_below}}0 %",
            ),
            unit="percentunit",
            highest=1,
        ),
    ]


def _each_gpu() -> list[Panel]:
    each = _heatmap(
        "GPU $gpu",
        "A GPU whose histogram differs from the others has different or less work.",
        "stepscope_gpu_utilization_samples_bucket",
        OF_GPU,
    )
    return [section("Each GPU, on all chosen nodes", collapsed=True), repeated(each, "gpu", in_a_row=4)]


def _heatmap(title: str, advice: str, histogram: str, of: str = OF_RUN) -> Panel:
    query = buckets(share_of_column(histogram, of))
    return histogram_heatmap(title, f"{advice} {HOW_TO_READ}", query, unit="percentunit")
