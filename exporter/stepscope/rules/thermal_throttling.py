"""ThermalThrottling: a GPU is too hot to run at full speed.

Source: our own threshold for the driver's counters of thermal throttling: NVML's "SW thermal slowdown" and
"HW thermal slowdown". DCGM adds them up as its thermal violation. Throttling by the power limit is normal
for a busy GPU, so it is only in the details.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import duration, exact_percent, others, others_of, too_few
from stepscope.measurements.measure import Portion, RunMeasurements
from stepscope.measurements.scraped import Moment, Scraped, Window
from stepscope.measurements.throttling import THROTTLING, ThrottledGpu
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Expression, Gain, Record
from stepscope.rules.parts.gpus import GPUS, WHERE, ForEachRun, JudgedGpu, judged_gpus
from stepscope.rules.parts.judgement import Judgement, Tallies, too_large, view_of_shares
from stepscope.rules.parts.other_exporters import OtherExporters
from stepscope.rules.parts.parameters import LIVE_WINDOW, LiveMinutes, Parameters, Percent, Samples
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping, compared, looked_up, ratio
from stepscope.rules.parts.registry import rule

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
class ThermalThrottling(Rule[ThermalThrottlingParameters, Portion]):
    """Seconds lost: throttled time x the missing share of the highest clock during that time."""

    parameters_type = ThermalThrottlingParameters
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
            targets=scraping.held(GPUS),
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

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        gpus = judged_gpus(run.facts, nodes, tallies)
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(gpus, status),
            tallies.triggered,
            tallies.triggered,
            sum(max((gpu.held.seen for gpu in node.gpus), default=0) for node in nodes.values()),
            max((gpu.measured.seconds_lost for gpu in gpus if gpu.tally.triggered), default=0.0),
            details={"gpus": [_details(gpu) for gpu in gpus]},
        )

    def _finding(self, gpus: list[JudgedGpu[ThrottledGpu]], status: Status) -> str:
        most = max((gpu.measured.held.seen for gpu in gpus), default=0)
        if not most:
            return "No GPU reported how long heat throttled it."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("readings of a GPU", most, self.parameters.patience)
        fired = [gpu for gpu in gpus if gpu.tally.triggered]
        hottest = max(fired or gpus, key=lambda gpu: gpu.measured.percent)
        worst = hottest.measured
        sentence = f"Heat throttled {hottest.name} for {exact_percent(worst.percent)} of the time"
        if fired:
            sentence += f" ({duration(worst.held.part)}), at up to {worst.hottest:.0f} °C"
        if len(fired) > 1:
            sentence += f"; it throttled {others_of(len(fired) - 1, len(gpus), 'GPU')} too"
        sentence += others([gpu.measured.percent for gpu in gpus if gpu is not hottest], "GPU")
        return f"{sentence}."


def _details(gpu: JudgedGpu[ThrottledGpu]) -> dict[str, Any]:
    throttled = gpu.measured
    return {
        "node": gpu.node,
        "gpu": gpu.label,
        "triggered": gpu.tally.triggered,
        "seconds": throttled.held.whole,
        "heat_seconds": throttled.held.part,
        "heat_percent": throttled.percent,
        "power_seconds": throttled.power,
        "highest_celsius": None if np.isnan(throttled.hottest) else throttled.hottest,
        "highest_clock_hertz": throttled.highest_clock or None,
    }
