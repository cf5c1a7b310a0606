"""Trains 150 steps on two ranks that average gradients by mpi4py, and prints what came out. Rank 1 is late.

With a word, the script initializes MPI itself.
"""

import pickle
import sys
import time
from collections.abc import Callable

import mpi4py
import numpy as np
import stepscope

by_itself = bool(sys.argv[1:])
if by_itself:
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI  # noqa: E402

world = MPI.COMM_WORLD
if by_itself:
    MPI.Init()
rank, peer = world.rank, 1 - world.rank

# What libraries ask of communicators.
half = world.Split(color=0, key=-rank)
both = MPI.Intracomm(world)
assert type(world) is type(half) is MPI.Intracomm
assert isinstance(world.Create_cart([2]), MPI.Intracomm)
assert both == world != half
assert pickle.loads(pickle.dumps(world)) == world
assert MPI.Comm.bcast(both, rank, root=1) == 1

said = [
    world.bcast([rank], root=1),
    world.allreduce(rank + 1),
    half.allgather(rank),
    world.gather(rank),
    world.scatter([3, 4] if not rank else None),
    world.alltoall([rank, rank]),
    world.reduce(rank, op=MPI.MAX, root=1),
    world.sendrecv(rank, dest=peer, source=peer),
]
request = world.irecv(source=peer)
world.send({"rank": rank}, dest=peer)
said.append(request.wait())
numbers, theirs = np.full(3, rank, "i8"), np.empty(3, "i8")
MPI.Request.Waitall([world.Isend(numbers, dest=peer), world.Irecv(theirs, source=peer)])
said.append(theirs.tolist())
refused: list[Callable[[], object]] = [
    lambda: world.Bcast(numbers, root=9),
    lambda: world.bcast(lambda: 0, root=rank),
]
for wrong in refused:
    try:
        wrong()
    except Exception as error:  # noqa: BLE001
        said.append(type(error).__name__)

weights = np.zeros(8)
for batch in np.random.default_rng(rank).random((150, 16, 8)):
    with stepscope.step():
        if rank == 1:
            time.sleep(0.02)
        errors = batch @ weights - batch.sum(1)
        mean = np.empty(8)
        world.Allreduce(batch.T @ errors / 16, mean)
        weights -= 0.1 * mean / world.size
said.append(weights.tobytes().hex())

world.Barrier()
lines = world.gather(" ".join(map(str, said)))
if lines:
    sys.stdout.write("\n".join(lines) + "\n")
if by_itself:
    MPI.Finalize()
