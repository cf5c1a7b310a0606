"""GPUMemoryIncrease: the used memory of a GPU has grown within a short time, to more than ever before.

Source: SageMaker Debugger's GPUMemoryIncrease, which compares each moving average with the previous one and
misses growth over several readings. Intermittent use of memory also rises: in evaluations, with batches of
varying length, or in an allocator's plateaus. So a rise counts only once it has lasted, and only as far as it
exceeds all that the memory was before: its own variation.
"""

import math
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import number, percent
from stepscope.measurements.measure import Measure, RunMeasurements
from stepscope.measurements.memory_rise import DIGITS, MemoryRises, RiseOfGpu, Rises, Spans
from stepscope.measurements.scraped import (
    MEMORY_READINGS,
    MEMORY_SAMPLES,
    Moment,
    Scraped,
    both,
    column,
    highest,
    lowest,
    without,
)
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Gain, Record, time_span
from stepscope.rules.parts.gpus import WHERE, Judged, judged_gpus
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.other_exporters import ON_GPU, OtherExporters
from stepscope.rules.parts.parameters import Bounds, Minutes, Parameters, Percent, Samples, Window, fraction
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
from stepscope.rules.parts.starting import Beginning, is_starting
from stepscope.rules.parts.topics import Effect

MEAN = "run_instance_gpu:stepscope_gpu_memory:mean"
ROSE = "instance_gpu:gpu_memory:rise"  # of readings of other exporters
RISE = "run_instance_gpu:stepscope_gpu_memory:rise"
LOADS = inf  # seconds until the first step in which a model may be loaded: however late

Horizon = Annotated[float, Bounds(0, 60, "minutes")]


@dataclass(frozen=True)
class GPUMemoryIncreaseParameters(Parameters):
    increase: Annotated[Percent, "the moving average rose by more than this many points of the memory"] = 5
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU before the rise"] = 1000
    window: Annotated[Window, "moving averages are over this many readings"] = 10
    horizon: Annotated[Horizon, "memory rises within this time"] = 1
    hold: Annotated[Minutes, "and then stays above all that it was before for this time"] = 3
    baseline: Annotated[Minutes, "before: this time up to the rise"] = 60


@rule
class GPUMemoryIncrease(Rule[GPUMemoryIncreaseParameters, Rises]):
    """Warns that a run may run out of memory; no seconds are lost yet."""

    subject = "A sudden rise of GPU memory"
    question = "Does a GPU suddenly use much more memory?"
    description = (
        "Follows the moving average of each GPU's used memory. A steep rise in the middle of a run that "
        "lasts means larger inputs, or tensors that are kept: the run may run out of memory."
    )
    recommendation = (
        "Look for tensors that outlive their step (losses summed without .item(), lists of outputs) and for "
        "inputs of growing length. Memory that an allocator only keeps for reuse needs no fix."
    )
    topic = "GPU memory"
    distance = 2
    bands = Bands("node", [Worst("a rise by {} of the memory")])
    view = "memory"
    effect = Effect.RISK

    about_gpus = True

    @property
    def measure(self) -> Measure[MemoryRises]:
        asked = self.parameters
        spans = Spans(asked.window, asked.horizon, asked.hold, asked.baseline)
        return Measure(MemoryRises, spans, asked.patience, asked.increase)

    def debugger_parameters(self) -> dict[str, float | int | str | None]:
        parameters = self.parameters
        return {name: getattr(parameters, name) for name in ("increase", "patience", "window", "horizon")}

    def judge(self, view: Rises) -> Judgement:
        increase = fraction(self.parameters.increase)
        debugger = None if view.above_lowest is None else view.above_lowest > increase
        return judgement(view.enough, (view.lasting, view.lasting > increase), debugger=debugger)

    def is_usual(self, beginning: Beginning) -> bool:
        seconds = 60 * (self.parameters.hold + self.parameters.horizon) + 2 * MINUTE
        return beginning.is_starting(seconds, LOADS)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules; moving averages cover at least one scrape interval, one per evaluation."""
        parameters = self.parameters
        window = scraping.last(scraping.window(parameters.window))
        whole = parameters.patience >= parameters.window
        hold, before, baseline = self._spans(scraping)
        return PrometheusRules(
            targets=scraping.held(MEMORY_READINGS),
            every=MINUTE,
            records=[
                Record(
                    MEAN,
                    Gain(f"{MEMORY_SAMPLES}_sum", window, whole=whole)
                    / (Gain(MEMORY_READINGS, window, whole=whole) > 0),
                ),
                Record(
                    RISE,
                    f"""
                    round(
                      min_over_time({MEAN}[{time_span(hold)}])
                        -
                      max_over_time({MEAN}[{time_span(baseline)}] offset {time_span(before)}),
                      0.000001
                    )
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{RISE} > {ratio(parameters.increase)}\n"
                    f"  and {scraping.held(MEMORY_READINGS, before)} > {parameters.patience}\n"
                    f"  unless ignoring (gpu) ({is_starting(scraping, before + MINUTE, LOADS)})",
                    summary=f"{WHERE} suddenly uses much more memory",
                    description=f"In run {{{{ $labels.run }}}}, the used memory of {WHERE} rose by "
                    "{{ $value | humanizePercentage }} of its total memory within "
                    f"{parameters.horizon:g} min, beyond all that it was in the "
                    f"{parameters.baseline:g} min before, and stayed there for {parameters.hold:g} min "
                    f"(fires above {parameters.increase:g} %)."
                    + looked_up(f"{MEAN}{{}}", OF_GPU, " Now {{ .Value | humanizePercentage }} are in use.")
                    + compared(RISE, "GPUs"),
                    keep_firing=300,  # a rise is over by the time it is detected
                )
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        """Returns the rule over readings instead of moving averages."""
        parameters = self.parameters
        _, before, _ = self._spans(others.scraping)
        low = f"min_over_time({others.past(others.memory, MINUTE * parameters.hold)})"
        high = f"max_over_time({others.past(others.memory, MINUTE * parameters.baseline, before)})"
        earlier = time_span(before + others.scraping.window(max(parameters.patience, 1)))
        before_rise = f"last_over_time(({others.memory})[1m:15s] offset {earlier})"
        return PrometheusRules(
            targets=others.memory,
            every=2 * MINUTE,
            records=[Record(ROSE, f"{low}\n  - {ON_GPU} {high}\n  and {ON_GPU} {before_rise}")],
            alerts=[
                Alert(
                    f"{ROSE} > {ratio(parameters.increase)}",
                    summary=f"{WHERE} suddenly uses much more memory",
                    description=f"The used memory of {WHERE} rose by {{{{ $value | humanizePercentage }}}} "
                    f"of its total memory, beyond all that it was in the {parameters.baseline:g} min before "
                    f"(fires above {parameters.increase:g} %).",
                    keep_firing=300,
                )
            ],
        )

    def _spans(self, scraping: Scraping) -> tuple[float, float, float]:
        """Returns seconds: the range of `hold`, how long ago the baseline ended, and its range."""
        parameters = self.parameters
        hold, baseline = (scraping.reach(60 * span) for span in (parameters.hold, parameters.baseline))
        return hold, 60 * (parameters.hold + parameters.horizon), baseline

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Rises]:
        hold, before, baseline = self._spans(scraping)
        lows = lowest(now.recorded_over(MEAN, hold))
        highs = highest(now.recorded_over(MEAN, baseline, before))
        rise = both(lows, highs, lambda low, high: _rounded(low - high))
        earlier, labels = now.held(MEMORY_READINGS, scraping.hold, ago=before), list(rise)
        starting = is_starting(scraping, before + MINUTE, LOADS).value(now)
        goes_on = np.array([without(gpu, "gpu") not in starting for gpu in labels], bool)
        view = Rises(goes_on & (column(earlier, labels) > self.parameters.patience), column(rise, labels))
        return Scraped(labels, view, {RISE: rise})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        gpus = judged_gpus(run.facts, nodes, tallies)
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(gpus, status),
            tallies.triggered,
            sum(gpu.measured.risen for gpu in gpus),
            sum(max((gpu.readings.count for gpu in node.gpus), default=0) for node in nodes.values()),
            details=_details(gpus),
            debugger_triggered=sum(tallies.of(name).debugger_triggered for name in nodes),
        )

    def _finding(self, gpus: list[Judged[RiseOfGpu]], status: Status) -> str:
        parameters = self.parameters
        most = max((gpu.measured.readings.count for gpu in gpus), default=0)
        if not most:
            return "No GPU's memory was read."
        if status is Status.NOT_ENOUGH_DATA:
            return (
                f"Too few readings of a GPU: {number(most)}, and a decision needs more than "
                f"{number(parameters.patience)}, and {parameters.horizon + parameters.hold:g} min after them."
            )
        lasted = (
            f"within {parameters.horizon:g} min, beyond all that it was in the {parameters.baseline:g} min "
            f"before, and stayed there for {parameters.hold:g} min"
        )
        if status is Status.HEALTHY:
            return f"No GPU's used memory rose by more than {parameters.increase:g} points {lasted}."
        worst = max(gpus, key=lambda gpu: gpu.measured.lasting)
        rise = worst.measured
        return (
            f"The used memory of {worst.name} rose by {rise.lasting:.1f} points {lasted}: "
            f"from at most {percent(rise.before)} to at least {percent(rise.after)}. "
            f"It reached {percent(100 * rise.readings.max)}."
        )


def _details(gpus: list[Judged[RiseOfGpu]]) -> dict[str, Any]:
    """Returns Debugger's box plot in percent, of each GPU whose memory rose too much."""
    details: dict[str, Any] = {}
    risen = [gpu for gpu in gpus if gpu.measured.risen]
    for judged in risen:
        gpu = judged.measured
        details.setdefault(judged.node, {})[judged.label] = {
            "increase": round(gpu.largest, DIGITS),
            "gpu_max": round(100 * gpu.readings.max, DIGITS),
            **gpu.readings.box_plot(5),
            "violations": gpu.risen,
            "lasting_increase": round(gpu.lasting, DIGITS),
        }
    if risen:
        details["last_timestamp"] = int(max(gpu.measured.last_risen for gpu in risen) * 1e6)
    return details


def _rounded(value: float) -> float:
    """Rounds to millionths as PromQL does: halves upwards."""
    return math.floor(value * 1e6 + 0.5) / 1e6 if math.isfinite(value) else value
