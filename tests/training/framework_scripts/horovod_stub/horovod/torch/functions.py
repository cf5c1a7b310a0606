from typing import Any

from horovod.torch.mpi_ops import broadcast_


def broadcast_parameters(parameters: Any, root_rank: int) -> None:
    for value in parameters.values():
        broadcast_(value, root_rank)
