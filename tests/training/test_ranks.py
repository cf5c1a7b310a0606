"""Which rank this is, as launchers tell it."""

import json
from pathlib import Path

import pytest
from stepscope.training.ranks import read_ranks, read_run_name

from tests.support.training_script import only_ledger, training
from tests.support.waiting import SECONDS

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
SLURM = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "2", "SLURM_NTASKS": "16"}
MPICH = {"PMI_RANK": "6", "MPI_LOCALRANKID": "2", "PMI_SIZE": "8"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "7",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "9",
}


def tensorflow(kind: str, index: object, **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


WORKERS = ["a:1", "b:1", "b:2"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, None, 1)),
        (tensorflow("worker", 2, worker=WORKERS), (2, 1, 3)),
        (tensorflow("worker", 1, worker=WORKERS, chief=["a:9"], ps=["c:1"]), (2, 0, 4)),
        (tensorflow("chief", 0, worker=WORKERS, chief=["a:9"]), (0, 0, 4)),
        (tensorflow("worker", 1, worker=WORKERS) | SLURM, (1, 0, 3)),
        (tensorflow("worker", 1, worker=WORKERS) | TORCHRUN, (3, 1, 8)),
        (tensorflow("ps", 0, worker=WORKERS, ps=["c:1"]), (0, None, 1)),
        (tensorflow("worker", 3, worker=WORKERS), (0, None, 1)),
        (tensorflow("worker", "first", worker=WORKERS), (0, None, 1)),
        ({"TF_CONFIG": "[" * 100000}, (0, None, 1)),
        ({"TF_CONFIG": "{}"}, (0, None, 1)),
        (TORCHRUN, (3, 1, 8)),
        (SLURM, (5, 2, 16)),
        (OPEN_MPI, (7, 0, 9)),
        ({**SLURM, **TORCHRUN}, (3, 1, 8)),
        (MPICH, (6, 2, 8)),
        ({**OPEN_MPI, **SLURM}, (7, 0, 9)),  # mpirun starts one task of Slurm per node
        ({"RANK": "2"}, (2, None, 3)),
        ({"WORLD_SIZE": "4"}, (0, None, 1)),
        ({"RANK": "first", **SLURM}, (5, 2, 16)),
        ({"RANK": "", "WORLD_SIZE": "4"}, (0, None, 1)),
        ({"RANK": "-1"}, (0, None, 1)),
        ({"RANK": "0", "WORLD_SIZE": "many", "LOCAL_RANK": "?"}, (0, None, 1)),
        ({"SLURM_NTASKS": "8"}, (0, None, 1)),  # salloc's shell: a job, but no task of it
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, (0, None, 1)),  # a batch script
    ],
)
def test_the_most_specific_launcher_tells_the_rank(
    environment: dict[str, str], expected: tuple[int, int | None, int]
) -> None:
    ranks = read_ranks(environment)
    assert (ranks.rank, ranks.local_rank, ranks.world_size) == expected


@pytest.mark.parametrize(
    ("script", "environment", "expected"),
    [
        ("/home/me/train.py", {}, "train"),
        ("-c", {}, "c"),
        ("", {}, "python"),
        ("train.py", {"SLURM_JOB_ID": "4711"}, "train"),
        ("/venv/tool/__main__.py", {}, "tool"),
        ("train.py", {"SLURM_JOB_ID": "4711", "STEPSCOPE_RUN": "resnet"}, "resnet"),
    ],
)
def test_the_run_is_named_by_the_user_or_the_script(
    script: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [script])
    assert read_run_name(environment) == expected


def test_the_header_holds_run_ranks_and_framework(ledgers: Path) -> None:
    script = """
    stepscope.start(run="größe/../1 2", framework="numpy", framework_version="2.4")
    say(os.getpid())
    """
    with training(script, ledgers, TORCHRUN) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert errors == ""
    with only_ledger(ledgers) as reader:
        header = reader.header
        assert reader.path.name.startswith("gr__e_.._1_2.3.")
    assert (header.name, header.rank, header.local_rank, header.world_size) == ("größe/../1 2", 3, 1, 8)
    assert (header.framework, header.framework_version, header.pid) == ("numpy", "2.4", int(output))


def test_ranks_that_become_known_later_leave_what_the_script_has_said(ledgers: Path) -> None:
    script = """
    from stepscope.training.session import start_as
    stepscope.start(run="mine", framework="numpy", framework_version="2.4")
    stepscope.gauge("peak_flops", 5.0)
    stepscope.count("tokens", 7.0)
    start_as(1, 4)
    stepscope.count("tokens", 1.0)
    """
    with training(script, ledgers) as process:
        process.communicate(timeout=SECONDS)
    with only_ledger(ledgers) as reader:
        header, totals = reader.header, reader.totals()
    assert (header.name, header.rank, header.world_size) == ("mine", 1, 4)
    assert (header.framework, header.framework_version) == ("numpy", "2.4")
    assert (totals.gauges, totals.counts) == ({"peak_flops": 5.0}, {"tokens": 8.0})


def test_what_is_given_to_start_goes_before_the_environment(ledgers: Path) -> None:
    with training("stepscope.start(rank=1, world_size=2, local_rank=0)", ledgers, TORCHRUN) as process:
        process.communicate(timeout=SECONDS)
    with only_ledger(ledgers) as reader:
        assert (reader.header.rank, reader.header.local_rank, reader.header.world_size) == (1, 0, 2)
