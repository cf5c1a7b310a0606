"""CPUBottleneck: GPUs wait while some core is pinned.

Source: SageMaker Debugger's CPUBottleneck; "any core, any GPU" is what makes its published run
(mean CPU p95 of 24 %, 70.5 % of snapshots concerned) come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from trainwatch.rules.other_exporters import BUSIEST, GPU, IN_USE, OtherExporters
from trainwatch.rules.parameters import Percent, Samples
from trainwatch.rules.promql import PrometheusRules, Record, ratio
from trainwatch.rules.registry import rule
from trainwatch.rules.starvation import Starvation, StarvationParameters
from trainwatch.rules.topics import IDLE_GPUS

STARVED = "instance:node_cpu_starved:bool"
STARVED_SHARE = "instance:node_cpu_starved:avg_ratio"


@dataclass(frozen=True)
class CPUBottleneckParameters(StarvationParameters):
    threshold: Annotated[Percent, "the rule fires above this share of all snapshots of a node"] = 50
    cpu_threshold: Annotated[Percent, "some core is above this utilisation"] = 90
    gpu_threshold: Annotated[Percent, "some GPU is below this utilisation"] = 10
    patience: Annotated[Samples, "decisions begin after this many snapshots"] = 1000


@rule
class CPUBottleneck(Starvation[CPUBottleneckParameters]):
    parameters_type = CPUBottleneckParameters
    subject = "Waiting for busy CPU cores"
    topic = "data loading"
    distance = 1
    symptom = IDLE_GPUS
    question = "Do GPUs wait for data that a busy core has not prepared yet?"
    description = (
        "Counts the snapshots in which some core was pinned while some GPU was all but idle: "
        "the GPU waits for work that the core has not prepared yet."
    )
    recommendation = (
        "Where other cores are free, give the data loader more workers and let it prefetch; where all are "
        "full, make the transform cheaper or move it to the GPU."
    )
    view = "bottlenecks"
    cause = "cpu"
    waits_for = "a busy core"
    reading = "utilisation"

    @property
    def above(self) -> tuple[str, float]:
        return "cpu_threshold", self.parameters.cpu_threshold

    def condition(self) -> str:
        its = self.parameters
        return f"a core was above {its.cpu_threshold:g} % while a GPU was below {its.gpu_threshold:g} %"

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        """Without a GPU in use there is no value: the share is of the time in which something ran."""
        its = self.parameters
        patience = max(its.patience, 1)
        starved = f"""
            ({BUSIEST} > bool {ratio(its.cpu_threshold)})
              * on (instance)
            (
              min by (instance) ({GPU} and on (instance, gpu) {IN_USE} == 1) < bool {ratio(its.gpu_threshold)}
            )
            """
        return PrometheusRules(
            targets=STARVED_SHARE,
            records=[Record(STARVED, starved), Record(STARVED_SHARE, others.mean(STARVED, patience))],
            alerts=[
                self.alert(
                    f"{STARVED_SHARE} > {ratio(its.threshold)}\n  and {others.before(STARVED, patience)}",
                    "at {{ $value | humanizePercentage }} of the scrapes",
                )
            ],
        )
