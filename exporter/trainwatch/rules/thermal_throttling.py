"""ThermalThrottling: a GPU is too hot to run at full speed.

Source: our own bound on the driver's own counters of clocks held down by heat (NVML's "SW thermal slowdown"
and "HW thermal slowdown", which DCGM sums up as its thermal violation). Clocks held down by the power limit
are how a busy GPU works: they are in the details only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.increases import Last, increases
from trainwatch.measurements.state import GpuByGpu, GpuState, Scans
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.parameters import Parameters, Percent, Samples
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio
from trainwatch.rules.registry import rule
from trainwatch.rules.shared_rules import GPUS, of_run
from trainwatch.runs.model import NodeSamples, RunFacts, Times, gpu_labels
from trainwatch.words import count, duration, too_few


@dataclass(frozen=True)
class ThermalThrottlingParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the time of a GPU"] = 5
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 120


@rule
class ThermalThrottling(Rule[ThermalThrottlingParameters, "GpuByGpu[OneGpu]"]):
    """Seconds lost: time held down by heat x the share of the highest clock that was missing meanwhile."""

    parameters_type = ThermalThrottlingParameters
    subject = "Heat"
    question = "Is a GPU slowed down because it is too hot?"
    description = (
        "Adds up the time for which the driver held a GPU's clocks down because of heat. In a job of many "
        "GPUs that wait for each other, one hot GPU slows all of them."
    )
    recommendation = (
        "Look after the cooling: fans, dust, air flow, the room's temperature, the machine's place in its "
        "rack. Until then a lower power limit (nvidia-smi -pl) keeps the GPUs even."
    )
    view = "health"

    def node(self) -> GpuByGpu[OneGpu]:
        return GpuByGpu(lambda: OneGpu(self.parameters))

    def judge(self, nodes: Mapping[str, GpuByGpu[OneGpu]], facts: RunFacts) -> Verdict:
        gpus = [gpu for node in nodes.values() for gpu in node.gpus]
        triggered = sum(gpu.triggered for gpu in gpus)
        fired = [gpu for gpu in gpus if gpu.triggered]
        status = status_of(triggered, sum(gpu.judged for gpu in gpus))
        return Verdict(
            status,
            self._finding(nodes, facts, status),
            triggered,
            triggered,
            sum(max((gpu.readings for gpu in node.gpus), default=0) for node in nodes.values()),
            max((gpu.seconds_lost for gpu in fired), default=0.0),
            details={"gpus": _details(nodes, facts)},
        )

    def _finding(self, nodes: Mapping[str, GpuByGpu[OneGpu]], facts: RunFacts, status: str) -> str:
        gpus = [
            (f"{label} of {name}", gpu)
            for name, node in nodes.items()
            for label, gpu in zip(gpu_labels(facts, name, len(node.gpus)), node.gpus, strict=True)
        ]
        most = max((gpu.readings for _, gpu in gpus), default=0)
        if not most:
            return "No GPU told for how long heat held its clocks down."
        if status == "not judged":
            patience = self.parameters.patience
            return too_few("readings of a GPU", most, patience)
        fired = [item for item in gpus if item[1].triggered]
        label, worst = max(fired or gpus, key=lambda item: item[1].share)
        sentence = f"Heat held the clocks of {label} down for {worst.share:.1f} % of the time"
        if fired:
            sentence += f" ({duration(worst.heat)}), at up to {worst.hottest:.0f} degrees"
        if len(fired) > 1:
            sentence += f", and those of {count(len(fired) - 1, 'more GPU')}"
        return f"{sentence}."

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Over the last minutes: the driver's counters know of no run."""
        its = self.parameters
        record = "run_instance_gpu:trainwatch_gpu_thermal_throttle:ratio"
        reasons = 'reason=~"sw_thermal|hw_thermal"'
        where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
        return PrometheusRules(
            targets=GPUS,
            every=2 * MINUTE,
            records=[
                Record(
                    record,
                    of_run(
                        f"sum without (reason) (rate(trainwatch_gpu_throttle_seconds_total{{{reasons}}}[5m]))"
                    ),
                )
            ],
            alerts=[
                Alert(
                    f"{record} > {ratio(its.threshold)} and {GPUS} > {its.patience}",
                    summary=f"{where} is slowed down by heat",
                    description=f"In run {{{{ $labels.run }}}}, heat held the clocks of {where} down for "
                    "{{ $value | humanizePercentage }} of the last 5 minutes "
                    f"(fires above {its.threshold:g} %).",
                    keep_firing=300,
                )
            ],
        )


class OneGpu(GpuState):
    """Seconds since the first reading of the counter: all of them, and those held down."""

    def __init__(self, parameters: ThermalThrottlingParameters) -> None:
        self.parameters = parameters
        self.last_heat, self.last_power, self.last_time = Last(), Last(), Last()
        self.readings = self.at_last_scan = self.judged = self.triggered = 0
        self.seconds = self.heat = self.power = 0.0
        self.heat_clock = self.heat_with_clock = 0.0  # hertz x seconds held down, and these seconds
        self.highest_clock = 0.0
        self.hottest = np.nan

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> None:
        there = ~np.isnan(samples.gpu_thermal_throttle_seconds[:, column])
        heat = increases(samples.gpu_thermal_throttle_seconds[there, column], self.last_heat, anew=False)
        elapsed = increases(samples.times[there], self.last_time, anew=False)
        heat_until = self.heat + np.concatenate(([0.0], np.cumsum(heat)))
        seconds_until = self.seconds + np.concatenate(([0.0], np.cumsum(elapsed)))
        ends = np.concatenate(([0], np.cumsum(there)))[scans]
        so_far = self.readings + ends
        judged = (np.diff(so_far, prepend=self.at_last_scan) > 0) & (so_far > self.parameters.patience)
        hot = 100 * heat_until[ends] > self.parameters.threshold * seconds_until[ends]
        self.judged += int(np.count_nonzero(judged))
        self.triggered += int(np.count_nonzero(judged & hot))
        if len(so_far):
            self.at_last_scan = int(so_far[-1])
        self.readings += int(np.count_nonzero(there))
        self.heat, self.seconds = float(heat_until[-1]), float(seconds_until[-1])
        self._note(samples, column, there, heat)

    def _note(self, samples: NodeSamples, number: int, there: np.ndarray, heat: Times) -> None:
        """What is told besides: power, temperature, and how slow the GPU was meanwhile."""
        power = samples.gpu_power_throttle_seconds[:, number]
        self.power += float(increases(power[~np.isnan(power)], self.last_power, anew=False).sum())
        celsius = samples.gpu_temperature_celsius[:, number]
        self.hottest = float(np.fmax.reduce(celsius, initial=self.hottest))
        clock = samples.gpu_clock_hertz[there, number]
        known = ~np.isnan(clock)
        if known.any():
            self.highest_clock = max(self.highest_clock, float(clock[known].max()))
            self.heat_clock += float(heat[known] @ clock[known])
            self.heat_with_clock += float(heat[known].sum())

    @property
    def share(self) -> float:
        """Percentage of the time; two reasons that hold at the same time count once."""
        return min(100.0, 100 * self.heat / self.seconds) if self.seconds else 0.0

    @property
    def seconds_lost(self) -> float:
        if not self.highest_clock:
            return 0.0
        return max(0.0, self.heat_with_clock - self.heat_clock / self.highest_clock)


def _details(nodes: Mapping[str, GpuByGpu[OneGpu]], facts: RunFacts) -> list[dict[str, Any]]:
    return [
        {
            "node": name,
            "gpu": label,
            "triggered": gpu.triggered,
            "seconds": gpu.seconds,
            "heat_seconds": gpu.heat,
            "heat_percent": gpu.share,
            "power_seconds": gpu.power,
            "highest_celsius": None if np.isnan(gpu.hottest) else gpu.hottest,
            "highest_clock_hertz": gpu.highest_clock or None,
        }
        for name, node in nodes.items()
        for label, gpu in zip(gpu_labels(facts, name, len(node.gpus)), node.gpus, strict=True)
    ]
