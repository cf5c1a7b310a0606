"""ThermalThrottling: a GPU is too hot to run at full speed.

Source: our own threshold for the driver's counters of thermal throttling: NVML's "SW thermal slowdown" and
"HW thermal slowdown". DCGM adds them up as its thermal violation. Throttling by the power limit is normal
for a busy GPU, so it is only in the details.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.rates import rates
from trainwatch.measurements.scraped import Moment, Scraped, column, of_run, summed
from trainwatch.measurements.throttling import HeldDown, ThrottledGpu, Throttling
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.gpus import GPUS, WHERE, JudgedGpu, for_each_run, judged_gpus
from trainwatch.rules.judgement import Judgement, Tallies, judgement
from trainwatch.rules.parameters import Parameters, Percent, Samples, fraction
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio, time_span
from trainwatch.rules.registry import rule
from trainwatch.status import Status
from trainwatch.words import count, duration, exact_percent, too_few

SHARE = "run_instance_gpu:trainwatch_gpu_thermal_throttle:ratio"
THROTTLED = "trainwatch_gpu_throttle_seconds_total"
BY_HEAT = 'reason=~"sw_thermal|hw_thermal"'
RECENT = 5 * MINUTE  # the driver's counters do not start with the run


@dataclass(frozen=True)
class ThermalThrottlingParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the time of a GPU"] = 5
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 120


@rule
class ThermalThrottling(Rule[ThermalThrottlingParameters, HeldDown]):
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

    @property
    def measure(self) -> Throttling:
        return Throttling()

    def judge(self, view: HeldDown) -> Judgement:
        share = view.ratio
        return judgement(
            view.readings > self.parameters.patience, (share, share > fraction(self.parameters.threshold))
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters = self.parameters
        recent = f"rate({THROTTLED}{{{BY_HEAT}}}[{time_span(RECENT)}])"
        return PrometheusRules(
            targets=GPUS,
            every=2 * MINUTE,
            records=[Record(SHARE, for_each_run(f"sum without (reason) ({recent})"))],
            alerts=[
                Alert(
                    f"{SHARE} > {ratio(parameters.threshold)} and {GPUS} > {parameters.patience}",
                    summary=f"Thermal throttling of {WHERE}",
                    description=f"In run {{{{ $labels.run }}}}, heat throttled {WHERE} for "
                    "{{ $value | humanizePercentage }} of the last 5 minutes "
                    f"(fires above {parameters.threshold:g} %).",
                    keep_firing=300,
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[HeldDown]:
        """Returns the throttled share of the last minutes."""
        readings = now(GPUS)
        share = of_run(now, readings, summed(rates(now, THROTTLED, BY_HEAT, RECENT, of_run=False), "reason"))
        labels = list(share)
        view = HeldDown(column(readings, labels), np.ones(len(labels)), column(share, labels))
        return Scraped(labels, view, readings, {SHARE: share})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        gpus = judged_gpus(run.facts, nodes, tallies)
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(gpus, status),
            tallies.triggered,
            tallies.triggered,
            sum(max((gpu.readings for gpu in node.gpus), default=0) for node in nodes.values()),
            max((gpu.measured.seconds_lost for gpu in gpus if gpu.tally.triggered), default=0.0),
            details={"gpus": [_details(gpu) for gpu in gpus]},
        )

    def _finding(self, gpus: list[JudgedGpu[ThrottledGpu]], status: Status) -> str:
        most = max((gpu.measured.readings for gpu in gpus), default=0)
        if not most:
            return "No GPU reported how long heat throttled it."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("readings of a GPU", most, self.parameters.patience)
        fired = [gpu for gpu in gpus if gpu.tally.triggered]
        hottest = max(fired or gpus, key=lambda gpu: gpu.measured.percent)
        worst = hottest.measured
        sentence = f"Heat throttled {hottest.name} for {exact_percent(worst.percent)} of the time"
        if fired:
            sentence += f" ({duration(worst.heat)}), at up to {worst.hottest:.0f} °C"
        if len(fired) > 1:
            sentence += f", and {count(len(fired) - 1, 'more GPU')}"
        return f"{sentence}."


def _details(gpu: JudgedGpu[ThrottledGpu]) -> dict[str, Any]:
    throttled = gpu.measured
    return {
        "node": gpu.node,
        "gpu": gpu.label,
        "triggered": gpu.tally.triggered,
        "seconds": throttled.seconds,
        "heat_seconds": throttled.heat,
        "heat_percent": throttled.percent,
        "power_seconds": throttled.power,
        "highest_celsius": None if np.isnan(throttled.hottest) else throttled.hottest,
        "highest_clock_hertz": throttled.highest_clock or None,
    }
