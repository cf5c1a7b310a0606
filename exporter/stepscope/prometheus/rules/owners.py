"""Records whose GPUs are allocated, held, used and useful: a series per held GPU, and sums per run and node.

Allocation comes from the exporters of the schedulers (docs/usage.md). Without them, nothing is recorded of
it: what is not known is never 0.
"""

from stepscope.prometheus.rules.groups import Group, record
from stepscope.rules.idle_gpu import HELD
from stepscope.rules.parts.expressions import time_span
from stepscope.runs.model import USEFUL

ACCOUNT = "stepscope_account_seconds_total"
PODS = "kube_pod_container_resource_requests"  # of kube-state-metrics
SLURM_USERS, SLURM_GPUS = "slurm_user_gpus_running", "slurm_gpus_total"  # of slurm_exporter

RUN_USEFUL = "run_instance:stepscope_run_useful:mean_ratio"  # of the time of its ranks, also outside steps
GPUS_OBSERVED = "instance:stepscope_gpus_observed:count"
# Those of nodes of which none is lost, or of unknown utilisation as with MIG.
WHOLE_NODES = "instance:stepscope_gpus_of_whole_nodes:count"
GPU_HELD = "run_instance_gpu:stepscope_gpu_held:bool"
GPUS_HELD = "run_instance:stepscope_gpus_held:count"
GPUS_USED = "run_instance:stepscope_gpus_used:sum"
GPUS_USEFUL = "run_instance:stepscope_gpus_useful:sum"
HELD_POWER = "run_instance:stepscope_gpus_held_power:watts"
# In proportion to the time: how much power a GPU draws in which part of two minutes is not known.
USEFUL_POWER = "run_instance:stepscope_gpus_useful_power:watts"
IDLE_POWER = "run_instance:stepscope_gpus_idle_power:watts"
# By namespace and node on Kubernetes, by user on Slurm.
GPUS_ALLOCATED = "owner_instance:stepscope_gpus_allocated:count"
GPUS_WITHOUT_PROCESS = "owner_instance:stepscope_gpus_without_process:count"
WITHOUT_PROCESS_POWER = "owner_instance:stepscope_gpus_without_process_power:watts"

NODE = "cluster, instance"
RUN_OF_NODE = "cluster, job, instance, run"
OBSERVED = f"sum by ({NODE}) ({GPUS_OBSERVED})"


def owners_group(interval: float) -> Group:
    """Returns the group; `interval` is in seconds."""
    span = time_span(interval)
    used, power = (
        f"avg_over_time(stepscope_gpu_{what}[{span}])" for what in ("utilization_ratio", "power_watts")
    )
    rules = [
        record(
            RUN_USEFUL,
            f"""
            sum by ({RUN_OF_NODE}) (rate({ACCOUNT}{{part=~".*/({"|".join(sorted(USEFUL))})"}}[5m]))
              / (sum by ({RUN_OF_NODE}) (rate({ACCOUNT}[5m])) > 0)
            """,
        ),
        record(
            GPUS_OBSERVED,
            """
            count by (cluster, job, instance) (stepscope_gpu_utilization_ratio)
              and on (cluster, job, instance) stepscope_collector_success{collector="gpu_holders"} == 1
            """,
        ),
        record(WHOLE_NODES, f"{OBSERVED} == count by ({NODE}) (stepscope_gpu_up)"),
        record(GPU_HELD, _held()),
        record(GPUS_HELD, _by_owner(GPU_HELD)),
        record(GPUS_USED, _by_owner(_of_held(used))),
        record(HELD_POWER, _by_owner(_of_held(power))),
        record(IDLE_POWER, _by_owner(_of_held(f"({power} * (1 - {used}))"))),
        record(GPUS_USEFUL, f"{GPUS_HELD} * on ({RUN_OF_NODE}) group_left () {RUN_USEFUL}"),
        record(USEFUL_POWER, f"{HELD_POWER} * on ({RUN_OF_NODE}) group_left () {RUN_USEFUL}"),
        record(GPUS_ALLOCATED, f"{_allocated_to_pods()}\nor\nmax by (cluster, user) ({SLURM_USERS})"),
        record(GPUS_WITHOUT_PROCESS, f"{_pods_without_process()}\nor\n{_slurm_users_without_process()}"),
        record(WITHOUT_PROCESS_POWER, _power_without_process(power)),
    ]
    return {"name": "stepscope-owners", "interval": span, "rules": rules}


def _held() -> str:
    """Returns 1 per held GPU, with the owner of its run; without a run, with the user of its process."""
    held = f"clamp({HELD}, 1, 1)"
    owners = f"max by ({RUN_OF_NODE}, user, namespace) (stepscope_run_info)"
    owner = f"topk by ({RUN_OF_NODE}) (1, {owners})"
    of_runs = f"{held} * on ({RUN_OF_NODE}) group_left (user, namespace) {owner}"
    return f"{of_runs}\nor on (cluster, job, instance, gpu)\n{held}"


def _of_held(of_gpu: str) -> str:
    # Not `on`: a range has the GPU of an exporter's last pod, too, if its name is kept as a label.
    return f"{GPU_HELD} * ignoring (run, user, namespace, pid) group_left () {of_gpu}"


def _by_owner(of_gpus: str) -> str:
    return f"sum by ({RUN_OF_NODE}, user, namespace) ({of_gpus})"


def _allocated_to_pods() -> str:
    """Returns GPUs by namespace and node; `max` because several kube-state-metrics may be scraped."""
    pods = f'{PODS}{{resource="nvidia_com_gpu", node!=""}}'
    each = f"max by (cluster, namespace, pod, container, node) ({pods})"
    return f"""sum by ({NODE}, namespace) (
  label_replace({each}, "instance", "$1", "node", "(.+)")
    unless on (cluster, namespace, pod) kube_pod_status_phase{{phase=~"Succeeded|Failed"}} == 1
)"""


def _pods_without_process() -> str:
    """Returns GPUs by namespace and node, of nodes of which every GPU is observed.

    A process without a run has no known namespace. So a namespace has at most as many GPUs without a process
    as its node has in all.
    """
    allocated = f'{GPUS_ALLOCATED}{{namespace!=""}}'
    held = f"sum by ({NODE}, namespace) ({GPUS_HELD})"
    own = f"clamp_min({allocated} - ({held} or 0 * {allocated}), 0)"
    of_node = f"""(
  clamp_min(sum by ({NODE}) ({allocated}) - (sum by ({NODE}) ({GPUS_HELD}) or 0 * {OBSERVED}), 0)
    and {WHOLE_NODES}
)"""
    return f"""{own} <= on ({NODE}) group_left () {of_node}
or
0 * {allocated} + on ({NODE}) group_left () {of_node}"""


def _slurm_users_without_process() -> str:
    """Returns GPUs by user, while every GPU of Slurm is observed and every process has a known user."""
    allocated = f'{GPUS_ALLOCATED}{{user!=""}}'
    held = f"sum by (cluster, user) ({GPUS_HELD})"
    return f"""(
  clamp_min({allocated} - ({held} or 0 * {allocated}), 0)
    and on (cluster) sum by (cluster) ({WHOLE_NODES}) >= sum by (cluster) ({SLURM_GPUS})
    unless on (cluster) {GPUS_HELD}{{user=""}}
)"""


def _power_without_process(power: str) -> str:
    """Returns watts, from the mean of the GPUs without a process: of the node, or of Slurm's cluster."""
    free = f"({power} unless on (cluster, job, instance, gpu) {HELD})"
    pods, users = (f'{GPUS_WITHOUT_PROCESS}{{{label}!=""}}' for label in ("namespace", "user"))
    return f"""{GPUS_WITHOUT_PROCESS} == 0
or
{pods} * on ({NODE}) group_left () avg by ({NODE}) {free}
or
{users} * on (cluster) group_left () avg by (cluster) {free}"""
