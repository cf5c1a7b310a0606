"""GPUMemoryNearlyFull: the memory of a GPU is nearly full, or will be full soon.

Source: our own. The forecast is the trend of GPUMemoryLeak; memory that does not grow steadily has none.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from stepscope.common.words import count, duration, exact_percent, others, others_of
from stepscope.measurements import memory_growth
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.memory_growth import Filling, Growth, MemoryOfNode
from stepscope.measurements.scraped import MEMORY_READINGS, Moment, Scraped, column, lowest
from stepscope.measurements.usage import USAGE
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.expressions import Record, time_span
from stepscope.rules.parts.gpu_memory import FollowsMemory, share_in_use
from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.other_exporters import ON_GPU, OtherExporters
from stepscope.rules.parts.parameters import Minutes, Parameters, Percent, Samples, fraction
from stepscope.rules.parts.promql import (
    MINUTE,
    OF_GPU,
    Alert,
    PrometheusRules,
    Scraping,
    compared,
    looked_up,
    ratio,
)
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.steady_growth import SteadyGrowth, dividing, known
from stepscope.rules.parts.topics import Effect

SHARE = "run_instance_gpu:stepscope_gpu_memory_in_use:ratio"
LOWEST = "run_instance_gpu:stepscope_gpu_memory_in_use:min_ratio"
QUARTERS = 4
FULL_IN = "run_instance_gpu:stepscope_gpu_memory_full_in:seconds"


@dataclass(frozen=True)
class GPUMemoryNearlyFullParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires when more of a GPU's memory than this is in use"] = 95
    horizon: Annotated[Minutes, "it also fires when the memory is full before that at the current rate"] = 60
    patience: Annotated[Samples, "decisions begin after this many samples"] = 120
    warm_up: Annotated[Minutes, "alerts are about growth that continues after this time of a run"] = 60
    urgent: Annotated[Minutes, "or that fills the memory within this time: a cache may stop before"] = 15


@rule
class GPUMemoryNearlyFull(FollowsMemory[GPUMemoryNearlyFullParameters]):
    """Estimates no seconds lost: a run that fails loses everything since its last checkpoint."""

    subject = "Nearly full GPU memory"
    question = "Is the memory of a GPU nearly full, or about to be?"
    description = (
        "Looks at the highest memory use of each GPU in each scan, and forecasts when memory that grows "
        "steadily will be full: a larger batch or a longer sequence then ends the run."
    )
    recommendation = (
        "Leave a margin: a smaller batch with gradient accumulation, activation checkpointing, a sharded "
        "optimizer. Frameworks that reserve all memory at the start (JAX, TensorFlow) need no fix."
    )
    topic = "GPU memory"
    distance = 1
    bands = Bands("GPU", [Worst("{} in use"), Worst("full in {}", duration, lowest=True)])
    view = "memory"
    effect = Effect.RISK
    growing = 1

    details_of = (USAGE,)

    def judge(self, view: Filling) -> Judgement:
        full = view.highest > fraction(self.parameters.threshold)
        soon = ~full & (view.full_in < 60 * self.parameters.horizon)
        enough = (view.samples > self.parameters.patience) & ~np.isnan(view.highest)
        return judgement(enough, (view.highest, full), (view.full_in, soon))

    def judge_live(self, view: Filling, sample_interval: float) -> Judgement:
        judged = self.judge(view)
        full, (full_in, soon) = judged.conditions
        lasts = view.samples > self._warmed_up(sample_interval)
        lasts |= view.full_in < 60 * self.parameters.urgent
        return judgement(judged.enough, (full.value, full.holds), (full_in, soon & lasts))

    def finding(self, gpus: list[dict[str, Any]]) -> str:
        read = [gpu for gpu in gpus if gpu["highest_percent"] is not None]
        fired = [gpu for gpu in read if gpu["triggered"]]
        worst = max(fired or read, key=lambda gpu: gpu["highest_percent"])
        highest, within = exact_percent(worst["highest_percent"]), f"{self.parameters.horizon:g} min"
        sentence = f"{worst['gpu']} of {worst['node']} used up to {highest} of its memory"
        soonest = min(
            (gpu for gpu in fired if gpu["full_in_seconds"] is not None),
            key=lambda gpu: gpu["full_in_seconds"],
            default=None,
        )
        if soonest is not None:
            when = duration(soonest["full_in_seconds"])
            gpu = f"{soonest['gpu']} of {soonest['node']}"
            sentence = f"{gpu} will be full in {when} at the current rate; {sentence}"
        elif fired and worst["highest_percent"] <= self.parameters.threshold:
            scans = count(worst["triggered"], "scan")
            sentence += f"; in {scans} it grew fast enough to be full within {within}, but not at the end"
        elif worst["levelled_off"]:
            sentence += f"; for a time it grew fast enough to be full within {within}, then it levelled off"
        if len(fired) > 1:
            sentence += f"; the memory of {others_of(len(fired) - 1, len(read), 'GPU')} is nearly full too"
        sentence += others([gpu["highest_percent"] for gpu in read if gpu is not worst], "GPU")
        return f"{sentence}."

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules; one reading per scrape is enough, because memory use changes slowly."""
        parameters = self.parameters
        growth = self._growth(scraping)
        warmed_up = self._warmed_up(scraping.sample_interval)
        return PrometheusRules(
            targets=scraping.held(MEMORY_READINGS),
            every=dividing(growth.part, 2 * MINUTE),
            records=[
                Record(SHARE, share_in_use(scraping)),
                Record(LOWEST, f"min_over_time({SHARE}[{time_span(self._reach(scraping))}])"),
                *growth.records,
                Record(FULL_IN, growth.full_in(SHARE, f"({growth.expression})")),
            ],
            alerts=[
                Alert(
                    f"{SHARE} > {ratio(parameters.threshold)}\n"
                    f"  and {scraping.held(MEMORY_READINGS)} > {parameters.patience}",
                    summary=f"The memory of {WHERE} is nearly full",
                    description=f"In run {{{{ $labels.run }}}}, {{{{ $value | humanizePercentage }}}} of the "
                    f"memory of {WHERE} is in use (fires above {parameters.threshold:g} %)."
                    + compared(SHARE, "GPUs"),
                    severity="info",  # many runs are tuned to use all of it
                    keep_firing=60,
                    labels={"trouble": "full"},
                ),
                Alert(
                    f"{FULL_IN} < {60 * parameters.horizon:.12g} "
                    f"unless {SHARE} > {ratio(parameters.threshold)}\n"
                    f"  and {scraping.held(MEMORY_READINGS)} > {parameters.patience}\n"
                    f"  and ({scraping.held(MEMORY_READINGS)} > {warmed_up:.12g} "
                    f"or {FULL_IN} < {60 * parameters.urgent:.12g})",
                    summary=f"The memory of {WHERE} will be full soon",
                    description=f"In run {{{{ $labels.run }}}}, the memory of {WHERE} will be full in "
                    "{{ $value | humanizeDuration }} at the current rate "
                    f"(fires below {parameters.horizon:g} min)."
                    + looked_up(f"{SHARE}{{}}", OF_GPU, " Now {{ .Value | humanizePercentage }} are in use.")
                    + compared(SHARE, "GPUs"),
                    keep_firing=300,
                    labels={"trouble": "filling"},
                ),
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        """Returns the rule without the forecast."""
        parameters = self.parameters
        enough = others.in_use(parameters.patience)
        return PrometheusRules(
            targets=others.memory,
            every=2 * MINUTE,
            alerts=[
                Alert(
                    f"{others.memory} > {ratio(parameters.threshold)}\n  and {ON_GPU} {enough}",
                    summary=f"The memory of {WHERE} is nearly full",
                    description=f"{{{{ $value | humanizePercentage }}}} of the memory of {WHERE} is in use "
                    f"(fires above {parameters.threshold:g} %).",
                    severity="info",
                    keep_firing=60,
                    labels={"trouble": "full"},
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Filling]:
        growth, readings = self._growth(scraping), now.held(MEMORY_READINGS, scraping.hold)
        share, full_in = now.recorded(SHARE), now.recorded(FULL_IN)
        records = {
            LOWEST: lowest(now.recorded_over(SHARE, self._reach(scraping))),
            **growth.recorded(now),
            FULL_IN: growth.recorded_full_in(share, growth.grown(now)),
        }
        labels = list({**share, **full_in})
        view = Filling(
            column(readings, labels),
            np.ones(len(labels), bool),
            highest=column(share, labels),
            full_in=column(full_in, labels),
        )
        return Scraped(labels, view, records)

    def _growth(self, scraping: Scraping) -> SteadyGrowth:
        """Returns the growth that a forecast needs, in whole evaluations."""
        parameters, interval = self.parameters, max(MINUTE, scraping.interval)
        quarter = interval * math.ceil(scraping.window(memory_growth.FORECAST_ROWS) / interval / QUARTERS)
        # The least growth that fills memory below the threshold within the horizon.
        least = (
            (1 - parameters.threshold / 100) * QUARTERS * quarter / (60 * parameters.horizon)
            if parameters.horizon
            else 1.0
        )
        return SteadyGrowth(LOWEST, QUARTERS, quarter, least)

    def _warmed_up(self, sample_interval: float) -> float:
        """Returns the samples of a run after which a forecast looks at what grew after the warm-up."""
        return 60 * self.parameters.warm_up / sample_interval + memory_growth.FORECAST_ROWS

    def _reach(self, scraping: Scraping) -> float:
        return self._growth(scraping).part + max(MINUTE, scraping.interval) / 2

    def details(
        self, run: RunMeasurements, name: str, node: MemoryOfNode, growth: Growth
    ) -> list[dict[str, Any]]:
        highest = (gpu.memory.max for gpu in run.nodes[name][USAGE].gpus)
        return [
            {"highest_percent": known(100 * most), "full_in_seconds": known(seconds)}
            for most, seconds in zip(highest, node.full_in(growth).tolist(), strict=True)
        ]
