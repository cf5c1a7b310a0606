"""The rank of this process in the run, read from the environment variables of launchers."""

from __future__ import annotations

import os
import sys

from stepscope.training.layout import MAX_RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Ranks:
    """Rank among all processes of the run, rank on this node (None: unknown), number of processes.

    `attempt` is how often the launcher restarted the run, `variable` the environment variable that has the
    rank. Raises ValueError if a number does not fit.
    """

    __slots__ = ("attempt", "local_rank", "rank", "variable", "world_size")

    def __init__(
        self,
        rank: int,
        local_rank: int | None,
        world_size: int,
        attempt: int = 0,
        variable: str | None = None,
    ) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.attempt = attempt
        self.variable = variable
        if not 0 <= rank < world_size <= MAX_RANK:
            raise ValueError(f"rank {rank} of {world_size}: use 0 <= rank < world_size <= {MAX_RANK}")
        if local_rank is not None and not 0 <= local_rank <= MAX_RANK:
            raise ValueError(f"local rank {local_rank}: use 0 to {MAX_RANK}, or None")


# (rank, local rank, world size) of each launcher, the most specific first: torchrun and launchers like
# it (also inside a Slurm job), horovodrun without MPI, Open MPI's mpirun, MPICH's and Intel's mpiexec (which
# Slurm starts once per node), Slurm's srun.
LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
TF_CONFIG = "TF_CONFIG"  # the variable of TensorFlow's clusters, which holds JSON


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """Returns the ranks of the first launcher whose rank is a number, or rank 0 of 1.

    The world size is at least rank + 1, also if its variable is missing or too small. A batch script of
    Slurm is no task: only a step that srun started has several. A task of TensorFlow's cluster goes before
    one of Slurm, which may start several of them.
    """
    restarts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    attempt = sum(number(environment.get(name)) or 0 for name in restarts)
    workers, index = read_workers(environment)
    for rank_name, local_rank_name, world_size_name in LAUNCHERS:
        rank = number(environment.get(rank_name))
        if rank is None or (rank_name == "SLURM_PROCID" and ("SLURM_STEP_ID" not in environment or workers)):
            continue
        world_size = number(environment.get(world_size_name)) or 1
        local_rank = number(environment.get(local_rank_name))
        return Ranks(rank, local_rank, max(world_size, rank + 1), attempt, rank_name)
    if workers:
        hosts = [host_of(worker) for worker in workers]
        return Ranks(index, hosts[:index].count(hosts[index]), len(workers), attempt, TF_CONFIG)
    return Ranks(0, None, 1, attempt)


def read_workers(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Returns the addresses of the tasks that train in TensorFlow's cluster, and which of them this is.

    The chief is the first (`tf.distribute.cluster_resolver.TFConfigClusterResolver`). The list is empty if
    this process does not train: it is a parameter server, or an evaluator.
    """
    if TF_CONFIG not in environment:
        return [], 0
    try:
        import json

        config = json.loads(environment[TF_CONFIG])
        cluster, task = config["cluster"], config["task"]
        chief = list(cluster.get("chief") or cluster.get("master") or ())
        workers = [str(address) for address in chief + list(cluster.get("worker") or ())]
        index = int(task["index"]) + (len(chief) if task["type"] == "worker" else 0)
        if task["type"] in ("chief", "master", "worker") and 0 <= index < min(len(workers), MAX_RANK):
            return workers, index
    except Exception:  # noqa: BLE001 - whatever the text is, training continues
        pass
    return [], 0


def host_of(address: str) -> str:
    """Returns the host of `host:port`."""
    return address.rpartition(":")[0]


def ranks_of_torch(launched: Ranks) -> Ranks:
    """Returns the ranks that torch.distributed has, if it is initialized: some launchers do not say them."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        if c10d is None or not c10d.is_initialized():
            return launched
        rank, world_size = int(c10d.get_rank()), int(c10d.get_world_size())
        if (rank, world_size) == (launched.rank, launched.world_size):
            return launched
        return Ranks(rank, launched.local_rank, world_size, launched.attempt)
    except Exception:  # noqa: BLE001 - whatever torch raises, training continues
        return launched


def read_run_name(environment: Mapping[str, str]) -> str:
    """Returns STEPSCOPE_RUN, otherwise the script's name without its suffix.

    Characters that cannot be printed become "_".
    """
    name = environment.get("STEPSCOPE_RUN")
    if not name:
        script = sys.argv[0] if sys.argv else ""
        if os.path.basename(script) == "__main__.py":  # python -m package
            script = os.path.dirname(script)
        name = os.path.splitext(os.path.basename(script))[0].lstrip("-") or "python"
    return "".join(character if character.isprintable() else "_" for character in name)


def check_run_name(name: str) -> str:
    """Returns the name. Raises ValueError if it is empty or cannot be printed on one line."""
    if not name or not name.isprintable():
        raise ValueError(f"run name {name!r}: use printable text on one line")
    return name


def visible_devices(environment: Mapping[str, str]) -> str:
    """Returns the GPUs to which the environment limits this process: "" if it does not, "-1" for none."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environment:
            return environment[name].strip() or "-1"
    return ""


def number(text: str | None) -> int | None:
    """Returns the number that a variable holds; None if it holds none, or one that no rank can have."""
    text = (text or "").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else MAX_RANK
    return number if number < MAX_RANK else None
