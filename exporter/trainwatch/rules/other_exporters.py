"""What dcgm-exporter and node_exporter tell, for rules that can do without our exporter.

Both give a reading at each scrape, and no counts of samples: all answers are as coarse as that.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainwatch.rules.promql import Scraping, time_span

GPU = "instance_gpu:dcgm_gpu_utilization:ratio"
MEMORY = "instance_gpu:dcgm_gpu_memory_used:ratio"
IN_USE = "instance_gpu:dcgm_gpu_in_use:bool"
CPU = "instance:node_cpu_utilization:mean_ratio"
BUSIEST = "instance:node_cpu_utilization:max_ratio"

SCRAPES = 40  # percentiles are over at least so many readings


@dataclass(frozen=True)
class OtherExporters:
    scraping: Scraping

    def percentile(self, quantile: float, series: str, samples: int) -> str:
        """Over the time of so many samples of our exporter."""
        return f"quantile_over_time({quantile}, {series}[{self._range(self._seconds(samples))}])"

    def in_use(self, samples: int) -> str:
        """The GPUs that were in use for the time of so many samples of our exporter, from then until now."""
        seconds = self._seconds(samples)
        return (
            f"(min_over_time({IN_USE}[{self._range(seconds)}]) == 1 "
            f"and {IN_USE} offset {time_span(seconds)} and {IN_USE})"
        )

    def mean(self, series: str, samples: int) -> str:
        return f"avg_over_time({series}[{self._range(self.scraping.window(samples))}])"

    def before(self, series: str, samples: int) -> str:
        """The series as it was so many samples of our exporter ago."""
        return f"{series} offset {time_span(self.scraping.window(samples))}"

    def _seconds(self, samples: int) -> float:
        return max(self.scraping.window(samples), SCRAPES * self.scraping.interval)

    def _range(self, seconds: float) -> str:
        return time_span(self.scraping.reach(seconds))
