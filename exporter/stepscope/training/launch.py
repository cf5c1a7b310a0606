"""Finds the launch key, without a server: text that all ranks of one launch share and no other launch has.

Names and numbers that a later launch may use again are not enough. If several nodes have nothing better,
their ranks agree on a random key through torch.distributed's store.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock, start_new_thread
from binascii import crc32

from stepscope.training.ranks import TF_CONFIG, host_of, number, read_run_name, read_workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.training.ranks import Ranks

LAUNCH_KEY = "STEPSCOPE_LAUNCH"  # environment variable: text that all processes of one launch share
NODE_KEY = "STEPSCOPE_NODE_LAUNCH"  # the same, but other nodes of the launch may have another text
NAME_CHARACTERS = 100  # of a run's name that its label repeats
STORE_SECONDS = 5.0  # for an answer of torch.distributed's store
_STORE_KEY = "stepscope/launch"
_MPI_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PALS_APID")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_SLURM = "slurm:"  # before the key of a step
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class Launch:
    """The identity of a run. `unique`: no other launch has the key, so reruns can be distinguished.

    `of_node`: the key is of a process of this node, so other nodes cannot know it.
    """

    def __init__(self, name: str, key: str = "", unique: bool = True) -> None:
        self.name = name
        self.prefix = ""  # of the run, before its name
        self.key = key
        self.unique = unique
        self.of_node = False
        self.scheduler = ""
        self.scheduler_job = ""
        self.namespace = ""
        self.pod = ""

    @property
    def run(self) -> str:
        """Returns the label, such as `train-7f3a90c1`; Grafana's dashboards quote it with backticks."""
        digits = crc32(self.key.encode("utf-8", "surrogateescape"))  # hashlib takes 3 ms to import
        return f"{self.prefix}{self.name[:NAME_CHARACTERS]}-{digits:08x}".replace("`", "'")


def read_launch(
    environment: Mapping[str, str], ranks: Ranks, name: str | None = None, proc: str = "/proc"
) -> Launch:
    """Returns the launch of this process. `name` goes before STEPSCOPE_RUN and the script's name."""
    launch = Launch(name or read_run_name(environment))
    _name_scheduler(launch, environment)
    if launch.scheduler == "slurm" and not name and not environment.get("STEPSCOPE_RUN"):
        launch.prefix = f"slurm-{launch.scheduler_job}-"
    given = environment.get(LAUNCH_KEY)
    if given:
        launch.key = given
        return launch
    torchrun = environment.get("TORCHELASTIC_RUN_ID")
    if ranks.world_size == 1 and not torchrun:
        launch.key = _key_of_node(environment, os.getpid(), [], proc)
        launch.of_node = not launch.key.startswith(_SLURM)
    elif _on_one_node(environment, ranks):
        variable = "TORCHELASTIC_RUN_ID" if torchrun else ranks.variable
        # torchrun takes another port at a restart, and starts one job only.
        shared = [] if torchrun else _values(environment, "RAY_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
        launch.key = _key_of_node(environment, _launcher(variable, proc), shared, proc)
        launch.of_node = not launch.key.startswith(_SLURM)
    else:
        shared = _shared_by_nodes(environment, ranks)
        launch.unique = bool(shared)
        of_node = _values(environment, NODE_KEY)
        launch.of_node = bool(of_node) and not shared
        job = (launch.namespace, launch.scheduler_job)
        rendezvous = _values(environment, "MASTER_ADDR", "MASTER_PORT") or read_workers(environment)[0]
        launch.key = "/".join(shared or of_node or (job if all(job) else rendezvous))
    return launch


def shared_key(timeout: float = STORE_SECONDS) -> str | None:
    """Returns a random key that all ranks get from torch.distributed's store; None if there is no store.

    The first rank to ask makes it. Never imports torch, never raises, and waits for `timeout` at most.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return None
    answers: list[str] = []
    answered = allocate_lock()
    answered.acquire()

    def ask() -> None:
        try:
            if c10d.is_initialized():
                store = c10d._get_default_store()
                # Without its prefix, which changes when torchrun restarts the ranks.
                while hasattr(store, "underlying_store"):
                    store = store.underlying_store
                answers.append(bytes(store.compare_set(_STORE_KEY, "", os.urandom(16).hex())).decode())
        except Exception:  # noqa: BLE001 - whatever the store raises, training continues
            pass
        finally:
            answered.release()

    try:
        start_new_thread(ask, ())
    except RuntimeError:  # no thread can be started
        return None
    return answers[0] if answered.acquire(timeout=timeout) and answers else None


# -- one node ------------------------------------------------------------------------------------------


def _on_one_node(environment: Mapping[str, str], ranks: Ranks) -> bool:
    """Returns whether the launcher says that all ranks are its children on this node."""
    if ranks.variable is None:
        return False
    if any(number(environment.get(name)) == ranks.world_size for name in _LOCAL_SIZES):
        return True
    if ranks.variable == TF_CONFIG:
        return len({host_of(worker) for worker in read_workers(environment)[0]}) == 1
    # Kubeflow's master pod calls itself localhost, and two agents of torchrun may be on one node.
    several = "GROUP_WORLD_SIZE" in environment or "KUBERNETES_SERVICE_HOST" in environment
    return environment.get("MASTER_ADDR") in _LOOPBACK and not several


def _key_of_node(environment: Mapping[str, str], pid: int, shared: list[str], proc: str) -> str:
    """Returns the key of a launch by this process of this node.

    If Slurm itself started the process, it is the step's: a requeued job continues the run.
    """
    if given := environment.get(NODE_KEY):
        return given
    if environment.get("SLURM_TASK_PID") == str(pid) and (step := _slurm_step(environment)):
        return step
    boot = _read(f"{proc}/sys/kernel/random/boot_id").strip()
    try:
        namespace = os.readlink(f"{proc}/self/ns/pid")
    except OSError:
        namespace = ""
    _, start = _parent_and_start(pid, proc)
    return "/".join((boot, namespace, str(pid), start, *shared))


def _launcher(variable: str | None, proc: str) -> int:
    """Returns the nearest process above this one that was started without the ranks' variable.

    A wrapper script that the launcher starts once per rank has it.
    """
    pid = os.getpid()
    mark = f"\0{variable}="
    while True:
        parent, _ = _parent_and_start(pid, proc)
        if parent <= 0:  # outside this container
            return pid
        pid = parent
        if mark not in "\0" + _read(f"{proc}/{pid}/environ"):
            return pid


def process_start(proc: str = "/proc") -> float | None:
    """Returns when this process began, in seconds since the epoch, to a tick (10 ms); None if it is unknown.

    A forked process begins with the fork, and a program that replaces another (`exec`) with that one.
    """
    _, ticks = _parent_and_start("self", proc)
    if not ticks.isdecimal() or not int(ticks):
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.time() - max(age, 0.0)


def _parent_and_start(pid: int | str, proc: str) -> tuple[int, str]:
    """Returns a process's parent, 0 if unknown, and its start in ticks after boot."""
    fields = _read(f"{proc}/{pid}/stat").rpartition(")")[2].split()  # a name may contain anything
    return (int(fields[1]), fields[19]) if len(fields) > 19 else (0, "")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


# -- several nodes -------------------------------------------------------------------------------------


def _shared_by_nodes(environment: Mapping[str, str], ranks: Ranks) -> list[str]:
    """Returns what is equal on all ranks of this launch only; nothing if the launcher shares no such text."""
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    shared = [] if run_id in ("", "none") else [f"torchrun:{run_id}"]
    if (jobs := _values(environment, *_MPI_JOBS)) and not shared:
        return [f"mpi:{'+'.join(jobs)}"]
    # With a step per node, the nodes share none.
    groups = number(environment.get("GROUP_WORLD_SIZE")) or ranks.world_size
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
    if (step := _slurm_step(environment)) and (number(tasks) or 1) >= groups:
        shared.append(step)
    if not shared and environment.get("RAY_JOB_ID"):  # 01000000 in each new cluster, but Ray draws the port
        shared = _values(environment, "RAY_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
        return shared if len(shared) == 3 else []
    return shared


def _slurm_step(environment: Mapping[str, str]) -> str:
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    cluster = environment.get("SLURM_CLUSTER_NAME", "")
    return f"{_SLURM}{cluster}:{job}.{step}" if job and step else ""


def _name_scheduler(launch: Launch, environment: Mapping[str, str]) -> None:
    if "KUBERNETES_SERVICE_HOST" in environment:
        launch.pod = environment.get("POD_NAME") or environment.get("HOSTNAME", "")
        launch.namespace = environment.get("POD_NAMESPACE") or _read(_SERVICE_ACCOUNT).strip()
        launch.scheduler = "kubernetes"
        launch.scheduler_job = environment.get("JOB_NAME") or _job_of_pod(environment)
    if environment.get("RAY_JOB_ID"):
        launch.scheduler, launch.scheduler_job = "ray", environment["RAY_JOB_ID"]
    if environment.get("SLURM_JOB_ID"):
        launch.scheduler, launch.scheduler_job = "slurm", environment["SLURM_JOB_ID"]
        array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        if array and task:
            launch.scheduler_job = f"{array}_{task}"  # as squeue shows it


def _job_of_pod(environment: Mapping[str, str]) -> str:
    """Returns the job whose pod this is, from the host names of Kubeflow's jobs and of indexed Jobs."""
    name = environment.get("HOSTNAME", "")
    job, _, index = name.rpartition("-")
    for replica in ("-master", "-worker"):
        if index.isdigit() and job.endswith(replica):
            return job[: -len(replica)]
    return job if job and index == environment.get("JOB_COMPLETION_INDEX") else ""


def _values(environment: Mapping[str, str], *names: str) -> list[str]:
    return [environment[name] for name in names if environment.get(name)]
