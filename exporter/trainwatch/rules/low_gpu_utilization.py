"""LowGPUUtilization: a GPU is under-used, or its utilisation fluctuates.

Source: SageMaker Debugger's LowGPUUtilization: the 95th and 5th percentile of the last `window` readings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from trainwatch.measurements.box_plot import box_plot
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.recent_readings import LastReadings, Recent, RecentReadings
from trainwatch.measurements.scraped import (
    GPU_SAMPLES,
    CountedWindow,
    Moment,
    Scraped,
    column,
    enough_readings,
    share_of_window,
)
from trainwatch.measurements.sketch import RatioSketch
from trainwatch.measurements.usage import GpuUsage, Usage
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.gpus import GOING_ON, WHERE
from trainwatch.rules.judgement import Judgement, Tallies, Tally, judgement
from trainwatch.rules.other_exporters import GPU, OtherExporters
from trainwatch.rules.parameters import Parameters, Percent, Samples, Window
from trainwatch.rules.promql import (
    MINUTE,
    Alert,
    PrometheusRules,
    Record,
    Scraping,
    at_most,
    ratio,
    share_at_most,
)
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import ANY_TOPIC, IDLE_GPUS
from trainwatch.runs.model import labelled
from trainwatch.status import Status
from trainwatch.words import percent, too_few

LOW = "run_instance_gpu:trainwatch_gpu_low_utilization:ratio"
IDLE = "run_instance_gpu:trainwatch_gpu_idle_utilization:ratio"

UNDER_UTILISED = partial(Alert, summary=f"{WHERE} is under-utilised", labels={"trouble": "under-utilised"})
FLUCTUATING = partial(
    Alert, summary=f"The utilisation of {WHERE} fluctuates", labels={"trouble": "fluctuating"}
)


@dataclass(frozen=True)
class LowGPUUtilizationParameters(Parameters):
    threshold_p95: Annotated[Percent, "under-utilised: the 95th percentile is below this utilisation"] = 70
    threshold_p5: Annotated[Percent, "fluctuating: the 5th percentile is below this utilisation"] = 10
    window: Annotated[Window, "percentiles are over this many of a GPU's last readings"] = 500
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000


@rule
class LowGPUUtilization(Rule[LowGPUUtilizationParameters, RecentReadings | CountedWindow]):
    """Seconds lost: the time for which the GPU that idled most, of those that fired, did nothing."""

    parameters_type = LowGPUUtilizationParameters
    subject = "Idle GPUs"
    topic = ANY_TOPIC  # whatever costs time makes GPUs idle
    symptom = IDLE_GPUS
    question = "Is a GPU under-used, or does its utilisation fluctuate?"
    description = (
        "Looks at the last readings of each GPU. It is under-utilised when even its busiest moments are low, "
        "and fluctuates when it is busy at times and nearly idle at others."
    )
    recommendation = (
        "Find out what the GPU waits for: data, storage, communication, or synchronisation with the host. "
        "If nothing delays it, use a larger batch or a smaller GPU."
    )
    view = "gpus"
    is_symptom = True

    @property
    def measure(self) -> Recent:
        return Recent(("gpu",), self.parameters.window, self.parameters.patience)

    @property
    def details_of(self) -> tuple[Usage]:
        return (Usage(),)

    def judge(self, view: RecentReadings | CountedWindow) -> Judgement:
        p95, p5 = self.parameters.threshold_p95, self.parameters.threshold_p5
        idle, idles = view.below("gpu", 5, p5)
        return judgement(view.enough, view.below("gpu", 95, p95), (idle, idles & view.above("gpu", 95, p95)))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: a percentile is below a threshold if more than its share of the samples is.

        Runs that have ended are not judged, because their last window contains fewer and fewer samples.
        """
        parameters = self.parameters
        window, whole = scraping.window(parameters.window), parameters.patience >= parameters.window
        enough = f"{GPU_SAMPLES}_count > {parameters.patience}"
        p95 = at_most(parameters.threshold_p95, "threshold_p95")
        p5 = at_most(parameters.threshold_p5, "threshold_p5")
        return PrometheusRules(
            every=2 * MINUTE,
            targets=f"{GPU_SAMPLES}_count",
            records=[
                Record(LOW, share_at_most(GPU_SAMPLES, p95, window, whole)),
                Record(IDLE, share_at_most(GPU_SAMPLES, p5, window, whole)),
            ],
            alerts=[
                UNDER_UTILISED(
                    f"{LOW} > 0.95 and {enough}\n  {GOING_ON}",
                    description=f"{WHERE} was used {parameters.threshold_p95:g} % or less in "
                    "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }} "
                    "(fires above 95 %).",
                ),
                FLUCTUATING(
                    f"{IDLE} > 0.05\n  and {LOW} <= 0.95\n  and {enough}\n  {GOING_ON}",
                    description=f"{WHERE} was used {parameters.threshold_p5:g} % or less in "
                    "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }} "
                    "(fires above 5 %), though it was busy in others.",
                    # A long step or evaluation is short, but this alert must end before its causes: those
                    # are kept for a few minutes after the end of a run.
                    keep_firing=2 * MINUTE,
                ),
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        parameters = self.parameters
        p95, p5 = (others.percentile(quantile, GPU, parameters.window) for quantile in (0.95, 0.05))
        used = others.in_use(max(parameters.window, parameters.patience))
        readings = f"of the readings of {WHERE} are at or below {{{{ $value | humanizePercentage }}}}"
        return PrometheusRules(
            targets=GPU,
            alerts=[
                UNDER_UTILISED(
                    f"{p95} < {ratio(parameters.threshold_p95)}\n  and {used}",
                    description=f"95 % {readings} (fires below {parameters.threshold_p95:g} %).",
                ),
                FLUCTUATING(
                    f"{p5} < {ratio(parameters.threshold_p5)}\n"
                    f"  and {p95} > {ratio(parameters.threshold_p95)}\n"
                    f"  and {used}",
                    description=f"5 % {readings} (fires below {parameters.threshold_p5:g} %), though it is "
                    "busy at other times.",
                ),
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[CountedWindow]:
        parameters = self.parameters
        seconds, whole = scraping.window(parameters.window), parameters.patience >= parameters.window
        low, idle = (
            share_of_window(now, GPU_SAMPLES, bound, seconds, whole)
            for bound in (parameters.threshold_p95, parameters.threshold_p5)
        )
        readings = now(f"{GPU_SAMPLES}_count")
        labels = list(low)
        enough = enough_readings(now, labels, parameters.patience)
        shares = {
            ("gpu", parameters.threshold_p95): column(low, labels),
            ("gpu", parameters.threshold_p5): column(idle, labels),
        }
        return Scraped(labels, CountedWindow(enough, shares), readings, {LOW: low, IDLE: idle})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        usage = run.of(Usage())
        idle = [
            gpu.idle_readings
            for name, node in usage.items()
            for column, gpu in enumerate(node.gpus)
            if tallies.of(name, column).triggered
        ]
        status = status_of(tallies.triggered, tallies.judged)
        return Verdict(
            status,
            self._finding(run, tallies, status),
            tallies.triggered,
            tallies.triggered,
            sum(node.gpu_readings for node in usage.values()),
            max(idle, default=0.0) * run.facts.interval,
            details=self._details(run, tallies),
        )

    def _finding(self, run: RunMeasurements, tallies: Tallies, status: Status) -> str:
        most = max((node.gpu_readings for node in run.of(Usage()).values()), default=0)
        if not most:
            return "No GPU was seen."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("readings of a GPU", most, self.parameters.patience)
        if status is Status.HEALTHY:
            return f"Every GPU was busy enough in every window of {self.parameters.window} readings."
        fired = [
            f"{label} of {node} was {_trouble(gpu, tally)}"
            for node, usage in run.of(Usage()).items()
            for number, (label, gpu) in enumerate(labelled(run.facts, node, usage.gpus))
            if (tally := tallies.of(node, number)).triggered
        ]
        others = f"; so were {len(fired) - 1} more GPUs" if len(fired) > 2 else ""
        return f"{' and '.join(fired[:2]) if len(fired) == 2 else fired[0]}{others}."

    def _details(self, run: RunMeasurements, tallies: Tallies) -> dict[str, Any]:
        """Returns Debugger's box plot of each GPU that fired, in percent."""
        details: dict[str, Any] = {}
        times = []
        for node, recent in run.of(self.measure).items():
            usage = run.nodes[node][Usage()].gpus
            for number, (label, last) in enumerate(labelled(run.facts, node, recent.gpus)):
                tally = tallies.of(node, number)
                if tally.triggered:
                    box = _box(usage[number].utilisation, last, tally)
                    details.setdefault(node, {})[label] = box
                    times.append(tally.last_fired)
        if times:
            details["last_timestamp"] = int(max(times) * 1e6)
        return details


def _trouble(gpu: GpuUsage, tally: Tally) -> str:
    """Returns the trouble of a GPU in words."""
    troubles = [
        f"{word} in {count} of {tally.judged} scans"
        for word, count in zip(("under-utilised", "fluctuating"), tally.conditions, strict=True)
        if count
    ]
    return f"{' and '.join(troubles)} (mean {percent(100 * gpu.utilisation.mean)})"


def _box(readings: RatioSketch, last: LastReadings, tally: Tally) -> dict[str, float | int]:
    under_utilised, fluctuating = tally.conditions
    return {
        "gpu_max": round(100 * readings.max, 4),
        "gpu_95": round(100 * last.percentile(95), 4),
        "gpu_5": round(100 * last.percentile(5), 4),
        **box_plot(readings),
        "under_utilised": under_utilised,
        "fluctuating": fluctuating,
    }
