"""The rank of this process in the run, read from the environment variables of launchers."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Ranks:
    """Rank among all processes of the run, rank on this node (None: unknown), number of processes."""

    __slots__ = ("local_rank", "rank", "world_size")

    def __init__(self, rank: int, local_rank: int | None, world_size: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size


# (rank, local rank, world size) of each launcher, the most specific first: torchrun and launchers like
# it (also inside a Slurm job), Slurm's srun, Open MPI's mpirun.
LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """Returns the ranks of the first launcher whose rank is a number, or rank 0 of 1.

    The world size is at least rank + 1, also if its variable is missing or too small.
    """
    for rank_name, local_rank_name, world_size_name in LAUNCHERS:
        rank = _number(environment.get(rank_name))
        if rank is not None:
            world_size = _number(environment.get(world_size_name)) or 1
            return Ranks(rank, _number(environment.get(local_rank_name)), max(world_size, rank + 1))
    return Ranks(0, None, 1)


def read_run_name(environment: Mapping[str, str]) -> str:
    """Returns TRAINWATCH_RUN, otherwise the Slurm job, otherwise the script's name without its suffix."""
    if environment.get("TRAINWATCH_RUN"):
        return environment["TRAINWATCH_RUN"]
    if environment.get("SLURM_JOB_ID"):
        return f"slurm-{environment['SLURM_JOB_ID']}"
    script = os.path.basename(sys.argv[0]) if sys.argv else ""
    return os.path.splitext(script)[0].lstrip("-") or "python"


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None
