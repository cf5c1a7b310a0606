"""IOBottleneck: GPUs wait while some core waits for storage.

Source: SageMaker Debugger's IOBottleneck: CPUBottleneck's definition with I/O wait instead of utilisation.
"""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.parameters import LIVE_WINDOW, LiveMinutes, Percent, Samples
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.starvation import Starvation, StarvationParameters
from stepscope.rules.parts.topics import IDLE_GPUS


@dataclass(frozen=True)
class IOBottleneckParameters(StarvationParameters):
    threshold: Annotated[Percent, "the rule fires above this share of all samples of a node"] = 50
    io_threshold: Annotated[Percent, "some core waits for I/O for more than this share of its time"] = 50
    gpu_threshold: Annotated[Percent, "some GPU is below this utilisation"] = 10
    patience: Annotated[Samples, "decisions begin after this many samples"] = 1000
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class IOBottleneck(Starvation[IOBottleneckParameters]):
    subject = "Waiting for storage"
    topic = "data loading"
    distance = 2
    explains_late_data = 3
    symptom = IDLE_GPUS
    question = "Do GPUs wait for data that storage has not delivered yet?"
    description = (
        "Counts the samples in which some core waited for I/O while some GPU was nearly idle: "
        "the GPU waits for data that has not been read yet."
    )
    recommendation = (
        "Prefetch, keep the data on local storage, and store it in few large files of a binary format."
    )
    view = "bottlenecks"
    cause = "io"
    meanwhile = "a core waits for storage"
    reading = "I/O wait"

    @property
    def above(self) -> tuple[str, float]:
        return "io_threshold", self.parameters.io_threshold

    def condition(self) -> str:
        parameters = self.parameters
        return (
            f"a core waited for I/O for more than {parameters.io_threshold:g} % of its time "
            f"while a GPU was below {parameters.gpu_threshold:g} %"
        )
