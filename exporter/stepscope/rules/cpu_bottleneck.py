"""CPUBottleneck: GPUs wait while some core is pinned.

Source: SageMaker Debugger's CPUBottleneck. "Any core, any GPU" reproduces its published run: the 95th
percentile of the mean CPU is 24 %, and 70.5 % of samples count.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.parameters import LIVE_WINDOW, LiveMinutes, Percent, Samples
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.starvation import Starvation, StarvationParameters
from stepscope.rules.parts.topics import IDLE_GPUS


@dataclass(frozen=True)
class CPUBottleneckParameters(StarvationParameters):
    threshold: Annotated[Percent, "the rule fires above this share of all samples of a node"] = 50
    cpu_threshold: Annotated[Percent, "some core is above this utilisation"] = 90
    gpu_threshold: Annotated[Percent, "some GPU is below this utilisation"] = 10
    patience: Annotated[Samples, "decisions begin after this many samples"] = 1000
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class CPUBottleneck(Starvation[CPUBottleneckParameters]):
    subject = "Waiting for busy CPU cores"
    topic = "data loading"
    distance = 1
    explains_late_data = 1
    symptom = IDLE_GPUS
    question = "Do GPUs wait for data that a busy core has not prepared yet?"
    description = (
        "Counts the samples in which some core was pinned while some GPU was nearly idle. Usually the GPU "
        "then waits for work that the core has not prepared yet; DataStarved measures that."
    )
    recommendation = (
        "If other cores are free, give the data loader more workers and let it prefetch. If all are full, "
        "make the transform cheaper or move it to the GPU."
    )
    view = "bottlenecks"
    cause = "cpu"
    meanwhile = "a core is busy"
    reading = "utilisation"

    @property
    def above(self) -> tuple[str, float]:
        return "cpu_threshold", self.parameters.cpu_threshold

    def condition(self) -> str:
        parameters = self.parameters
        core, gpu = parameters.cpu_threshold, parameters.gpu_threshold
        return f"a core was above {core:g} % while a GPU was below {gpu:g} %"
