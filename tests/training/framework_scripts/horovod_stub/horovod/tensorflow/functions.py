from typing import Any

import tensorflow as tf

from horovod.tensorflow.mpi_ops import broadcast


@tf.function
def _broadcast_group(variables: Any, root_rank: int) -> None:
    for variable in variables:
        variable.assign(broadcast(variable, root_rank))


def broadcast_variables(variables: Any, root_rank: int) -> None:
    _broadcast_group(variables, root_rank)
