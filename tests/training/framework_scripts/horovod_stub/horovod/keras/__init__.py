from horovod.keras import callbacks
from horovod.tensorflow.mpi_ops import init, rank, size

__all__ = ["callbacks", "init", "rank", "size"]
