"""LowGPUUtilization: a GPU is hardly used, or used in fits and starts.

Source: SageMaker Debugger's LowGPUUtilization: the 95th and 5th percentile of the last `window` readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.box_plot import box_plot
from trainwatch.measurements.last_readings import LastReadings, percentiles
from trainwatch.measurements.sketch import RatioSketch
from trainwatch.measurements.state import GpuByGpu, GpuState, Scans
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.parameters import Parameters, Percent, Samples, Window
from trainwatch.rules.promql import (
    MINUTE,
    Alert,
    PrometheusRules,
    Record,
    Scraping,
    at_most,
    share_at_most,
)
from trainwatch.rules.registry import rule
from trainwatch.rules.shared_rules import GOING_ON
from trainwatch.rules.topics import ANY_TOPIC, IDLE_GPUS
from trainwatch.runs.model import Floats, NodeSamples, RunFacts, Times
from trainwatch.words import too_few


@dataclass(frozen=True)
class LowGPUUtilizationParameters(Parameters):
    threshold_p95: Annotated[Percent, "under-utilised: the 95th percentile is below this utilisation"] = 70
    threshold_p5: Annotated[Percent, "fluctuating: the 5th percentile is below this utilisation"] = 10
    window: Annotated[Window, "percentiles are over this many of a GPU's last readings"] = 500
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000


@rule
class LowGPUUtilization(Rule[LowGPUUtilizationParameters, "GpuByGpu[OneGpu]"]):
    """Seconds lost: the time for which the GPU that idled most, of those that fired, did nothing."""

    parameters_type = LowGPUUtilizationParameters
    subject = "Idle GPUs"
    question = "Is a GPU hardly used, or used in fits and starts?"
    description = (
        "Looks at the last readings of each GPU: it is under-utilised when even its busy moments are low, "
        "and fluctuates when it is busy at times and all but idle at others."
    )
    recommendation = (
        "Look for what the GPU waits for (data, storage, communication, synchronisation with the host); "
        "where nothing holds it up, use a larger batch or a smaller GPU."
    )
    view = "gpus"
    is_symptom = True
    topic = ANY_TOPIC  # from the GPU's side, whatever else costs time looks like this
    symptom = IDLE_GPUS

    def node(self) -> GpuByGpu[OneGpu]:
        return GpuByGpu(lambda: OneGpu(self.parameters))

    def judge(self, nodes: Mapping[str, GpuByGpu[OneGpu]], facts: RunFacts) -> Verdict:
        gpus = [gpu for node in nodes.values() for gpu in node.gpus]
        triggered = sum(gpu.triggered for gpu in gpus)
        status = status_of(triggered, sum(gpu.judged for gpu in gpus))
        idle = [(1 - gpu.readings.mean) * gpu.readings.count for gpu in gpus if gpu.triggered]
        return Verdict(
            status,
            self._finding(nodes, facts, status),
            triggered,
            triggered,
            sum(max((gpu.readings.count for gpu in node.gpus), default=0) for node in nodes.values()),
            max(idle, default=0.0) * facts.interval,
            details=_details(nodes, facts),
        )

    def _finding(self, nodes: Mapping[str, GpuByGpu[OneGpu]], facts: RunFacts, status: str) -> str:
        gpus = [gpu for node in nodes.values() for gpu in node.gpus]
        most = max((gpu.readings.count for gpu in gpus), default=0)
        if not most:
            return "No GPU was seen."
        if status == "not judged":
            patience = self.parameters.patience
            return too_few("readings of a GPU", most, patience)
        if status == "quiet":
            return f"Every GPU was busy enough in every window of {self.parameters.window} readings."
        fired = [
            f"{label} of {node} was {gpu.trouble}"
            for node, state in nodes.items()
            for label, gpu in zip(gpu_labels(facts, node, len(state.gpus)), state.gpus, strict=True)
            if gpu.triggered
        ]
        others = f"; so were {len(fired) - 1} more GPUs" if len(fired) > 2 else ""
        return f"{' and '.join(fired[:2]) if len(fired) == 2 else fired[0]}{others}."

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """A percentile is below a threshold where more than its share of the samples lies at or below it.

        Behind the end of a run its last window holds fewer and fewer samples: it is judged no more.
        """
        its = self.parameters
        histogram = "trainwatch_gpu_utilization_samples"
        window, whole = scraping.window(its.window), its.patience >= its.window
        low = "run_instance_gpu:trainwatch_gpu_low_utilization:ratio"
        idle = "run_instance_gpu:trainwatch_gpu_idle_utilization:ratio"
        where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
        enough = f"{histogram}_count > {its.patience}"
        p95 = at_most(its.threshold_p95, "threshold_p95")
        p5 = at_most(its.threshold_p5, "threshold_p5")
        return PrometheusRules(
            every=2 * MINUTE,
            targets=f"{histogram}_count",
            records=[
                Record(low, share_at_most(histogram, p95, window, whole)),
                Record(idle, share_at_most(histogram, p5, window, whole)),
            ],
            alerts=[
                Alert(
                    f"{low} > 0.95 and {enough}\n  {GOING_ON}",
                    summary=f"{where} is under-utilised",
                    description=f"{where} was used {its.threshold_p95:g} % or less in "
                    "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }} "
                    "(fires above 95 %).",
                    labels={"trouble": "under-utilised"},
                ),
                Alert(
                    f"{idle} > 0.05\n  and {low} <= 0.95\n  and {enough}\n  {GOING_ON}",
                    summary=f"{where} is used in fits and starts",
                    description=f"{where} was used {its.threshold_p5:g} % or less in "
                    "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }} "
                    "(fires above 5 %), though it was busy in others.",
                    # A long step or evaluation comes and goes; but behind the end of a run, causes are told
                    # for no longer than minutes, and this must be over by then.
                    keep_firing=2 * MINUTE,
                    labels={"trouble": "fluctuating"},
                ),
            ],
        )


class OneGpu(GpuState):
    """The last readings of a GPU, and what the scans made of them. A missing reading is none."""

    def __init__(self, parameters: LowGPUUtilizationParameters) -> None:
        self.parameters = parameters
        self.last = LastReadings(1, parameters.window, parameters.patience)
        self.readings = RatioSketch()
        self.judged = self.under_utilised = self.fluctuating = 0
        self.p95 = self.p5 = np.nan  # of the last window judged
        self.last_fired = np.nan

    @property
    def triggered(self) -> int:
        return self.under_utilised + self.fluctuating

    @property
    def trouble(self) -> str:
        """What is wrong with it, in words."""
        what = [
            f"{word} in {count} of {self.judged} scans"
            for word, count in (("under-utilised", self.under_utilised), ("fluctuating", self.fluctuating))
            if count
        ]
        return f"{' and '.join(what)} (mean {100 * self.readings.mean:.0f} %)"

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> None:
        readings = samples.gpu[:, column]
        self.readings.add(readings)
        self._judge(*self.last.add(readings[None], samples.times, scans))

    def _judge(self, history: Floats, ends: NDArray[np.intp], times: Times) -> None:
        if not len(ends):
            return
        p95, p5 = percentiles(history[0], ends, self.parameters.window, (95, 5))
        low = p95 < self.parameters.threshold_p95 / 100
        fits_and_starts = (p95 > self.parameters.threshold_p95 / 100) & (
            p5 < self.parameters.threshold_p5 / 100
        )
        self.judged += len(ends)
        self.under_utilised += int(np.count_nonzero(low))
        self.fluctuating += int(np.count_nonzero(fits_and_starts))
        self.p95, self.p5 = float(p95[-1]), float(p5[-1])
        fired = times[low | fits_and_starts]
        if len(fired):
            self.last_fired = float(fired[-1])


def _details(nodes: Mapping[str, GpuByGpu[OneGpu]], facts: RunFacts) -> dict[str, Any]:
    """Debugger's box plot of each GPU that fired, in percent: whiskers of 1.5 interquartile ranges."""
    details: dict[str, Any] = {}
    for name, node in nodes.items():
        labels = gpu_labels(facts, name, len(node.gpus))
        boxes = {label: _box(gpu) for label, gpu in zip(labels, node.gpus, strict=True) if gpu.triggered}
        if boxes:
            details[name] = boxes
    times = [gpu.last_fired for node in nodes.values() for gpu in node.gpus if gpu.triggered]
    if times:
        details["last_timestamp"] = int(max(times) * 1e6)
    return details


def _box(gpu: OneGpu) -> dict[str, float | int]:
    return {
        "gpu_max": round(100 * gpu.readings.max, 4),
        "gpu_95": round(100 * gpu.p95, 4),
        "gpu_5": round(100 * gpu.p5, 4),
        **box_plot(gpu.readings),
        "under_utilised": gpu.under_utilised,
        "fluctuating": gpu.fluctuating,
    }


def gpu_labels(facts: RunFacts, node: str, count: int) -> list[str]:
    """Names of the GPUs of a node, in the order of the columns of its samples: "GPU 0"."""
    known = next((item.gpus for item in facts.nodes if item.node == node), ())
    return [f"GPU {known[i].gpu if i < len(known) else i}" for i in range(count)]
