"""GPUMemoryIncrease: the used memory of a GPU has grown within a short time.

Source: SageMaker Debugger's GPUMemoryIncrease, which compares each moving average with the previous one and
misses growth over several readings. Here it is compared with the lowest one of the last `horizon`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from trainwatch.measurements import scraped
from trainwatch.measurements.box_plot import box_plot
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.memory_rise import DIGITS, MemoryRise, RiseOfGpu, Rises
from trainwatch.measurements.scraped import MEMORY_SAMPLES, Moment, Scraped, both, column, divided, lowest
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.gpus import WHERE
from trainwatch.rules.judgement import Judgement, Tallies, judgement
from trainwatch.rules.parameters import Bounds, Parameters, Percent, Samples, Window, fraction
from trainwatch.rules.promql import (
    MINUTE,
    Alert,
    PrometheusRules,
    Record,
    Scraping,
    gained,
    ratio,
    time_span,
)
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import Effect
from trainwatch.runs.model import labelled
from trainwatch.status import Status
from trainwatch.words import percent, too_few

READINGS = f"{MEMORY_SAMPLES}_count"
MEAN = "run_instance_gpu:trainwatch_gpu_memory:mean"
RISE = "run_instance_gpu:trainwatch_gpu_memory:rise"

Horizon = Annotated[float, Bounds(0, 60, "minutes")]


@dataclass(frozen=True)
class GPUMemoryIncreaseParameters(Parameters):
    increase: Annotated[Percent, "the moving average rose by more than this many points of the memory"] = 5
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000
    window: Annotated[Window, "moving averages are over this many readings"] = 10
    horizon: Annotated[Horizon, "the rise is measured from the lowest moving average of this period"] = 1


@rule
class GPUMemoryIncrease(Rule[GPUMemoryIncreaseParameters, Rises]):
    """Warns that a run may run out of memory; no seconds are lost yet."""

    parameters_type = GPUMemoryIncreaseParameters
    subject = "A sudden rise of GPU memory"
    question = "Does a GPU suddenly use much more memory?"
    description = (
        "Follows the moving average of each GPU's used memory. A steep rise in the middle of a run means "
        "larger inputs, or tensors that are kept: the run may run out of memory."
    )
    recommendation = (
        "Look for tensors that outlive their step (losses summed without .item(), lists of outputs) and for "
        "inputs of growing length. Memory that an allocator only keeps for reuse needs no fix."
    )
    topic = "GPU memory"
    distance = 2
    view = "memory"
    effect = Effect.RISK

    @property
    def measure(self) -> MemoryRise:
        parameters = self.parameters
        return MemoryRise(parameters.window, parameters.horizon, parameters.patience, parameters.increase)

    def judge(self, view: Rises) -> Judgement:
        return judgement(view.enough, (view.rise, view.rise > fraction(self.parameters.increase)))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules; moving averages cover at least one scrape interval, one per scrape."""
        parameters = self.parameters
        window, whole = scraping.window(parameters.window), parameters.patience >= parameters.window
        horizon = time_span(scraping.reach(60 * parameters.horizon))
        return PrometheusRules(
            targets=READINGS,
            every=MINUTE,
            records=[
                Record(
                    MEAN,
                    f"{gained(f'{MEMORY_SAMPLES}_sum', window, whole)}\n"
                    f"  / {gained(f'{MEMORY_SAMPLES}_count', window, whole)}",
                ),
                Record(RISE, f"round({MEAN} - min_over_time({MEAN}[{horizon}]), 0.000001)"),
            ],
            alerts=[
                Alert(
                    f"{RISE} > {ratio(parameters.increase)} and {READINGS} > {parameters.patience}",
                    summary=f"{WHERE} suddenly uses much more memory",
                    description=f"In run {{{{ $labels.run }}}}, the used memory of {WHERE} rose by "
                    "{{ $value | humanizePercentage }} of its total memory within "
                    f"{parameters.horizon:g} min "
                    f"(fires above {parameters.increase:g} %).",
                    keep_firing=300,  # a rise is over by the time it is detected
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Rises]:
        parameters = self.parameters
        seconds, whole = scraping.window(parameters.window), parameters.patience >= parameters.window
        sums, counts = (
            scraped.gained(now, f"{MEMORY_SAMPLES}_{part}", "", seconds, whole) for part in ("sum", "count")
        )
        lows = lowest(now.recorded_over(MEAN, scraping.reach(60 * parameters.horizon)))
        rise = both(now.recorded(MEAN), lows, lambda late, low: _rounded(late - low))
        readings, labels = now(READINGS), list(rise)
        view = Rises(column(readings, labels) > parameters.patience, column(rise, labels))
        return Scraped(labels, view, readings, {MEAN: both(sums, counts, divided), RISE: rise})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        gpus = [
            (name, label, gpu)
            for name, node in nodes.items()
            for label, gpu in labelled(run.facts, name, node.gpus)
        ]
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(gpus, status),
            tallies.triggered,
            sum(gpu.risen for _, _, gpu in gpus),
            sum(max((gpu.readings.count for gpu in node.gpus), default=0) for node in nodes.values()),
            details=_details(gpus),
        )

    def _finding(self, gpus: list[tuple[str, str, RiseOfGpu]], status: Status) -> str:
        parameters = self.parameters
        most = max((gpu.readings.count for _, _, gpu in gpus), default=0)
        if not most:
            return "No GPU's memory was read."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("readings of a GPU", most, parameters.patience)
        if status is Status.HEALTHY:
            return (
                f"No GPU's used memory rose by more than {parameters.increase:g} points "
                f"within {parameters.horizon:g} min."
            )
        node, label, gpu = max(gpus, key=lambda item: item[2].largest)
        return (
            f"The used memory of {label} of {node} rose by {gpu.largest:.1f} points "
            f"within {parameters.horizon:g} min, and reached {percent(100 * gpu.readings.max)}."
        )


def _details(gpus: list[tuple[str, str, RiseOfGpu]]) -> dict[str, Any]:
    """Returns Debugger's box plot in percent, of each GPU whose memory rose too much."""
    details: dict[str, Any] = {}
    risen = [item for item in gpus if item[2].risen]
    for node, label, gpu in risen:
        details.setdefault(node, {})[label] = {
            "increase": round(gpu.largest, DIGITS),
            "gpu_max": round(100 * gpu.readings.max, DIGITS),
            **box_plot(gpu.readings, 5),
            "violations": gpu.risen,
        }
    if risen:
        details["last_timestamp"] = int(max(gpu.last_risen for _, _, gpu in risen) * 1e6)
    return details


def _rounded(value: float) -> float:
    """Rounds to millionths as PromQL does: halves upwards."""
    return math.floor(value * 1e6 + 0.5) / 1e6 if math.isfinite(value) else value
