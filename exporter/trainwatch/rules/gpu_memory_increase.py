"""GPUMemoryIncrease: the memory that a GPU uses has grown within a short time.

Source: SageMaker Debugger's GPUMemoryIncrease, which compares each moving average with the one a reading
before: growth spread over more than a reading was never seen. Here it is compared with the lowest of the
last `horizon`.
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
    increase: Annotated[Percent, "the moving average rose by more than so many points of the memory"] = 5
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000
    window: Annotated[Window, "moving averages are over this many readings"] = 10
    horizon: Annotated[Horizon, "the rise is counted from the lowest moving average of so long"] = 1


@rule
class GPUMemoryIncrease(Rule[GPUMemoryIncreaseParameters, Rises]):
    """It warns of a run that may die for want of memory; no seconds are lost yet."""

    parameters_type = GPUMemoryIncreaseParameters
    subject = "A sudden rise of GPU memory"
    question = "Does a GPU suddenly use much more memory?"
    description = (
        "Follows the moving average of each GPU's used memory. A steep rise in the middle of a run means "
        "larger inputs, or tensors that are kept: the run may end for want of memory."
    )
    recommendation = (
        "Look for tensors that outlive their step (losses summed without .item(), lists of outputs) and for "
        "inputs of growing length; where memory is only kept for re-use, there is nothing to mend."
    )
    topic = "GPU memory"
    distance = 2
    view = "memory"
    effect = Effect.RISK

    @property
    def measure(self) -> MemoryRise:
        its = self.parameters
        return MemoryRise(its.window, its.horizon, its.patience, its.increase)

    def judge(self, view: Rises) -> Judgement:
        return judgement(view.enough, (view.rise, view.rise > fraction(self.parameters.increase)))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Moving averages are at least of what lies between two scrapes, and one a scrape."""
        its = self.parameters
        window, whole = scraping.window(its.window), its.patience >= its.window
        horizon = time_span(scraping.reach(60 * its.horizon))
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
                    f"{RISE} > {ratio(its.increase)} and {READINGS} > {its.patience}",
                    summary=f"{WHERE} suddenly uses much more memory",
                    description=f"In run {{{{ $labels.run }}}}, the used memory of {WHERE} rose by "
                    f"{{{{ $value | humanizePercentage }}}} of all its memory within {its.horizon:g} min "
                    f"(fires above {its.increase:g} %).",
                    keep_firing=300,  # a rise is over when it is seen
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Rises]:
        its = self.parameters
        seconds, whole = scraping.window(its.window), its.patience >= its.window
        sums, counts = (
            scraped.gained(now, f"{MEMORY_SAMPLES}_{part}", "", seconds, whole) for part in ("sum", "count")
        )
        lows = lowest(now.recorded_over(MEAN, scraping.reach(60 * its.horizon)))
        rise = both(now.recorded(MEAN), lows, lambda late, low: _rounded(late - low))
        readings, labels = now(READINGS), list(rise)
        view = Rises(column(readings, labels) > its.patience, column(rise, labels))
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
        its = self.parameters
        most = max((gpu.readings.count for _, _, gpu in gpus), default=0)
        if not most:
            return "The memory of no GPU was read."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("readings of a GPU", most, its.patience)
        if status is Status.HEALTHY:
            return (
                f"No GPU's used memory rose by more than {its.increase:g} points within {its.horizon:g} min."
            )
        node, label, gpu = max(gpus, key=lambda item: item[2].largest)
        return (
            f"The used memory of {label} of {node} rose by {gpu.largest:.1f} points "
            f"within {its.horizon:g} min, and reached {percent(100 * gpu.readings.max)}."
        )


def _details(gpus: list[tuple[str, str, RiseOfGpu]]) -> dict[str, Any]:
    """Returns Debugger's box plot of each GPU whose memory rose by too much, in percent."""
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
    """Rounds to millionths, as PromQL does: a half upwards."""
    return math.floor(value * 1e6 + 0.5) / 1e6 if math.isfinite(value) else value
