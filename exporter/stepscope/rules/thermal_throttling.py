"""ThermalThrottling: a GPU is too hot to run at full speed.

Source: our own threshold for the driver's counters of thermal throttling: NVML's "SW thermal slowdown" and
"HW thermal slowdown". DCGM adds them up as its thermal violation. Throttling by the power limit is normal
for a busy GPU, so it is only in the details.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from stepscope.common.words import duration, exact_percent, others, others_of
from stepscope.measurements.measure import Portion
from stepscope.measurements.scraped import Moment, Scraped, Window
from stepscope.measurements.throttling import THROTTLING, ThrottledGpu
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.expressions import Expression, Gain, Record
from stepscope.rules.parts.gpus import GPUS, WHERE, Every, ForEachRun, Judged
from stepscope.rules.parts.judgement import Judgement, too_large, view_of_shares
from stepscope.rules.parts.other_exporters import OtherExporters
from stepscope.rules.parts.parameters import LIVE_WINDOW, LiveMinutes, Parameters, Percent, Samples
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping, compared, looked_up, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.tallied import Tallied
from stepscope.runs.model import RunFacts

SHARE = "run_instance_gpu:stepscope_gpu_thermal_throttle:ratio"
THROTTLED = "stepscope_gpu_throttle_seconds_total"
HOT = "instance_gpu:thermal_throttle:avg_ratio"  # of readings of other exporters
BY_HEAT = 'reason=~"sw_thermal|hw_thermal"'
RECENT = 5 * MINUTE  # for a run that is younger than the live window


@dataclass(frozen=True)
class ThermalThrottlingParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the time of a GPU"] = 5
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 120
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class ThermalThrottling(Tallied[ThermalThrottlingParameters, Portion, ThrottledGpu]):
    """Seconds lost: throttled time x the missing share of the highest clock during that time."""

    subject = "Heat"
    question = "Is a GPU slowed down because it is too hot?"
    description = (
        "Adds up the time for which the driver throttled a GPU's clocks because of heat. In a job of many "
        "GPUs that wait for each other, one hot GPU slows down all of them."
    )
    recommendation = (
        "Check the cooling: fans, dust, air flow, the room's temperature, the machine's place in its rack. "
        "Until then, a lower power limit (nvidia-smi -pl) keeps the GPUs equally fast."
    )
    view = "health"

    about_gpus = True
    audience = "platform"
    any_process = True
    counted = "readings of a GPU"
    unseen = "No GPU reported how long heat throttled it."
    bands = Bands("GPU", [Worst("{} of the time")])
    measure = THROTTLING

    def judge(self, view: Portion) -> Judgement:
        return too_large(view, self.parameters)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters = self.parameters
        # The live window, otherwise one for younger runs: the counters do not start with the run.
        lately, recently = (
            ForEachRun(self._share(window), scraping) & (scraping.held(GPUS) > window.samples)
            for window in map(scraping.last, (MINUTE * parameters.live_window, RECENT))
        )
        return PrometheusRules(
            targets=scraping.held(GPUS) > 0,
            every=4 * MINUTE,
            records=[Record(SHARE, lately | recently)],
            alerts=[
                Alert(
                    f"{SHARE} > {ratio(parameters.threshold)}\n"
                    f"  and {scraping.held(GPUS)} > {parameters.patience}",
                    summary=f"Thermal throttling of {WHERE}",
                    description=f"In run {{{{ $labels.run }}}}, heat throttled {WHERE} for "
                    f"{{{{ $value | humanizePercentage }}}} of the last {parameters.live_window:g} minutes "
                    f"(fires above {parameters.threshold:g} %).{compared(SHARE, 'GPUs')}"
                    + looked_up(
                        "stepscope_gpu_temperature_celsius{}",
                        ("cluster", "job", "instance", "gpu"),
                        " It is at {{ .Value | humanize }} °C.",
                    ),
                )
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        """Returns the share of the readings at which heat lowered the clocks."""
        parameters = self.parameters
        seconds = MINUTE * parameters.live_window
        enough = others.always(f"{others.hot} >= 0", others.scraping.window(parameters.patience))
        return PrometheusRules(
            targets=others.hot,
            every=4 * MINUTE,
            records=[Record(HOT, f"avg_over_time({others.past(others.hot, seconds)}) and ({enough})")],
            alerts=[
                Alert(
                    f"{HOT} > {ratio(parameters.threshold)}",
                    summary=f"Thermal throttling of {WHERE}",
                    description=f"Heat throttled {WHERE} at {{{{ $value | humanizePercentage }}}} of the "
                    f"scrapes of the last {parameters.live_window:g} minutes "
                    f"(fires above {parameters.threshold:g} %).",
                )
            ],
        )

    def _share(self, window: Window) -> Expression:
        heat = Gain(f"{THROTTLED}{{{BY_HEAT}}}", window, whole=True, of_run=False)
        return heat.sum_without("reason") / window.seconds

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        return view_of_shares(now.held(GPUS, scraping.hold), now.recorded(SHARE))

    def seen(self, gpu: ThrottledGpu) -> int:
        return gpu.held.seen

    def finding(self, facts: RunFacts, judged: Every[ThrottledGpu], fired: Every[ThrottledGpu]) -> str:
        hottest = max(fired or judged, key=lambda gpu: gpu.measured.percent)
        worst = hottest.measured
        sentence = f"Heat throttled {hottest.name} for {exact_percent(worst.percent)} of the time"
        if fired:
            sentence += f" ({duration(worst.held.part)}), at up to {worst.hottest:.0f} °C"
        if len(fired) > 1:
            sentence += f"; it throttled {others_of(len(fired) - 1, len(judged), 'GPU')} too"
        sentence += others([gpu.measured.percent for gpu in judged if gpu is not hottest], "GPU")
        return f"{sentence}."

    def lost(self, facts: RunFacts, fired: Judged[ThrottledGpu]) -> float:
        return fired.measured.seconds_lost

    def details(self, facts: RunFacts, one: Judged[ThrottledGpu]) -> dict[str, Any]:
        gpu = one.measured
        return {
            "seconds": gpu.held.whole,
            "heat_seconds": gpu.held.part,
            "heat_percent": gpu.percent,
            "power_seconds": gpu.power,
            "highest_celsius": None if np.isnan(gpu.hottest) else gpu.hottest,
            "highest_clock_hertz": gpu.highest_clock or None,
        }
