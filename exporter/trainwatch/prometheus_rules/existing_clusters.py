"""Three rules for clusters without our exporter: from dcgm-exporter's and node_exporter's series.

Sources: dcgm-exporter's default-counters.csv (DCGM_FI_DEV_GPU_UTIL in percent, DCGM_FI_DEV_FB_USED and _FREE
in MiB, labels `gpu` and `Hostname`), node_exporter's cpu and uname collectors. What these show is a reading
at each scrape, so all answers are as coarse as that, and say so by `resolution="scrape"`.
"""

from __future__ import annotations

from typing import Any

from trainwatch.prometheus_rules.groups import Entry, Group, alert_rule, laid_out, record, status
from trainwatch.prometheus_rules.options import Options
from trainwatch.rules.batch_size import BatchSizeParameters
from trainwatch.rules.cpu_bottleneck import CPUBottleneckParameters
from trainwatch.rules.low_gpu_utilization import LowGPUUtilizationParameters
from trainwatch.rules.promql import Alert, PrometheusRules, ratio, time_span

# Which run a GPU works for is not known there: a GPU that has more than this share of its memory in use is
# taken for one that works for some run.
MEMORY_IN_USE = 0.02
SCRAPES = 40  # percentiles are over at least so many readings

LABELS = {"run": "unknown", "resolution": "scrape"}
GPU = "instance_gpu:dcgm_gpu_utilization:ratio"
MEMORY = "instance_gpu:dcgm_gpu_memory_used:ratio"
IN_USE = "instance_gpu:dcgm_gpu_in_use:bool"
CPU = "instance:node_cpu_utilization:mean_ratio"
BUSIEST = "instance:node_cpu_utilization:max_ratio"
STARVED = "instance:node_cpu_starved:bool"
STARVED_SHARE = "instance:node_cpu_starved:avg_ratio"


def existing_clusters_groups(options: Options) -> list[Group]:
    by_name = {one.name: one for one in options.settings.rules()}
    alerts = [
        *_low_gpu_utilization(by_name["LowGPUUtilization"], options),
        *_batch_size(by_name["BatchSize"], options),
        *_cpu_bottleneck(by_name["CPUBottleneck"], options),
    ]
    return [
        {
            "name": "trainwatch-existing-clusters",
            "interval": time_span(options.scraping.interval),
            "rules": [*_readings(options), *alerts],
        }
    ]


def _readings(options: Options) -> list[Entry]:
    """The series of both exporters as rules want them: ratios, and `instance` for the node's name."""
    its_rate = time_span(4 * options.scraping.interval)
    idle = f'sum without (mode) (rate(node_cpu_seconds_total{{mode=~"idle|iowait"}}[{its_rate}]))'
    return [
        _record(GPU, 'label_replace(DCGM_FI_DEV_GPU_UTIL / 100, "instance", "$1", "Hostname", "(.+)")'),
        _record(
            MEMORY,
            """
            label_replace(
              DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE),
              "instance", "$1", "Hostname", "(.+)"
            )
            """,
        ),
        _record(IN_USE, f"{MEMORY} > bool {MEMORY_IN_USE}"),
        _record(CPU, _named_node(f"1 - avg without (cpu) ({idle})")),
        _record(BUSIEST, _named_node(f"1 - min without (cpu) ({idle})")),
    ]


def _named_node(expression: str) -> str:
    """With the node's own name for `instance`, which is what dcgm-exporter calls `Hostname`."""
    return laid_out(
        f"""
        label_replace(
          ({expression})
            * on (job, instance) group_left (nodename) node_uname_info,
          "instance", "$1", "nodename", "(.+)"
        )
        """
    )


def _low_gpu_utilization(rule: Any, options: Options) -> list[Entry]:
    its: LowGPUUtilizationParameters = rule.parameters
    window = _window(its.window, options)
    used = _in_use(its.window, its.patience, options)
    p95, p5 = (f"quantile_over_time({quantile}, {GPU}[{window}])" for quantile in (0.95, 0.05))
    low, high = f"{p95} < {ratio(its.threshold_p95)}", f"{p95} > {ratio(its.threshold_p95)}"
    return _rules(
        rule,
        options,
        GPU,
        Alert(
            f"{low}\n  and {used}",
            summary="GPU {{ $labels.gpu }} of {{ $labels.instance }} is under-utilised",
            description="95 % of the readings of GPU {{ $labels.gpu }} of {{ $labels.instance }} are at "
            f"or below {{{{ $value | humanizePercentage }}}} (fires below {its.threshold_p95:g} %).",
            labels={"trouble": "under-utilised"},
        ),
        Alert(
            f"{p5} < {ratio(its.threshold_p5)}\n  and {high}\n  and {used}",
            summary="GPU {{ $labels.gpu }} of {{ $labels.instance }} is used in fits and starts",
            description="5 % of the readings of GPU {{ $labels.gpu }} of {{ $labels.instance }} are at or "
            f"below {{{{ $value | humanizePercentage }}}} (fires below {its.threshold_p5:g} %), though it is "
            "busy at other times.",
            labels={"trouble": "fluctuating"},
        ),
    )


def _batch_size(rule: Any, options: Options) -> list[Entry]:
    its: BatchSizeParameters = rule.parameters
    window = _window(its.window, options)

    def low(series: str, percent: float) -> str:
        return f"quantile_over_time(0.95, {series}[{window}]) < {ratio(percent)}"

    return _rules(
        rule,
        options,
        GPU,
        Alert(
            f"{low(GPU, its.gpu_threshold_p95)}\n"
            f"  and on (instance, gpu) {low(MEMORY, its.gpu_memory_threshold_p95)}\n"
            f"  and on (instance) {low(CPU, its.cpu_threshold_p95)}\n"
            f"  and {_in_use(its.window, its.patience, options)}",
            severity="info",
            summary="GPU {{ $labels.gpu }} of {{ $labels.instance }} has too little to do",
            description="95 % of the readings of GPU {{ $labels.gpu }} of {{ $labels.instance }} are at or "
            "below {{ $value | humanizePercentage }}, while its memory has room and the cores are not busy.",
        ),
    )


def _cpu_bottleneck(rule: Any, options: Options) -> list[Entry]:
    its: CPUBottleneckParameters = rule.parameters
    span = time_span(options.scraping.reach(options.scraping.window(max(its.patience, 1))))
    # Without a GPU in use there is no value, so that the share is of the time in which something ran.
    starved = f"""
    ({BUSIEST} > bool {ratio(its.cpu_threshold)})
      * on (instance)
    (
      min by (instance) ({GPU} and on (instance, gpu) {IN_USE} == 1) < bool {ratio(its.gpu_threshold)}
    )
    """
    return [
        _record(STARVED, starved),
        _record(STARVED_SHARE, f"avg_over_time({STARVED}[{span}])"),
        *_rules(
            rule,
            options,
            STARVED_SHARE,
            Alert(
                f"{STARVED_SHARE} > {ratio(its.threshold)}\n"
                f"  and {STARVED} offset {time_span(options.scraping.window(max(its.patience, 1)))}",
                summary="GPUs of {{ $labels.instance }} wait for a busy core",
                description=f"On {{{{ $labels.instance }}}}, {rule.condition()} at "
                "{{ $value | humanizePercentage }} of the scrapes (fires above "
                f"{its.threshold:g} %).",
            ),
        ),
    ]


def _window(samples: int, options: Options) -> str:
    """The range of percentiles."""
    seconds = max(options.scraping.window(samples), SCRAPES * options.scraping.interval)
    return time_span(options.scraping.reach(seconds))


def _in_use(window: int, patience: int, options: Options) -> str:
    """The GPUs that were in use for the whole window, and for as long as patience asks for."""
    samples = max(window, patience)
    seconds = max(options.scraping.window(samples), SCRAPES * options.scraping.interval)
    return (
        f"(min_over_time({IN_USE}[{time_span(options.scraping.reach(seconds))}]) == 1 "
        f"and {IN_USE} offset {time_span(seconds)} and {IN_USE})"  # from then until now
    )


def _record(name: str, expression: str) -> Entry:
    return record(name, expression, LABELS)


def _rules(rule: Any, options: Options, targets: str, *alerts: Alert) -> list[Entry]:
    """The status of a rule and its alerts, labelled for what they are."""
    rules = PrometheusRules(targets, alerts)
    entries = [status(rule.name, rules), *(alert_rule(rule, alert, options) for alert in alerts)]
    return [{**entry, "labels": entry["labels"] | LABELS} for entry in entries]
