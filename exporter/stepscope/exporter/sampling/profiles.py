"""Which metrics a scrape has: `--metrics.profile`.

- `full`: everything that the exporter counts.
- `default`: what rules, dashboards and reports from Prometheus read, and what says why the exporter itself
  fails. A test derives this from their queries, so a metric that nothing reads belongs to FULL_ONLY.
- `lean`: what the rules of `stepscope rules render --profile lean` read, for clusters of thousands of nodes.

Only scrapes differ: sample counters, recordings and the live page are the same.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, get_args

from stepscope.exporter.sampling.families import Family, HistogramValue, LabelValues
from stepscope.exporter.sampling.sample import GPU_QUANTITIES, RUN_QUANTITIES

Profile = Literal["lean", "default", "full"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
# The values that are published of some labels; `le` are the finite bounds of a histogram.
Part = Mapping[str, Collection[str]]

FULL_ONLY = frozenset(
    {
        "process_virtual_memory_bytes",
        "stepscope_dataloader_batch_size",
        "stepscope_dataloader_queue_depth",
        "stepscope_phase_age_seconds",
        "stepscope_run_cpu_info",
        "stepscope_step_component_device_seconds_total",
    }
).union(each.metric for each in (*GPU_QUANTITIES.values(), *RUN_QUANTITIES.values()) if each.full_only)
LEAN: Mapping[str, Part] = {
    "process_start_time_seconds": {},
    "stepscope_collector_success": {},
    "stepscope_exporter_build_info": {},
    "stepscope_exporter_left_out": {},
    "stepscope_gpu_ecc_errors_total": {"severity": ("uncorrected",)},
    "stepscope_gpu_held_idle_seconds": {},
    "stepscope_gpu_starved_samples_total": {"cause_above": ("0.5", "0.9"), "gpu_below": ("0.1",)},
    "stepscope_gpu_throttle_seconds_total": {"reason": ("sw_thermal", "hw_thermal")},
    "stepscope_gpu_up": {},
    "stepscope_gpu_utilization_ratio": {},
    "stepscope_gpu_utilization_samples": {"le": ("0.1", "0.7", "1")},
    "stepscope_gpu_xid_errors_total": {},
    "stepscope_phase_seconds_total": {},
    "stepscope_rank_component_age_seconds": {},
    "stepscope_rank_paused_seconds_total": {"reason": ("no_core",)},
    "stepscope_rank_process_state": {},
    "stepscope_run_age_seconds": {},
    "stepscope_run_cpu_limit_cores": {},
    "stepscope_run_cpu_seconds_total": {},
    "stepscope_run_cpu_throttled_seconds_total": {},
    "stepscope_run_end_time_seconds": {},
    "stepscope_run_ended_info": {},
    "stepscope_run_exception_info": {},
    "stepscope_run_first_step_time_seconds": {},
    "stepscope_run_info": {},
    "stepscope_run_last_step_age_seconds": {},
    "stepscope_run_main_threads_ran_seconds_total": {},
    "stepscope_run_main_threads_waited_seconds_total": {},
    "stepscope_run_other_cpu_seconds_total": {},
    "stepscope_run_start_time_seconds": {},
    "stepscope_run_world_size": {},
    "stepscope_sampler_ticks_missed_total": {},
    "stepscope_sampler_ticks_total": {},
    "stepscope_samples_total": {},
    "stepscope_step_component_seconds_total": {"component": ("communication", "data_wait")},
    "stepscope_step_duration_seconds": {"le": ()},
    "stepscope_step_own_seconds_total": {},
    "stepscope_step_own_squared_seconds_total": {},
}


class ProfileFilter:
    """Chooses the families of a scrape, and the series of some of them."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._parts: dict[Family, Family] = {}

    def of(self, families: Iterable[Family]) -> list[Family]:
        """Returns the families of the profile with their samples now; the same objects at each scrape."""
        if self._profile == "full":
            return list(families)
        if self._profile == "default":
            return [family for family in families if family.name not in FULL_ONLY]
        return [self._part(family, LEAN[family.name]) for family in families if family.name in LEAN]

    def _part(self, family: Family, part: Part) -> Family:
        if not part:
            return family
        found = self._parts.get(family)
        if found is None:
            bounds = [bound for bound in family.bounds if f"{bound:g}" in part.get("le", ())]
            found = self._parts[family] = Family(family.name, family.kind, family.help, family.labels, bounds)
        found.publish(_chosen(family, part))
        found.publish_histograms(
            {labels: _coarser(value, family, found) for labels, value in family.histograms.items()}
        )
        return found


def _chosen(family: Family, part: Part) -> dict[LabelValues, float]:
    chosen = [(family.labels.index(label), values) for label, values in part.items() if label != "le"]
    return {
        labels: value
        for labels, value in family.samples.items()
        if all(labels[place] in values for place, values in chosen)
    }


def _coarser(value: HistogramValue, fine: Family, coarse: Family) -> HistogramValue:
    """Returns the histogram with fewer bounds, without exemplars."""
    ends = [fine.bounds.index(bound) + 1 for bound in coarse.bounds]
    edges = zip([0, *ends], [*ends, len(value.counts)], strict=True)
    return HistogramValue([sum(value.counts[begin:end]) for begin, end in edges], value.sum)
