"""Has what `import horovod.torch as hvd` gives to a script, from the modules where Horovod has it."""

from horovod.torch.functions import broadcast_parameters
from horovod.torch.mpi_ops import allgather, allreduce, barrier, init, join, local_rank, rank, size
from horovod.torch.optimizer import DistributedOptimizer

__all__ = [
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast_parameters",
    "init",
    "join",
    "local_rank",
    "rank",
    "size",
]
