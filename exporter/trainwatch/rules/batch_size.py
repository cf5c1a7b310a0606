"""BatchSize: nothing delays the GPUs of a node, but they have too little to do.

Source: SageMaker Debugger's BatchSize: 95th percentiles of the last `window` samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from trainwatch.measurements.box_plot import box_plot
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.recent_readings import Quantity, Recent, RecentReadings
from trainwatch.measurements.scraped import (
    CPU_SAMPLES,
    GPU_SAMPLES,
    MEMORY_SAMPLES,
    CountedWindow,
    Moment,
    Scraped,
    column,
    enough_readings,
    share_of_window,
    without,
)
from trainwatch.measurements.usage import GpuUsage, Usage
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.gpus import GOING_ON, WHERE
from trainwatch.rules.judgement import Judgement, Tallies, Tally, judgement
from trainwatch.rules.other_exporters import CPU, GPU, MEMORY, OtherExporters
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
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import labelled
from trainwatch.status import Status
from trainwatch.words import count, percent, too_few

LOW_GPU = "run_instance_gpu:trainwatch_small_batch_gpu:ratio"
LOW_MEMORY = "run_instance_gpu:trainwatch_small_batch_gpu_memory:ratio"
LOW_CPU = "run_instance:trainwatch_small_batch_cpu:ratio"

TOO_LITTLE_TO_DO = partial(Alert, severity="info", summary=f"{WHERE} has too little to do in each step")


@dataclass(frozen=True)
class BatchSizeParameters(Parameters):
    cpu_threshold_p95: Annotated[Percent, "the 95th percentile of the mean of all cores is below"] = 70
    gpu_threshold_p95: Annotated[Percent, "the 95th percentile of the GPU's utilisation is below"] = 70
    gpu_memory_threshold_p95: Annotated[Percent, "the 95th percentile of the GPU's used memory is below"] = 70
    patience: Annotated[Samples, "decisions begin after this many readings of a GPU"] = 1000
    window: Annotated[Window, "percentiles are over this many of the last readings"] = 500


@rule
class BatchSize(Rule[BatchSizeParameters, RecentReadings | CountedWindow]):
    """Seconds lost: the time for which the GPU that idled most, of those that fired, did nothing."""

    parameters_type = BatchSizeParameters
    subject = "Small batches"
    symptom = IDLE_GPUS
    question = "Would a larger batch make better use of the GPU?"
    description = (
        "Looks for GPUs with low utilisation while their memory has room and the cores are not busy either: "
        "nothing delays them, but each step gives them little to do."
    )
    recommendation = "Increase the batch size, or train on a smaller machine."
    view = "batch"
    is_symptom = True  # a single pinned core may be the cause, and hardly shows in the mean

    @property
    def measure(self) -> Recent:
        # The GPU comes first: it is decisive most often.
        return Recent(("gpu", "gpu_memory", "cpu"), self.parameters.window, self.parameters.patience)

    @property
    def details_of(self) -> tuple[Usage]:
        return (Usage(),)

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

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: as those of LowGPUUtilization, for three quantities."""
        parameters = self.parameters
        window, whole = scraping.window(parameters.window), parameters.patience >= parameters.window
        bounds = {
            name: at_most(getattr(parameters, name), name)
            for name in ("gpu_threshold_p95", "gpu_memory_threshold_p95", "cpu_threshold_p95")
        }
        return PrometheusRules(
            every=2 * MINUTE,
            targets=f"{GPU_SAMPLES}_count",
            records=[
                Record(LOW_GPU, share_at_most(GPU_SAMPLES, bounds["gpu_threshold_p95"], window, whole)),
                Record(
                    LOW_MEMORY,
                    share_at_most(MEMORY_SAMPLES, bounds["gpu_memory_threshold_p95"], window, whole),
                ),
                Record(LOW_CPU, share_at_most(CPU_SAMPLES, bounds["cpu_threshold_p95"], window, whole)),
            ],
            alerts=[
                TOO_LITTLE_TO_DO(
                    f"{LOW_GPU} > 0.95\n"
                    f"  and {LOW_MEMORY} > 0.95\n"
                    f"  and ignoring (gpu) {LOW_CPU} > 0.95\n"
                    f"  and {GPU_SAMPLES}_count > {parameters.patience}\n"
                    f"  {GOING_ON}",
                    description=f"{WHERE} was used {parameters.gpu_threshold_p95:g} % or less in "
                    "{{ $value | humanizePercentage }} of its last samples in run {{ $labels.run }}, while "
                    "its memory had room and the cores were not busy (fires above 95 % of each).",
                )
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        parameters = self.parameters

        def low(series: str, percent: float) -> str:
            return f"{others.percentile(0.95, series, parameters.window)} < {ratio(percent)}"

        return PrometheusRules(
            targets=GPU,
            alerts=[
                TOO_LITTLE_TO_DO(
                    f"{low(GPU, parameters.gpu_threshold_p95)}\n"
                    f"  and on (instance, gpu) {low(MEMORY, parameters.gpu_memory_threshold_p95)}\n"
                    f"  and on (instance) {low(CPU, parameters.cpu_threshold_p95)}\n"
                    f"  and {others.in_use(max(parameters.window, parameters.patience))}",
                    description=f"95 % of the readings of {WHERE} are at or below {{{{ $value | "
                    "humanizePercentage }}, while its memory has room and the cores are not busy.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[CountedWindow]:
        parameters = self.parameters
        seconds, whole = scraping.window(parameters.window), parameters.patience >= parameters.window
        gpu, memory, cpu = (
            share_of_window(now, histogram, bound, seconds, whole)
            for histogram, bound in (
                (GPU_SAMPLES, parameters.gpu_threshold_p95),
                (MEMORY_SAMPLES, parameters.gpu_memory_threshold_p95),
                (CPU_SAMPLES, parameters.cpu_threshold_p95),
            )
        )
        readings = now(f"{GPU_SAMPLES}_count")
        labels = list(gpu)
        enough = enough_readings(now, labels, parameters.patience)
        of_node = {series: cpu[node] for series in labels if (node := without(series, "gpu")) in cpu}
        shares = {
            ("gpu", parameters.gpu_threshold_p95): column(gpu, labels),
            ("gpu_memory", parameters.gpu_memory_threshold_p95): column(memory, labels),
            ("cpu", parameters.cpu_threshold_p95): column(of_node, labels),
        }
        records = {LOW_GPU: gpu, LOW_MEMORY: memory, LOW_CPU: cpu}
        return Scraped(labels, CountedWindow(enough, shares), readings, records)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        usage = run.of(Usage())
        status = status_of(tallies.triggered, tallies.judged)
        idle = [gpu.idle_readings for _, _, gpu, _ in _fired(run, tallies)]
        return Verdict(
            status,
            self._finding(run, tallies, status),
            tallies.triggered,
            tallies.triggered,
            sum(node.samples for node in usage.values()),
            max(idle, default=0.0) * run.facts.interval,
            details=_details(run, tallies),
        )

    def _finding(self, run: RunMeasurements, tallies: Tallies, status: Status) -> str:
        most = max((recent.most_readings for recent in run.of(self.measure).values()), default=0)
        if not most:
            return "No GPU was read together with its memory and the cores."
        if status is Status.NOT_ENOUGH_DATA:
            return too_few("readings of a GPU", most, self.parameters.patience)
        if status is Status.HEALTHY:
            return "In each window a GPU, its memory or the cores were well used."
        fired = _fired(run, tallies)
        node, label, gpu, tally = min(fired, key=lambda item: item[2].utilisation.mean)
        others = f", like {count(len(fired) - 1, 'more GPU')}" if len(fired) > 1 else ""
        return (
            f"{label} of {node} had too little to do in {tally.triggered} of {tally.judged} scans{others}: "
            f"it was busy for {percent(100 * gpu.utilisation.mean)} of the time and used "
            f"{percent(100 * gpu.memory.mean)} of its memory, while the cores were not busy either."
        )


def _fired(run: RunMeasurements, tallies: Tallies) -> list[tuple[str, str, GpuUsage, Tally]]:
    """Returns node, name, readings and tally of each GPU that fired."""
    return [
        (node, label, gpu, tally)
        for node, usage in run.of(Usage()).items()
        for number, (label, gpu) in enumerate(labelled(run.facts, node, usage.gpus))
        if (tally := tallies.of(node, number)).triggered
    ]


def _details(run: RunMeasurements, tallies: Tallies) -> dict[str, Any]:
    """Returns Debugger's box plots in percent: of the cores of each node that fired, and of its GPUs."""
    details: dict[str, Any] = {}
    fired = _fired(run, tallies)
    for node, label, gpu, tally in fired:
        details.setdefault(node, {"cpu": box_plot(run.nodes[node][Usage()].cpu)})
        details[node][label] = {**box_plot(gpu.utilisation), "triggered": tally.triggered}
        details[node][f"{label}_memory"] = box_plot(gpu.memory)
    if fired:
        details["last_timestamp"] = int(max(tally.last_fired for *_, tally in fired) * 1e6)
    return details
