"""LowGPUUtilization: a GPU is under-used, or its utilisation fluctuates.

Source: SageMaker Debugger's LowGPUUtilization: the 95th and 5th percentile of the last `window` readings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from stepscope.common.words import duration, others_of, percent
from stepscope.measurements.held_idle import HELD_IDLE
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.recent_readings import RecentReadings
from stepscope.measurements.scraped import CountedWindow
from stepscope.measurements.usage import GpuUsage
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.expressions import Record
from stepscope.rules.parts.gpu_readings import FollowsReadings
from stepscope.rules.parts.gpus import WHERE, Judged
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.other_exporters import ON_GPU, OtherExporters
from stepscope.rules.parts.parameters import Parameters, Percent, Samples, Window, fraction
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.topics import ANY_TOPIC

LOW = "run_instance_gpu:stepscope_gpu_low_utilization:ratio"
IDLE = "run_instance_gpu:stepscope_gpu_idle_utilization:ratio"
# From readings of other exporters.
P95, LOWEST = "instance_gpu:utilization:p95", "instance_gpu:utilization:lowest"
USED = "instance_gpu:in_use:readings"

PENDING = 8 * MINUTE  # a checkpoint or an evaluation fills at most two evaluations in a row

UNDER_UTILISED = partial(Alert, summary=f"{WHERE} is under-utilised", labels={"trouble": "under-utilised"})
FLUCTUATING = partial(
    Alert,
    summary=f"The utilisation of {WHERE} fluctuates",
    labels={"trouble": "fluctuating"},
    pending=PENDING,
)


@dataclass(frozen=True)
class LowGPUUtilizationParameters(Parameters):
    threshold_p95: Annotated[Percent, "under-utilised: the 95th percentile is below this utilisation"] = 70
    threshold_p5: Annotated[Percent, "fluctuating: the 5th percentile is below this utilisation"] = 10
    window: Annotated[Window, "percentiles are over this many of a GPU's last readings"] = 500
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000
    live_share: Annotated[
        Percent, "fluctuating, in alerts and bands: below threshold_p5 in more than this share of the window"
    ] = 15


@rule
class LowGPUUtilization(FollowsReadings[LowGPUUtilizationParameters]):
    subject = "Idle GPUs"
    topic = ANY_TOPIC  # whatever costs time makes GPUs idle
    question = "Is a GPU under-used, or does its utilisation fluctuate?"
    description = (
        "Looks at the last readings of each GPU. It is under-utilised when even its busiest moments are low, "
        "and fluctuates when it is busy at times and nearly idle at others."
    )
    recommendation = (
        "Find out what the GPU waits for: data, storage, communication, or synchronisation with the host. "
        "If nothing delays it, use a larger batch or a smaller GPU."
    )
    bands = Bands(
        "GPU",
        [Worst("a 95th percentile of {}", lowest=True), Worst("{} in its least busy samples", lowest=True)],
    )
    view = "gpus"
    details_of: ClassVar = (*FollowsReadings.details_of, HELD_IDLE)
    unseen = "No GPU's utilisation was read."
    recorded: ClassVar = {LOW: ("gpu", "threshold_p95"), IDLE: ("gpu", "threshold_p5")}

    def judge(self, view: RecentReadings | CountedWindow) -> Judgement:
        return self._judged(view, 5)

    def judge_live(self, view: RecentReadings | CountedWindow, sample_interval: float) -> Judgement:
        return self._judged(view, self.parameters.live_share)

    def _judged(self, view: RecentReadings | CountedWindow, idle_share: float) -> Judgement:
        p95, p5 = self.parameters.threshold_p95, self.parameters.threshold_p5
        idle, idles = view.below("gpu", idle_share, p5)
        return judgement(view.enough, view.below("gpu", 95, p95), (idle, idles & view.above("gpu", 95, p95)))

    def alerts(self, enough: str) -> list[Alert]:
        parameters = self.parameters
        return [
            UNDER_UTILISED(
                f"{LOW} > 0.95 and {enough}",
                description=f"{WHERE} was used {parameters.threshold_p95:g} % or less in "
                "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }} "
                "(fires above 95 %).",
            ),
            FLUCTUATING(
                f"{IDLE} > {ratio(parameters.live_share)}\n  and {LOW} <= 0.95\n  and {enough}",
                description=f"{WHERE} was used {parameters.threshold_p5:g} % or less in "
                "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }} "
                f"(fires above {parameters.live_share:g} %), though it was busy in others.",
                # It keeps firing for no longer: its causes, which silence it, end soon after their run.
            ),
        ]

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        parameters = self.parameters
        p95, lowest = (
            others.percentile(share, others.utilization, parameters.window)
            for share in (0.95, fraction(parameters.live_share))
        )
        used = others.in_use(max(parameters.window, parameters.patience))
        readings = f"of the readings of {WHERE} are at or below {{{{ $value | humanizePercentage }}}}"
        return PrometheusRules(
            targets=others.utilization,
            every=2 * MINUTE,
            records=[Record(P95, p95), Record(LOWEST, lowest), Record(USED, used)],
            alerts=[
                UNDER_UTILISED(
                    f"{P95} < {ratio(parameters.threshold_p95)} and {ON_GPU} {USED}",
                    description=f"95 % {readings} (fires below {parameters.threshold_p95:g} %).",
                ),
                FLUCTUATING(
                    f"{LOWEST} < {ratio(parameters.threshold_p5)}\n"
                    f"  and {ON_GPU} {P95} > {ratio(parameters.threshold_p95)}\n"
                    f"  and {ON_GPU} {USED}",
                    description=f"{parameters.live_share:g} % {readings} "
                    f"(fires below {parameters.threshold_p5:g} %), though it is busy at other times.",
                ),
            ],
        )

    def datapoints(self, run: RunMeasurements) -> int:
        return sum(recent.most_readings for recent in run.of(self.measure).values())

    def finding(self, run: RunMeasurements, fired: Sequence[Judged[GpuUsage]], gpus: int) -> str:
        if not fired:
            return f"Every GPU was busy enough in every window of {self.parameters.window} readings."
        said = [f"{gpu.name} was {_trouble(gpu, self._unused(run, gpu))}" for gpu in fired]
        others = f"; so were {others_of(len(said) - 1, gpus, 'GPU')}" if len(said) > 2 else ""
        return f"{' and '.join(said[:2]) if len(said) == 2 else said[0]}{others}."

    def _unused(self, run: RunMeasurements, gpu: Judged[GpuUsage]) -> float:
        """Returns the longest time without work, if it fills a window and is most of the GPU's idle time."""
        longest = run.of(HELD_IDLE)[gpu.node].gpus[gpu.column].longest
        idle = gpu.measured.idle_readings * run.facts.interval
        return longest if longest > max(self.parameters.window * run.facts.interval, idle / 2) else 0.0

    def details(self, run: RunMeasurements, fired: Sequence[Judged[GpuUsage]]) -> dict[str, Any]:
        details: dict[str, Any] = {}
        for gpu in fired:
            last = run.nodes[gpu.node][self.measure].gpus[gpu.column]
            under_utilised, fluctuating = gpu.tally.conditions
            details.setdefault(gpu.node, {})[gpu.label] = {
                "gpu_max": round(100 * gpu.measured.utilisation.max, 4),
                "gpu_95": round(100 * last.percentile(95), 4),
                "gpu_5": round(100 * last.percentile(5), 4),
                **gpu.measured.utilisation.box_plot(),
                "under_utilised": under_utilised,
                "fluctuating": fluctuating,
            }
        return details


def _trouble(gpu: Judged[GpuUsage], unused: float) -> str:
    """Returns the trouble of a GPU in words; `unused`: its longest time without work, 0 if that is usual."""
    troubles = [
        f"{word} in {count} of {gpu.tally.judged} scans"
        for word, count in zip(("under-utilised", "fluctuating"), gpu.tally.conditions, strict=True)
        if count
    ]
    mean = percent(100 * gpu.measured.utilisation.mean)
    longest = f", not used for up to {duration(unused)}" if unused else ""
    return f"{' and '.join(troubles)} (mean utilisation {mean}{longest})"
