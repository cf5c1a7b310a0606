"""A run is one launch: unique, and equal on all its ranks, whatever started them."""

import os
import re
import socket
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerReader, open_ledgers
from stepscope.training import launch as launches
from stepscope.training.launch import NODE_KEY, Launch, process_start, read_launch
from stepscope.training.ranks import read_ranks

from tests.support.processes import ran
from tests.support.smallest import smallest
from tests.support.training_script import EXPORTER, go_on, only_ledger, run_to_end, training, wait_for_line
from tests.support.waiting import SECONDS

TORCHRUN = Path(sys.executable).with_name("torchrun")
with_torch = pytest.mark.skipif(not TORCHRUN.exists(), reason="torch is not installed")

STEP = "with stepscope.step(): pass\n"
TRAINS = f"import stepscope\n{STEP}"
# As two nodes with a rank each; PyTorch is imported once for both.
TRAINS_TOGETHER = f"""\
import os
import torch.distributed
forked = os.fork()
os.environ["RANK"] = os.environ["GROUP_RANK"] = "0" if forked else "1"
import stepscope
stepscope.start()
torch.distributed.init_process_group("gloo")
{STEP}
torch.distributed.barrier()
torch.distributed.destroy_process_group()
if forked: assert os.waitpid(forked, 0)[1] == 0
"""


def headers(ledgers: Path) -> list[LedgerHeader]:
    found = []
    for path in open_ledgers(ledgers):
        with LedgerReader(path) as reader:
            found.append(reader.header)
    return sorted(found, key=lambda header: (header.start, header.rank))


def runs(ledgers: Path) -> dict[str, set[int]]:
    """Returns the ranks of each run."""
    found: dict[str, set[int]] = {}
    for header in headers(ledgers):
        found.setdefault(header.run, set()).add(header.rank)
    return found


def environment(ledgers: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPSCOPE", "SLURM"))}
    return {**kept, "PYTHONPATH": EXPORTER, "STEPSCOPE_LEDGER_DIR": str(ledgers), **(more or {})}


def shell(script: str, ledgers: Path, more: Mapping[str, str] | None = None) -> None:
    done = ran(["bash", "-ec", textwrap.dedent(script)], env=environment(ledgers, more))
    assert done.returncode == 0, done.stderr


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    return path


# -- real launchers ------------------------------------------------------------------------------------


def test_two_scripts_of_one_shell_are_two_runs_of_one_name(ledgers: Path, script: Path) -> None:
    shell(f"{sys.executable} {script}; {sys.executable} {script} & {sys.executable} {script}; wait", ledgers)
    found = headers(ledgers)
    assert len({header.run for header in found}) == len(found) == 3
    assert {header.name for header in found} == {"train"}
    for header in found:
        name, _, digits = header.run.rpartition("-")
        assert name == "train"
        assert len(digits) == 8
        int(digits, 16)


# Ranks wait for each other: the agent ends all as soon as one has failed.
FAILS_AT_FIRST = """
import os, sys, time
from pathlib import Path
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
trained = Path(__file__).parent
(trained / f"{attempt}.{os.environ['RANK']}.trained").touch()
while len(list(trained.glob(f"{attempt}.*.trained"))) < 2:
    time.sleep(0.01)
sys.exit(attempt == "0")
"""


@with_torch
@pytest.mark.parametrize(
    "flags", smallest(["--standalone", "--rdzv-backend c10d --rdzv-endpoint localhost:0"], {0})
)
def test_each_torchrun_is_one_run_with_all_its_ranks_and_neither_a_wrapper_nor_a_restart_splits_it(
    ledgers: Path, script: Path, flags: str, tmp_path: Path
) -> None:
    wrapper, elastic = tmp_path / "wrapper.sh", tmp_path / "elastic" / script.name
    wrapper.write_text(f"#!/bin/bash\n{sys.executable} {script}\nexit $?\n")
    wrapper.chmod(0o755)
    elastic.parent.mkdir()
    elastic.write_text(TRAINS + FAILS_AT_FIRST)
    torchrun = f"{TORCHRUN} --nproc-per-node 2"
    wrapped = f"--master-port {free_port()} --no-python {wrapper}"
    shell(f"{torchrun} {flags} --max-restarts 1 {elastic} & {torchrun} {wrapped}; wait", ledgers)
    assert list(runs(ledgers).values()) == [{0, 1}] * 2
    attempts: dict[str, list[int]] = {}
    for header in headers(ledgers):
        attempts.setdefault(header.run, []).append(header.attempt)
    assert sorted(map(sorted, attempts.values())) == [[0, 0], [0, 0, 1, 1]]


@with_torch
@pytest.mark.parametrize("launches", smallest([1, 2], {0}))
def test_nodes_without_a_key_of_their_launcher_share_one_through_the_store(
    ledgers: Path, script: Path, launches: int
) -> None:
    """What static torchrun tells its ranks: run id `none`, and the same port for each launch."""
    script.write_text(TRAINS_TOGETHER)
    static = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_WORLD_SIZE": "2"}
    local = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for _ in range(launches):
        shell(f"{sys.executable} {script}", ledgers, {**static, **local, **meet})
    assert list(runs(ledgers).values()) == [{0, 1}] * launches
    assert all(header.launch_key for header in headers(ledgers))


# -- processes -----------------------------------------------------------------------------------------


def test_a_script_that_starts_itself_again_stays_one_run(ledgers: Path) -> None:
    script = f"""
    {STEP}
    if len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
    """
    with training(script, ledgers) as process:
        assert process.communicate(timeout=SECONDS)[1] == ""
    assert len(headers(ledgers)) == 2
    assert len(runs(ledgers)) == 1


def test_a_process_that_starts_a_second_run_has_two(ledgers: Path) -> None:
    jax = "import types; sys.modules['jax'] = types.SimpleNamespace(__version__='9')"
    with training(f"{jax}\n{STEP}\nstepscope.finish()\nstepscope.start()\n", ledgers) as process:
        assert process.communicate(timeout=SECONDS)[1] == ""
    assert len(runs(ledgers)) == 2
    assert [header.framework for header in headers(ledgers)] == ["jax", "jax"]


def test_a_name_that_is_given_names_the_run_and_the_key_its_digits(ledgers: Path) -> None:
    given = {"STEPSCOPE_RUN": "resnet", "STEPSCOPE_LAUNCH": "one", "SLURM_JOB_ID": "7"}
    run_to_end("stepscope.start()", ledgers, given)
    with only_ledger(ledgers) as reader:
        assert (reader.header.name, reader.header.run) == ("resnet", Launch("resnet", "one").run)
        assert reader.header.launch_key == "one"
    assert Launch("resnet", "one").run == "resnet-7a6c86f1"
    assert Launch("a `run`", "one").run == "a 'run'-7a6c86f1"


# -- when it began -------------------------------------------------------------------------------------

TICK = 0.02  # seconds: the kernel gives a process's start to 10 ms, and its wall clock is adjusted
NOTES_WHEN = "began = time.time(); time.sleep(0.1)\n"
STEPS_ONCE = f"{STEP}stepscope.gauge('began', began)\n"


def test_a_run_begins_with_its_process_and_what_comes_before_the_ledger_is_initialization(
    ledgers: Path,
) -> None:
    totals = run_to_end(f"{NOTES_WHEN}{STEPS_ONCE}", ledgers).totals
    began, first = totals.gauges["began"], totals.first_step_start
    assert first is not None
    assert totals.phase_seconds["initialization"] >= first - began - TICK > 0.1 - TICK
    with only_ledger(ledgers) as reader:
        assert reader.header.start <= began + TICK


@pytest.mark.parametrize("before", [f"{STEP}stepscope.finish()\n", "sys.ps1 = '>>> '\n"])
def test_a_second_run_of_a_process_and_one_in_a_prompt_begin_with_their_first_use(
    before: str, ledgers: Path
) -> None:
    run_to_end(f"{before}time.sleep(0.1)\n{NOTES_WHEN}{STEPS_ONCE}", ledgers)
    for path in open_ledgers(ledgers):
        with LedgerReader(path) as reader:
            began = reader.totals().gauges.get("began")
            assert began is None or reader.header.start >= began


def test_a_kernel_that_does_not_tell_when_a_process_began_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    assert process_start(str(tmp_path)) is None
    (tmp_path / "self" / "stat").write_text("7 (python) S 1" + " 0" * 40)
    assert process_start(str(tmp_path)) is None


# -- several nodes without a key -----------------------------------------------------------------------

KEYLESS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_a_run_whose_launches_look_alike_gets_its_label_at_the_first_step_and_says_so(ledgers: Path) -> None:
    with training(
        "stepscope.start(run='train')\nhold()\n" + STEP + "hold()\n" + STEP, ledgers, KEYLESS
    ) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as reader:
            assert not reader.header.named
            provisional = reader.header.run
            go_on(process)
            wait_for_line(process)
            reader.totals()
            assert reader.header.named
            assert reader.header.launch_key == ""
            assert reader.header.run == provisional == Launch("train", "10.0.0.1/29500").run
        _, errors = process.communicate("\n", timeout=SECONDS)
    assert errors == (
        "stepscope: launches of this job look like one run, because its nodes share no unique text: set "
        "STEPSCOPE_LAUNCH to one, or start torchrun with --rdzv-id\n"
    )


def test_under_a_command_the_nodes_without_a_common_key_are_runs_of_their_own_and_say_so(
    ledgers: Path,
) -> None:
    with training(f"stepscope.start(run='train')\n{STEP}", ledgers, KEYLESS | {NODE_KEY: "one"}) as process:
        _, errors = process.communicate("\n", timeout=SECONDS)
    assert errors.startswith("stepscope: nodes of this job look like runs of their own, because its nodes")
    with only_ledger(ledgers) as reader:
        assert reader.header.launch_key == "one"
        assert reader.header.run == Launch("train", "one").run


STORES = {
    "none": "",
    "not set up": "c10d.is_initialized = lambda: False",
    "without the function": "c10d._get_default_store = lambda: object()",
    "that raises": "c10d._get_default_store = lambda: 1 / 0",
    "that hangs": "c10d._get_default_store = lambda: time.sleep(30)",
}


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_gives_no_key_never_stops_training(ledgers: Path, store: str) -> None:
    prepare = f"""
    import types
    from stepscope.training import launch
    launch.shared_key.__defaults__ = (0.05,)
    c10d = types.SimpleNamespace(is_initialized=lambda: True)
    {STORES[store]}
    if {store != "none"}: sys.modules["torch.distributed.distributed_c10d"] = c10d
    """
    run = run_to_end(prepare + f"\n    {STEP}\n", ledgers, KEYLESS)
    assert run.totals.steps == {"train": 1}
    with only_ledger(ledgers) as reader:
        assert reader.header.named


def test_all_ranks_get_the_key_of_the_first_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, bytes] = {}

    class Store:
        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            return keys.setdefault(key, desired.encode())

    class Prefixed:
        underlying_store = Store()

    class C10d:
        is_initialized = staticmethod(lambda: True)
        _get_default_store = staticmethod(Prefixed)

    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", C10d)
    first = launches.shared_key()
    assert first is not None
    assert launches.shared_key() == first
    assert list(keys) == ["stepscope/launch"]


# -- environments --------------------------------------------------------------------------------------


def slurm(rank: int, job: str = "1234", step: str = "0", **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": step,
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 2),
        "SLURM_TASK_PID": str(rank + 5000),
        **more,
    }


def torchrun(rank: int, run_id: str = "none", restarts: int = 0, **more: str) -> dict[str, str]:
    """Two agents with two ranks each. Elastic jobs take another port at each restart."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 2),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "node-1",
        "MASTER_PORT": str(29500 + restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        **more,
    }


def open_mpi(rank: int, job: str = "prterun-node-1-77@1") -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": job,
        "PMIX_RANK": str(rank),
    }


def kubeflow(rank: int, job: str = "bert") -> dict[str, str]:
    """A PyTorchJob: its master calls itself localhost."""
    replica = f"worker-{rank - 1}" if rank else "master-0"
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "MASTER_ADDR": f"{job}-master-0" if rank else "localhost",
        "MASTER_PORT": "23456",
        "HOSTNAME": f"{job}-{replica}",
        "POD_NAMESPACE": "research",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    }


def ray(rank: int, port: int = 41234) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "RAY_JOB_ID": "01000000",
        "MASTER_ADDR": "10.1.2.3",
        "MASTER_PORT": str(port),
    }


def launched(environment: Mapping[str, str]) -> Launch:
    return read_launch(environment, read_ranks(environment))


@pytest.mark.parametrize(
    ("environment", "key", "unique", "of_node"),
    [
        ({}, "one", True, True),
        ({**torchrun(0), "LOCAL_WORLD_SIZE": "4"}, "one", True, True),
        (torchrun(0, "job"), "torchrun:job", True, False),
        (torchrun(0), "one", False, True),
        (slurm(0), "slurm::1234.0", True, False),
        (torchrun(0, STEPSCOPE_LAUNCH="given"), "given", True, False),
    ],
)
def test_the_key_of_a_nodes_command_is_for_ranks_that_share_none_with_other_nodes(
    environment: dict[str, str], key: str, unique: bool, of_node: bool
) -> None:
    launch = launched({**environment, NODE_KEY: "one"})
    assert (launch.key, launch.unique, launch.of_node) == (key, unique, of_node)


# The environment of each rank of a launch, and what another launch has instead.
LAUNCHERS: dict[str, tuple[Callable[..., dict[str, str]], dict[str, object]]] = {
    "srun": (slurm, {"step": "1"}),
    "srun of another job": (slurm, {"job": "1235"}),
    "torchrun": (lambda rank, run_id="a": torchrun(rank, run_id), {"run_id": "b"}),
    "torchrun in steps": (
        lambda rank, **which: slurm(rank // 2, SLURM_STEP_NUM_TASKS="2", **which) | torchrun(rank),
        {"step": "1"},
    ),
    "mpirun": (open_mpi, {"job": "prterun-node-1-78@1"}),
    "mpirun in Slurm": (
        lambda rank, **which: slurm(rank // 2, step=str(rank // 2)) | open_mpi(rank, **which),
        {"job": "prterun-node-1-78@1"},
    ),
    "Ray": (ray, {"port": 41235}),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_ranks_of_a_launch_agree_and_no_two_launches_do(launcher: str) -> None:
    of_rank, other = LAUNCHERS[launcher]
    found = set()
    for which in ({}, other):
        of_launch = [launched(of_rank(rank, **which)) for rank in range(4)]
        assert all(launch.unique for launch in of_launch)
        (run,) = {launch.run for launch in of_launch}
        found.add(run)
    assert len(found) == 2


@given(
    run_id=st.text("abc-123", min_size=1).filter(lambda text: text != "none"),
    restarts=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    irrelevant=st.dictionaries(
        st.sampled_from(["HOSTNAME", "PWD", "SHLVL", "CUDA_VISIBLE_DEVICES"]), st.text()
    ),
)
def test_a_restart_and_what_differs_by_rank_never_change_the_run(
    run_id: str, restarts: list[int], irrelevant: dict[str, str]
) -> None:
    environments = [
        torchrun(rank, run_id, count, **(irrelevant if rank else {})) for rank, count in enumerate(restarts)
    ]
    assert len({launched(each).run for each in environments}) == 1
    assert [read_ranks(each).attempt for each in environments] == restarts


def test_a_job_that_slurm_requeues_is_an_attempt_of_its_run() -> None:
    first, again = slurm(2), slurm(2, SLURM_RESTART_COUNT="3", SLURM_TASK_PID="9")
    assert launched(first).run == launched(again).run
    assert (read_ranks(first).attempt, read_ranks(again).attempt) == (0, 3)


def test_one_task_of_slurm_is_its_steps_run_but_what_its_shell_starts_is_not() -> None:
    alone = {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}
    task = slurm(0, **alone, SLURM_TASK_PID=str(os.getpid()))
    assert launched(task).key == "slurm::1234.0"
    assert launched(slurm(0, **alone)).key != "slurm::1234.0"


def test_a_step_per_node_is_no_key_of_the_launch() -> None:
    """`srun --nodes=1 torchrun --node-rank=N &` for each node."""
    both = [
        slurm(0, step=str(node), SLURM_STEP_NUM_TASKS="1", SLURM_NTASKS="1") | torchrun(2 * node)
        for node in range(2)
    ]
    assert [launched(each).unique for each in both] == [False, False]
    assert len({launched(each).run for each in both}) == 1


def test_pods_of_a_kubeflow_job_agree_although_its_name_may_be_used_again() -> None:
    pods = [launched(kubeflow(rank)) for rank in range(4)]
    assert len({pod.run for pod in pods}) == 1
    assert not any(pod.unique for pod in pods)
    assert {(pod.scheduler, pod.scheduler_job, pod.namespace) for pod in pods} == {
        ("kubernetes", "bert", "research")
    }
    assert [pod.pod for pod in pods] == ["bert-master-0", "bert-worker-0", "bert-worker-1", "bert-worker-2"]
    assert launched(kubeflow(0, "gpt")).run != pods[0].run


def test_torchrun_in_the_pods_of_a_kubeflow_job_needs_a_launch_of_its_own_to_be_known_from_the_start() -> (
    None
):
    """One pod per node: torchrun replaces the rank of the pod by those of its processes."""
    pods = [kubeflow(rank // 2) | torchrun(rank, MASTER_ADDR="bert-master-0") for rank in range(4)]
    assert [read_ranks(pod).rank for pod in pods] == [0, 1, 2, 3]
    assert {(launched(pod).scheduler_job, launched(pod).unique) for pod in pods} == {("bert", False)}
    given = [launched({**pod, "STEPSCOPE_LAUNCH": "bert-1", "STEPSCOPE_RUN": "bert"}) for pod in pods]
    assert all(launch.unique for launch in given)
    assert {launch.run for launch in given} == {Launch("bert", "bert-1").run}


def test_the_job_of_the_page_gives_all_its_replicas_one_run_of_its_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    (block,) = [text for text in re.findall(r"(?ms)^```yaml\n(.*?)^```", page) if "PyTorchJob" in text]
    replicas = yaml.safe_load(block)["spec"]["pytorchReplicaSpecs"].values()
    assert sum(replica["replicas"] for replica in replicas) == 4
    found = set()
    for replica in replicas:
        (container,) = replica["template"]["spec"]["containers"]
        given = {variable["name"]: variable["value"] for variable in container["env"]}
        found |= {launched(kubeflow(rank) | given).run for rank in range(4)}
    assert found == {Launch("bert", "bert-1").run}


def test_workers_of_ray_in_pods_are_one_run_of_rays_job_and_their_driver_is_none_of_them() -> None:
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAMESPACE": "research", "STEPSCOPE_RUN": "resnet"}
    workers = [launched({**ray(rank), **in_pod, "HOSTNAME": f"ray-worker-{rank // 2}"}) for rank in range(4)]
    (run,) = {worker.run for worker in workers}
    assert run.startswith("resnet-")
    assert {(one.scheduler, one.scheduler_job, one.namespace) for one in workers} == {
        ("ray", "01000000", "research")
    }
    assert [one.pod for one in workers] == ["ray-worker-0", "ray-worker-0", "ray-worker-1", "ray-worker-1"]
    driver = {**in_pod, "RAY_JOB_ID": "01000000", "HOSTNAME": "ray-head"}
    assert launched(driver).run != run


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (slurm(0), ("slurm", "1234", "slurm-1234-")),
        (slurm(0, SLURM_ARRAY_JOB_ID="1230", SLURM_ARRAY_TASK_ID="7"), ("slurm", "1230_7", "slurm-1230_7-")),
        (slurm(0, STEPSCOPE_RUN="bert"), ("slurm", "1234", "")),
        (ray(0), ("ray", "01000000", "")),
        (
            {"KUBERNETES_SERVICE_HOST": "", "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "a-b-2"},
            ("kubernetes", "a-b", ""),
        ),
        ({"KUBERNETES_SERVICE_HOST": "", "JOB_NAME": "night", "HOSTNAME": "x"}, ("kubernetes", "night", "")),
        ({"KUBERNETES_SERVICE_HOST": "", "HOSTNAME": "notebook"}, ("kubernetes", "", "")),
        ({}, ("", "", "")),
    ],
)
def test_the_scheduler_and_its_job_are_known(
    variables: dict[str, str], expected: tuple[str, str, str]
) -> None:
    launch = launched(variables)
    assert (launch.scheduler, launch.scheduler_job, launch.prefix) == expected


def test_a_run_of_slurm_has_the_job_in_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])
    launch = launched(slurm(1))
    assert launch.name == "train"
    assert launch.run.startswith("slurm-1234-train-")


def test_equal_pids_in_two_containers_are_two_launches(tmp_path: Path) -> None:
    keys = set()
    for number, (boot, namespace, start) in enumerate(
        [("a", "pid:[1]", 5), ("b", "pid:[1]", 5), ("a", "pid:[2]", 5), ("a", "pid:[1]", 6)]
    ):
        proc = tmp_path / str(number)
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to(namespace)
        (proc / str(os.getpid())).mkdir()
        fields = " ".join(["S", "1", *["0"] * 17, str(start), "0"])
        (proc / str(os.getpid()) / "stat").write_text(f"{os.getpid()} (a) name) {fields}")
        keys.add(read_launch({}, read_ranks({}), proc=str(proc)).key)
    assert len(keys) == 4


def test_many_launches_of_one_node_are_many_runs(ledgers: Path) -> None:
    with ExitStack() as running:
        for _ in range(5):
            process = running.enter_context(training("stepscope.start()\nhold()", ledgers))
            wait_for_line(process)
        assert len(runs(ledgers)) == 5
