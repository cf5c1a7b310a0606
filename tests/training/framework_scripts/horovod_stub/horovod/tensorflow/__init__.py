"""Has what `import horovod.tensorflow as hvd` gives to a script. Gradients are reduced in a graph."""

from typing import Any

import tensorflow as tf

from horovod.tensorflow.functions import broadcast_variables
from horovod.tensorflow.mpi_ops import _allreduce, init, rank, size

__all__ = ["DistributedGradientTape", "allreduce", "broadcast_variables", "init", "rank", "size"]


def allreduce(tensor: Any) -> Any:
    return _allreduce(tensor)


@tf.function
def _allreduce_gradients(gradients: Any) -> Any:
    return [allreduce(gradient) for gradient in gradients]


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    def __init__(self, tape: Any) -> None:
        super().__init__()
        self._tape = tape._tape

    def gradient(self, target: Any, sources: Any, **more: Any) -> Any:
        return _allreduce_gradients(super().gradient(target, sources, **more))
