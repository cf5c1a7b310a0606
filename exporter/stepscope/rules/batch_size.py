"""BatchSize: nothing delays the GPUs of a node, but they have too little to do.

Source: SageMaker Debugger's BatchSize: 95th percentiles of the last `window` samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from stepscope.common.words import others_of, percent
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.recent_readings import Quantity, RecentReadings
from stepscope.measurements.scraped import CountedWindow
from stepscope.measurements.usage import USAGE, GpuUsage
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.expressions import Record, time_span
from stepscope.rules.parts.gpu_readings import FollowsReadings
from stepscope.rules.parts.gpus import WHERE, Judged
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.other_exporters import ON_GPU, ON_NODE, SCRAPES, OtherExporters, below
from stepscope.rules.parts.parameters import Parameters, Percent, Samples, Window
from stepscope.rules.parts.promql import Alert, PrometheusRules
from stepscope.rules.parts.registry import rule

LOW_GPU = "run_instance_gpu:stepscope_small_batch_gpu:ratio"
LOW_MEMORY = "run_instance_gpu:stepscope_small_batch_gpu_memory:ratio"
LOW_CPU = "run_instance:stepscope_small_batch_cpu:ratio"
# From readings of other exporters.
CORES, SMALL = "instance:node_cpu_utilization:mean_ratio", "instance_gpu:small_batch:p95"

LITTLE_USED = partial(Alert, severity="info", summary=f"{WHERE}, its memory and the cores are little used")


@dataclass(frozen=True)
class BatchSizeParameters(Parameters):
    cpu_threshold_p95: Annotated[Percent, "the 95th percentile of the mean of all cores is below"] = 70
    gpu_threshold_p95: Annotated[Percent, "the 95th percentile of the GPU's utilisation is below"] = 70
    gpu_memory_threshold_p95: Annotated[Percent, "the 95th percentile of the GPU's used memory is below"] = 70
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000
    window: Annotated[Window, "percentiles are over this many of the last readings"] = 500


@rule
class BatchSize(FollowsReadings[BatchSizeParameters]):
    reads_cores = True
    subject = "Small batches"
    question = "Would a larger batch make better use of the GPU?"
    description = (
        "Looks for GPUs with low utilisation while their memory has room and the cores are not busy either: "
        "nothing delays them, but each step gives them little to do."
    )
    recommendation = "Increase the batch size, or train on a smaller machine."
    bands = Bands("GPU", [Worst("a 95th percentile of {}", lowest=True)])
    view = "batch"
    # A symptom, as a single pinned core may be the cause, and hardly shows in the mean.
    unseen = "No GPU was read together with its memory and the cores."
    # The GPU comes first: it is decisive most often.
    recorded: ClassVar = {
        LOW_GPU: ("gpu", "gpu_threshold_p95"),
        LOW_MEMORY: ("gpu_memory", "gpu_memory_threshold_p95"),
        LOW_CPU: ("cpu", "cpu_threshold_p95"),
    }

    def judge(self, view: RecentReadings | CountedWindow) -> Judgement:
        parameters = self.parameters
        value, holds = view.below("gpu", 95, parameters.gpu_threshold_p95)
        others: tuple[tuple[Quantity, float], ...] = (
            ("gpu_memory", parameters.gpu_memory_threshold_p95),
            ("cpu", parameters.cpu_threshold_p95),
        )
        for quantity, bound in others:
            if holds.any():
                holds = holds & view.below(quantity, 95, bound)[1]
        return judgement(view.enough, (value, holds))

    def alerts(self, enough: str) -> list[Alert]:
        return [
            LITTLE_USED(
                f"{LOW_GPU} > 0.95\n  and {LOW_MEMORY} > 0.95\n"
                f"  and ignoring (gpu) {LOW_CPU} > 0.95\n"
                f"  and {enough}",
                description=f"{WHERE} was used {self.parameters.gpu_threshold_p95:g} % or less in "
                "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }}, while "
                "its memory had room and the cores were not busy (fires above 95 % of each).",
            )
        ]

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        parameters = self.parameters
        seconds, interval = max(parameters.window, parameters.patience), others.scraping.interval
        window = max(others.scraping.window(parameters.window), SCRAPES * interval)
        gpu, memory = (
            others.percentile(0.95, reading, parameters.window)
            for reading in (others.utilization, others.memory)
        )
        cores = f"quantile_over_time(0.95, {CORES}[{time_span(others.scraping.reach(window))}])"
        return PrometheusRules(
            targets=others.utilization,
            records=[
                Record(CORES, others.mean_core),
                Record(
                    SMALL,
                    f"{below(gpu, parameters.gpu_threshold_p95)}\n"
                    f"  and {ON_GPU} {below(memory, parameters.gpu_memory_threshold_p95)}\n"
                    f"  and {ON_NODE} {below(cores, parameters.cpu_threshold_p95)}\n"
                    f"  and {ON_GPU} {others.in_use(seconds)}",
                ),
            ],
            alerts=[
                LITTLE_USED(
                    SMALL,
                    description=f"95 % of the readings of {WHERE} are at or below {{{{ $value | "
                    "humanizePercentage }}, while its memory has room and the cores are not busy.",
                )
            ],
        )

    def datapoints(self, run: RunMeasurements) -> int:
        return sum(node.samples for node in run.of(USAGE).values())

    def finding(self, run: RunMeasurements, fired: Sequence[Judged[GpuUsage]], gpus: int) -> str:
        if not fired:
            return "In each window a GPU, its memory or the cores were well used."
        worst = min(fired, key=lambda gpu: gpu.measured.utilisation.mean)
        others = f", like {others_of(len(fired) - 1, gpus, 'GPU')}" if len(fired) > 1 else ""
        busy, memory = worst.measured.utilisation.mean, worst.measured.memory.mean
        return (
            f"{worst.name} was little used in {worst.tally.triggered} of {worst.tally.judged} "
            f"scans{others}: it was busy for {percent(100 * busy)} of the time and used "
            f"{percent(100 * memory)} of its memory, while the cores were not busy either."
        )

    def details(self, run: RunMeasurements, fired: Sequence[Judged[GpuUsage]]) -> dict[str, Any]:
        details: dict[str, Any] = {}
        for gpu in fired:
            node = details.setdefault(gpu.node, {"cpu": run.nodes[gpu.node][USAGE].cpu.box_plot()})
            node[gpu.label] = {**gpu.measured.utilisation.box_plot(), "triggered": gpu.tally.triggered}
            node[f"{gpu.label}_memory"] = gpu.measured.memory.box_plot()
        return details
