"""The alerts of many runs at once: each run is on a node of its own in one temporary Prometheus.

The same Prometheus evaluates threshold alerts as people write them by hand.
"""

from collections.abc import Iterable, Mapping, Sequence

from stepscope.prometheus.crosscheck.offline.prometheus import local_prometheus
from stepscope.prometheus.crosscheck.rule_files import FileGroup, read_groups
from stepscope.prometheus.crosscheck.server import Series

from trials.fault_matrix.play import SCRAPE_SECONDS, Alert
from trials.shared_cluster.judge import FiringAlert, firing, needed, rule_groups

GPU_BY_HAND, CPU_BY_HAND = "GPU utilisation below 50 %", "CPU utilisation above 90 %"
BY_HAND = f"""
groups:
  - name: by-hand
    interval: 1m
    rules:
      - alert: {GPU_BY_HAND}
        expr: |
          avg_over_time(stepscope_gpu_utilization_ratio[5m]) < 0.5
          and stepscope_gpu_memory_used_bytes / stepscope_gpu_memory_total_bytes > 0.1
        for: 5m
      - alert: {CPU_BY_HAND}
        expr: |
          sum by (instance) (avg_over_time(stepscope_cpu_utilization_ratio[5m]))
          / on (instance) max by (instance) (stepscope_run_cpus) > 0.9
        for: 5m
"""


def groups_of_rules() -> list[FileGroup]:
    """Returns Stepscope's rules and those by hand."""
    return [*rule_groups(SCRAPE_SECONDS), *read_groups(BY_HAND, "by hand")]


def series_read() -> set[str]:
    """Returns the names of the series that must be scraped."""
    return needed(groups_of_rules())


def alerts_by_instance(batches: Iterable[Sequence[Series]], seconds: float) -> Mapping[str, list[Alert]]:
    """Evaluates all rules over the scraped series of some nodes, and returns what fired on each."""
    with local_prometheus() as store:
        for series in batches:
            store.write(series)
        fired = firing(store, groups_of_rules(), seconds)
    found: dict[str, list[Alert]] = {}
    for alert in sorted(fired, key=lambda alert: alert.begin):
        # A run has one node; rules that add up all nodes of a run name only the run, which is named like it.
        instance = alert.labels.get("instance") or alert.labels["run"]
        found.setdefault(instance, []).append(Alert(alert.rule, _place(alert), alert.begin))
    return found


def _place(alert: FiringAlert) -> str:
    for label, word in (("rank", "rank"), ("gpu", "GPU")):
        if label in alert.labels:
            return f"{word} {alert.labels[label]}"
    return ""
