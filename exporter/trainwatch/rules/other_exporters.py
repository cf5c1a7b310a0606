"""Selects series of dcgm-exporter and node_exporter, for rules that do not need our exporter.

Both publish one reading per scrape and no counts of samples, so the results are less precise.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainwatch.rules.promql import Scraping, time_span

GPU = "instance_gpu:dcgm_gpu_utilization:ratio"
MEMORY = "instance_gpu:dcgm_gpu_memory_used:ratio"
IN_USE = "instance_gpu:dcgm_gpu_in_use:bool"
CPU = "instance:node_cpu_utilization:mean_ratio"
BUSIEST = "instance:node_cpu_utilization:max_ratio"

SCRAPES = 40  # readings that a percentile needs


@dataclass(frozen=True)
class OtherExporters:
    """PromQL over the series of both exporters; `samples` are those of our exporter in the same time."""

    scraping: Scraping

    def percentile(self, quantile: float, series: str, samples: int) -> str:
        """Returns a percentile over the time of `samples`."""
        return f"quantile_over_time({quantile}, {series}[{self._range(self._seconds(samples))}])"

    def in_use(self, samples: int) -> str:
        """Returns the GPUs that were in use all the time of `samples`."""
        seconds = self._seconds(samples)
        return (
            f"(min_over_time({IN_USE}[{self._range(seconds)}]) == 1 "
            f"and {IN_USE} offset {time_span(seconds)} and {IN_USE})"
        )

    def mean(self, series: str, samples: int) -> str:
        return f"avg_over_time({series}[{self._range(self.scraping.window(samples))}])"

    def before(self, series: str, samples: int) -> str:
        """Returns the series as it was before the time of `samples`."""
        return f"{series} offset {time_span(self.scraping.window(samples))}"

    def _seconds(self, samples: int) -> float:
        return max(self.scraping.window(samples), SCRAPES * self.scraping.interval)

    def _range(self, seconds: float) -> str:
        return time_span(self.scraping.reach(seconds))
