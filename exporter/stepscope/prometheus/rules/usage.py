"""Records the usage of nodes and runs for dashboards of many nodes, or of weeks.

One group records a few series per node every two minutes: a dashboard of 1,000 nodes then reads some
thousands, instead of a hundred thousand cores and GPUs. Another one sums histograms over the GPUs and ranks
of a node every four minutes, for charts of weeks. Prometheus does not allow much longer intervals. The third
one (owners.py) is about who has the GPUs.
"""

from stepscope.prometheus.rules.groups import Entry, Group, record
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.owners import owners_group
from stepscope.rules import all_rules
from stepscope.rules.cpu_bottleneck import CPUBottleneck
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.gpus import GPUS as GPUS_OF_RUNS
from stepscope.rules.parts.promql import MINUTE
from stepscope.rules.parts.remedies import SLOW_RANK
from stepscope.rules.straggler import Straggler

IDLE = 0.05  # a GPU below this utilisation counts as idle

GPU_UTILIZATION = "instance:stepscope_gpu_utilization:mean_ratio"
CPU_UTILIZATION = "instance:stepscope_cpu_utilization:mean_ratio"
CPU_IO_WAIT = "instance:stepscope_cpu_io_wait:mean_ratio"
MEMORY_USED = "instance:stepscope_memory_used:ratio"
GPU_MEMORY_USED = "instance:stepscope_gpu_memory_used:ratio"
GPUS = "instance:stepscope_gpus:count"
GPUS_IDLE = "instance:stepscope_gpus_idle:count"
GPU_POWER = "instance:stepscope_gpu_power:watts"
NETWORK_RECEIVED = "instance:stepscope_network_receive:bytes_rate5m"
NETWORK_SENT = "instance:stepscope_network_transmit:bytes_rate5m"
RUN_GPUS = "run_instance:stepscope_run_gpus:count"
RUN_POWER = "run_instance:stepscope_run_gpu_power:watts"
RUN_UTILIZATION = "run_instance:stepscope_run_gpu_utilization:mean_ratio"
RUN_STEPS = "run_instance:stepscope_train_steps:rate5m"
# A GPU that waits in a collective counts as busy: of what it does, this share of the steps is no work. Ranks
# also wait outside of steps, and an average over time is NaN if one value is.
RUN_WAITING = "run_instance:stepscope_run_waiting:mean_ratio"

LONG_GPU_SAMPLES = "run_instance_le:stepscope_gpu_utilization_samples_bucket:sum"
LONG_GPU_MEMORY_SAMPLES = "run_instance_le:stepscope_gpu_memory_samples_bucket:sum"
# Every tenth, which the heatmaps show: percentiles of weeks need no more.
LONG_BOUNDS = 'le=~"0[.][1-9]|1|1[.]0|[+]Inf"'
LONG_STEPS = "run_instance_phase_le:stepscope_step_duration_seconds_bucket:sum"


def usage_groups(options: Options) -> list[Group]:
    """Returns the groups; their intervals are never shorter than that of the scrapes."""
    each_minute = max(MINUTE, options.scraping.interval)
    of_gpus = ((LONG_GPU_SAMPLES, "utilization"), (LONG_GPU_MEMORY_SAMPLES, "memory"))
    long_ranges = [
        *(
            record(long, f"sum without (gpu) (stepscope_gpu_{what}_samples_bucket{{{LONG_BOUNDS}}})")
            for long, what in of_gpus
        ),
        record(LONG_STEPS, "sum without (rank) (stepscope_step_duration_seconds_bucket)"),
    ]
    return [
        {"name": "stepscope-usage", "interval": time_span(2 * each_minute), "rules": _recent()},
        owners_group(2 * each_minute),
        {"name": "stepscope-long-ranges", "interval": time_span(4 * MINUTE), "rules": long_ranges},
    ]


def _recent() -> list[Entry]:
    # The rate of the counter would be too low until an exporter has been scraped for five minutes.
    busy = "avg_over_time(stepscope_gpu_utilization_ratio[5m])"
    # The GPUs that each run uses. With many runs on a node, a GPU may count for several of them.
    uses = f"{GPUS_OF_RUNS} unless ignoring (gpu) stepscope_run_end_time_seconds"
    of_run = f"* ignoring (run) group_right () clamp({uses}, 1, 1)"
    return [
        record(GPU_UTILIZATION, f"avg without (gpu) ({busy})"),
        record(GPUS, "count without (gpu) (stepscope_gpu_up)"),
        record(GPUS_IDLE, f"sum without (gpu) ({busy} < bool {IDLE})"),
        record(GPU_POWER, "sum without (gpu) (stepscope_gpu_power_watts)"),
        record(
            GPU_MEMORY_USED,
            """
            sum without (gpu) (stepscope_gpu_memory_used_bytes)
              / sum without (gpu) (stepscope_gpu_memory_total_bytes)
            """,
        ),
        record(CPU_UTILIZATION, _mean("stepscope_cpu_utilization_samples")),
        record(CPU_IO_WAIT, _mean("stepscope_io_wait_samples")),
        record(MEMORY_USED, "stepscope_memory_used_bytes / stepscope_memory_total_bytes"),
        record(NETWORK_RECEIVED, "sum without (device) (rate(stepscope_network_receive_bytes_total[5m]))"),
        record(NETWORK_SENT, "sum without (device) (rate(stepscope_network_transmit_bytes_total[5m]))"),
        record(RUN_GPUS, f"count without (gpu) ({uses})"),
        record(RUN_POWER, f"sum without (gpu) (stepscope_gpu_power_watts {of_run})"),
        record(RUN_UTILIZATION, f"avg without (gpu) ({busy} {of_run})"),
        record(
            RUN_STEPS,
            'max without (rank, phase) (rate(stepscope_step_duration_seconds_count{phase="train"}[5m]))',
        ),
        record(
            RUN_WAITING,
            """
            clamp_max(
              sum without (rank, component) (
                rate(stepscope_step_component_seconds_total{component=~"communication|data_wait"}[5m])
              )
                / (sum without (rank, phase) (rate(stepscope_step_duration_seconds_sum[5m])) > 0),
              1
            )
            """,
        ),
    ]


def _mean(histogram: str) -> str:
    """Returns the mean of a node's cores while it trains, over five minutes, without a series per core."""
    return f"max without (run) (rate({histogram}_sum[5m]) / (rate({histogram}_count[5m]) > 0))"


# Advice that is more specific than that of a rule, for dashboards: by the evidence that it needs. The label
# `of` names it: another rule that fires too, whether busy cores are all full, or the component in which a
# slow rank is slow. The report knows more, and may be more specific still.
ADVICE = "stepscope:rule_advice"

# If CPUBottleneck fires, and the mean use of the run's cores is known.
FULL_CORES, FREE_CORES = "full cores", "free cores"
BUSY_CORES = {
    FULL_CORES: "All cores are full, so more workers cannot help: make the transform cheaper, cache its "
    "results, or move it to the GPU.",
    FREE_CORES: "Cores are free: give the data loader more workers, and let it prefetch.",
}
COPIES = "host_to_device"


def advice_group(options: Options) -> Group:
    """Returns one series per advice; its value is the priority."""
    rendered = {rule.name for rule in options.rules()}
    slow = {COPIES if of == "copies" else of: text for of, text in SLOW_RANK.items()}
    advice = [(DataStarved.__name__, of, text) for of, text in _why_data_is_late().items()]
    advice += [(Straggler.__name__, of, text) for of, text in slow.items()]
    return {
        "name": "stepscope-advice",
        "interval": time_span(max(MINUTE, options.scraping.interval)),
        "rules": [
            record(ADVICE, f"vector({priority})", {"rule": rule, "of": of, "recommendation": text})
            for priority, (rule, of, text) in enumerate(advice, start=1)
            if rule in rendered
        ],
    }


def _why_data_is_late() -> dict[str, str]:
    """Returns advice by its evidence, which DataStarved itself does not know. The last one is shown."""
    rules = [rule for rule in all_rules().values() if rule.explains_late_data]
    advice: dict[str, str] = {}
    for rule in sorted(rules, key=lambda rule: rule.explains_late_data):
        advice[rule.__name__] = rule.recommendation
        if rule is CPUBottleneck:
            advice |= BUSY_CORES
    return advice
