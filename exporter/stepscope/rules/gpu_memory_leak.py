"""GPUMemoryLeak: the memory of a GPU fills steadily.

Source: our own definition, with the usual statistics for leaks of host memory: Kendall's rank correlation
(the Mann-Kendall test) decides whether there is a trend, and the Theil-Sen slope is its size. A single large
allocation is no trend, although it makes GPUMemoryIncrease fire.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from stepscope.common.words import duration, others_of, percent
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.memory_growth import Filling, Growth, MemoryOfNode
from stepscope.measurements.scraped import MEMORY_READINGS, Moment, Scraped, column
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.gpu_memory import FollowsMemory, share_in_use
from stepscope.rules.parts.gpus import WHERE
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.parameters import Minutes, Parameters, Percent, Samples, fraction
from stepscope.rules.parts.promql import OF_GPU, Alert, PrometheusRules, Scraping, compared, looked_up, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.steady_growth import LongGrowth, known
from stepscope.rules.parts.topics import Effect

SHARE = "run_instance_gpu:stepscope_gpu_memory_used:ratio"
LOWEST = "run_instance_gpu:stepscope_gpu_memory_used:min_ratio"
GROWTH = "run_instance_gpu:stepscope_gpu_memory_leak:growth_ratio"

SLOW = 1.2  # times the warm-up: slow caches fill until then ...
FAST = 2  # ... but not by this many times `increase`


@dataclass(frozen=True)
class GPUMemoryLeakParameters(Parameters):
    increase: Annotated[Percent, "the rule fires when this share of a GPU's memory filled up steadily"] = 2
    patience: Annotated[Samples, "decisions begin after this many samples"] = 1200
    warm_up: Annotated[
        Minutes, "alerts are about growth after this time of a run: caches fill until then"
    ] = 60


@rule
class GPUMemoryLeak(FollowsMemory[GPUMemoryLeakParameters]):
    """Estimates no seconds lost: a leak costs nothing until it ends the run."""

    subject = "Steadily growing GPU memory"
    question = "Does the memory of a GPU fill up steadily, until the run fails?"
    description = (
        "Follows the lowest memory use of each GPU over the run. A warm-up, a larger batch or an evaluation "
        "makes it jump once. Tensors that are kept by accident at every step make it grow steadily."
    )
    recommendation = (
        "Look for tensors that outlive their step: losses summed up without .item() or .detach(), outputs "
        "kept in lists, caches without a bound, graphs kept by retain_graph. "
        "torch.cuda.memory._record_memory_history shows where the remaining memory was allocated."
    )
    topic = "GPU memory"
    bands = Bands("GPU", [Worst("growth by {} of the memory")])
    view = "memory"
    effect = Effect.RISK
    growing = 0

    def judge(self, view: Filling) -> Judgement:
        enough = view.read & (view.samples > self.parameters.patience)
        return judgement(enough, (view.growth, view.growth > fraction(self.parameters.increase)))

    def judge_live(self, view: Filling, sample_interval: float) -> Judgement:
        judged = self.judge(view)
        (growth, holds) = judged.conditions[0]
        soon, late = self._warmed_up(sample_interval)
        is_fast = growth > fraction(FAST * self.parameters.increase)
        lasts = (view.samples > late) | (view.samples > soon) & is_fast
        return judgement(judged.enough, (growth, holds & lasts))

    def finding(self, gpus: list[dict[str, Any]]) -> str:
        fired = [gpu for gpu in gpus if gpu["triggered"]]
        if not fired:
            if levelled := [f"{gpu['gpu']} of {gpu['node']}" for gpu in gpus if gpu["levelled_off"]]:
                return f"The memory of {levelled[0]} grew steadily for a time, then levelled off."
            return "No GPU's memory grew steadily."
        worst = max(fired, key=lambda gpu: (gpu["points_per_hour"] or 0.0, gpu["triggered"]))
        sentence = f"The memory of {worst['gpu']} of {worst['node']} "
        if worst["points_per_hour"] is None:
            return f"{sentence}grew steadily in {worst['triggered']} scans, but not at the end."
        more = "; that of no other GPU does" if len(gpus) > 1 else ""
        if len(fired) > 1:
            more = f"; so does that of {others_of(len(fired) - 1, len(gpus), 'GPU')}"
        return (
            f"{sentence}grows by {percent(worst['points_per_hour'])} of its size per hour; it is "
            f"{percent(worst['percent'])} full now, "
            f"and will be full in {duration(worst['full_in_seconds'])}{more}."
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules for growth in each sixth of `patience`, or of 6 or 36 times as long."""
        parameters = self.parameters
        soon, late = self._warmed_up(scraping.sample_interval)
        readings = scraping.held(MEMORY_READINGS)
        return PrometheusRules(
            targets=readings,
            every=self._growth.every(scraping),
            records=self._growth.records(share_in_use(scraping), scraping),
            alerts=[
                Alert(
                    f"{GROWTH} > {ratio(parameters.increase)}"
                    f" * ({FAST} - {FAST - 1} * ({readings} > bool {late:.12g}))\n"
                    f"  and {readings} > {soon:.12g}",
                    summary=f"The memory of {WHERE} fills up steadily",
                    description=f"In run {{{{ $labels.run }}}}, the used memory of {WHERE} has grown "
                    "steadily, by {{ $value | humanizePercentage }} of its total memory so far "
                    f"(fires above {parameters.increase:g} %)."
                    + looked_up(f"{SHARE}{{}}", OF_GPU, " Now {{ .Value | humanizePercentage }} are in use.")
                    + compared(SHARE, "GPUs"),
                    keep_firing=600,
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Filling]:
        readings = now.held(MEMORY_READINGS, scraping.hold)
        growth = now.recorded(GROWTH)
        labels = list(growth)
        view = Filling(column(readings, labels), np.ones(len(labels), bool), growth=column(growth, labels))
        return Scraped(labels, view, self._growth.recorded(now, scraping))

    def _warmed_up(self, sample_interval: float) -> tuple[float, float]:
        """Returns the samples of a run from which on fast growth is no cache's, and from which on none is."""
        soon = self._growth.warmed_up(sample_interval)
        return soon, soon + (SLOW - 1) * 60 * self.parameters.warm_up / sample_interval

    @property
    def _growth(self) -> LongGrowth:
        chosen = self.parameters
        return LongGrowth(
            SHARE, LOWEST, GROWTH, chosen.increase, chosen.patience, chosen.warm_up, MEMORY_READINGS
        )

    def details(
        self, run: RunMeasurements, name: str, node: MemoryOfNode, growth: Growth
    ) -> list[dict[str, Any]]:
        columns = (growth.level, growth.slope, growth.full_in)
        return [
            {
                "percent": known(100 * level),
                "points_per_hour": known(100 * 3600 * slope),
                "full_in_seconds": known(seconds),
            }
            for level, slope, seconds in zip(*(values.tolist() for values in columns), strict=True)
        ]
