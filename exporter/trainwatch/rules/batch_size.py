"""BatchSize: the node has nothing to wait for, and its GPUs have too little to do.

Source: SageMaker Debugger's BatchSize: 95th percentiles of the last `window` snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.box_plot import box_plot
from trainwatch.measurements.last_readings import Decisions, LastReadings, percentiles
from trainwatch.measurements.sketch import RatioSketch
from trainwatch.measurements.state import NodeState, Scans, State
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.low_gpu_utilization import gpu_labels
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
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import Floats, NodeSamples, RunFacts, Times
from trainwatch.words import too_few

GPU, MEMORY, CPU = range(3)  # what a reading consists of; the GPU first, because it decides most often


@dataclass(frozen=True)
class BatchSizeParameters(Parameters):
    cpu_threshold_p95: Annotated[Percent, "the 95th percentile of the mean of all cores is below"] = 70
    gpu_threshold_p95: Annotated[Percent, "the 95th percentile of the GPU's utilisation is below"] = 70
    gpu_memory_threshold_p95: Annotated[Percent, "the 95th percentile of the GPU's used memory is below"] = 70
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000
    window: Annotated[Window, "percentiles are over this many of the last readings"] = 500


@rule
class BatchSize(Rule[BatchSizeParameters, "SmallBatchNode"]):
    """Seconds lost: the time for which the GPU that idled most, of those that fired, did nothing."""

    parameters_type = BatchSizeParameters
    subject = "Small batches"
    question = "Would a larger batch make better use of the GPU?"
    description = (
        "Looks for GPUs that are used little while their memory has room and the cores are not busy either: "
        "nothing holds them up, each step only gives them little to do."
    )
    recommendation = "Increase the batch size, or train on a smaller machine."
    view = "batch"
    is_symptom = True  # one pinned core of many hardly shows in their mean, and is the cause then
    symptom = IDLE_GPUS

    def node(self) -> SmallBatchNode:
        return SmallBatchNode(self.parameters)

    def judge(self, nodes: Mapping[str, SmallBatchNode], facts: RunFacts) -> Verdict:
        gpus = [gpu for node in nodes.values() for gpu in node.gpus]
        triggered = sum(gpu.triggered for gpu in gpus)
        status = status_of(triggered, sum(gpu.judged for gpu in gpus))
        idle = [(1 - gpu.utilisation.mean) * gpu.utilisation.count for gpu in gpus if gpu.triggered]
        return Verdict(
            status,
            self._finding(nodes, facts, status),
            triggered,
            triggered,
            sum(node.snapshots for node in nodes.values()),
            max(idle, default=0.0) * facts.interval,
            details=_details(nodes, facts),
        )

    def _finding(self, nodes: Mapping[str, SmallBatchNode], facts: RunFacts, status: str) -> str:
        gpus = [gpu for node in nodes.values() for gpu in node.gpus]
        most = max((gpu.last.count for gpu in gpus), default=0)
        if not most:
            return "No GPU was read together with its memory and the cores."
        if status == "not judged":
            patience = self.parameters.patience
            return too_few("readings of a GPU", most, patience)
        if status == "quiet":
            return "In each window a GPU, its memory or the cores were well used."
        fired = [
            (gpu, f"{label} of {name}")
            for name, node in nodes.items()
            for label, gpu in zip(gpu_labels(facts, name, len(node.gpus)), node.gpus, strict=True)
            if gpu.triggered
        ]
        gpu, name = min(fired, key=lambda item: item[0].utilisation.mean)
        others = f" ({len(fired) - 1} more GPUs alike)" if len(fired) > 1 else ""
        return (
            f"{name} was busy for {100 * gpu.utilisation.mean:.0f} % of the time and used "
            f"{100 * gpu.memory.mean:.0f} % of its memory, while the cores were not busy either, "
            f"in {gpu.triggered} of {gpu.judged} scans{others}."
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """As LowGPUUtilization's, of three quantities."""
        its = self.parameters
        window, whole = scraping.window(its.window), its.patience >= its.window
        gpu, memory, cpu = (
            f"trainwatch_{name}_samples" for name in ("gpu_utilization", "gpu_memory", "cpu_utilization")
        )
        low_gpu = "run_instance_gpu:trainwatch_small_batch_gpu:ratio"
        low_memory = "run_instance_gpu:trainwatch_small_batch_gpu_memory:ratio"
        low_cpu = "run_instance:trainwatch_small_batch_cpu:ratio"
        bounds = {
            name: at_most(getattr(its, name), name)
            for name in ("gpu_threshold_p95", "gpu_memory_threshold_p95", "cpu_threshold_p95")
        }
        where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
        return PrometheusRules(
            every=2 * MINUTE,
            targets=f"{gpu}_count",
            records=[
                Record(low_gpu, share_at_most(gpu, bounds["gpu_threshold_p95"], window, whole)),
                Record(low_memory, share_at_most(memory, bounds["gpu_memory_threshold_p95"], window, whole)),
                Record(low_cpu, share_at_most(cpu, bounds["cpu_threshold_p95"], window, whole)),
            ],
            alerts=[
                Alert(
                    f"{low_gpu} > 0.95\n"
                    f"  and {low_memory} > 0.95\n"
                    f"  and ignoring (gpu) {low_cpu} > 0.95\n"
                    f"  and {gpu}_count > {its.patience}\n"
                    f"  {GOING_ON}",
                    severity="info",
                    summary=f"{where} has too little to do in each step",
                    description=f"{where} was used {its.gpu_threshold_p95:g} % or less in "
                    "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }}, while "
                    "its memory had room and the cores were not busy (fires above 95 % of each).",
                )
            ],
        )


class SmallBatchNode(NodeState):
    def __init__(self, parameters: BatchSizeParameters) -> None:
        self.parameters = parameters
        self.snapshots = 0
        self.cpu = RatioSketch()
        self.gpus: list[SmallBatchGpu] = []

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        self.snapshots += len(samples)
        self.cpu.add(samples.cpu_mean)
        while len(self.gpus) < samples.gpu.shape[1]:
            self.gpus.append(SmallBatchGpu(self.parameters))
        for number, gpu in enumerate(self.gpus):
            readings = np.stack((samples.gpu[:, number], samples.gpu_memory[:, number], samples.cpu_mean))
            gpu.observe(readings, samples.times, scans)


class SmallBatchGpu(State):
    """The last readings of a GPU with those of its memory and of the cores."""

    def __init__(self, parameters: BatchSizeParameters) -> None:
        self.last = LastReadings(3, parameters.window, parameters.patience)
        self.window = parameters.window
        self.bounds = {
            GPU: np.float32(parameters.gpu_threshold_p95 / 100),
            MEMORY: np.float32(parameters.gpu_memory_threshold_p95 / 100),
            CPU: np.float32(parameters.cpu_threshold_p95 / 100),
        }
        self.utilisation, self.memory = RatioSketch(), RatioSketch()
        self.judged = self.triggered = 0
        self.last_fired = np.nan

    def observe(self, readings: Floats, times: Times, scans: Scans) -> None:
        """`readings` is (3, n): GPU, MEMORY, CPU."""
        self.utilisation.add(readings[GPU])
        self.memory.add(readings[MEMORY])
        decisions = self.last.add(readings, times, scans)
        fired = decisions.times[self._all_low(decisions)]
        self.judged += len(decisions.ends)
        self.triggered += len(fired)
        if len(fired):
            self.last_fired = float(fired[-1])

    def _all_low(self, decisions: Decisions) -> NDArray[np.intp]:
        """The decisions for which all three percentiles are below their bounds."""
        left = np.arange(len(decisions.ends))
        for quantity, bound in self.bounds.items():
            if len(left):
                readings = decisions.history[quantity]
                (p95,) = percentiles(readings, decisions.ends[left], self.window, (95,))
                left = left[p95 < bound]
        return left


def _details(nodes: Mapping[str, SmallBatchNode], facts: RunFacts) -> dict[str, Any]:
    """Debugger's box plots of each node that fired, in percent: of its cores, and of each GPU that fired."""
    details: dict[str, Any] = {}
    for name, node in nodes.items():
        labels = gpu_labels(facts, name, len(node.gpus))
        fired = [(label, gpu) for label, gpu in zip(labels, node.gpus, strict=True) if gpu.triggered]
        if fired:
            details[name] = {"cpu": box_plot(node.cpu)}
        for label, gpu in fired:
            details[name][label] = {**box_plot(gpu.utilisation), "triggered": gpu.triggered}
            details[name][f"{label}_memory"] = box_plot(gpu.memory)
    times = [gpu.last_fired for node in nodes.values() for gpu in node.gpus if gpu.triggered]
    if times:
        details["last_timestamp"] = int(max(times) * 1e6)
    return details
