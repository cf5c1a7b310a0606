"""deploy/slurm on a real Slurm: the run has its name, its folder and all its ranks, whatever starts them."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerReader, open_ledgers

from tests.support.processes import ran
from tests.support.pytorch import needs_torch
from tests.support.slurm import SCRIPTS, Slurm, needs_slurm, script, slurm

TRAINS = "import stepscope\nfor _ in range(3):\n    with stepscope.step(): pass\n"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GID": str(os.getgid())}
TASK = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "resnet", "SLURMD_NODENAME": "node1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as started:
        (started.folder / "train.py").write_text(TRAINS)
        yield started


def headers(folder: Path, job: str) -> list[LedgerHeader]:
    """Returns the headers of the ledgers of a job."""
    found = []
    for path in open_ledgers(folder):
        with LedgerReader(path) as reader:
            found.append(reader.header)
    return [header for header in found if header.scheduler_job == job]


def submit_example(cluster: Slurm, launcher: str, **environment: str) -> str:
    text = (SCRIPTS / "train.sbatch").read_text()
    ours = "".join(
        line for line in text.splitlines(keepends=True) if "-per-" not in line or "#SBATCH" not in line
    )
    (cluster.folder / "train.sbatch").write_text(ours)  # there are no GPUs here
    return cluster.submit("--exclusive", "train.sbatch", launcher, **environment)


@needs_slurm
def test_ranks_that_srun_starts_on_two_nodes_are_one_run_of_the_jobs_name(cluster: Slurm) -> None:
    job = submit_example(cluster, "srun", RANKS="2", MASTER_ADDR="node1")
    found = headers(cluster.ledgers, job)
    assert {header.name for header in found} == {"resnet"}
    assert len({header.run for header in found}) == 1
    assert sorted((header.rank, header.world_size) for header in found) == [(rank, 4) for rank in range(4)]
    assert not (cluster.runs / job).exists()  # it recorded nothing


@needs_slurm
@needs_torch
def test_with_torchrun_each_node_records_the_same_run_into_the_jobs_folder(cluster: Slurm) -> None:
    job = submit_example(cluster, "torchrun", RANKS="1")
    reports = {
        path.parent.name: json.loads(path.read_text()) for path in cluster.runs.glob(f"{job}/*/report.json")
    }
    assert reports.keys() == {"0.0-node1", "0.0-node2"}
    (run,) = {report["run"]["run"] for report in reports.values()}
    assert run.startswith("resnet-")


@needs_slurm
def test_what_a_batch_script_starts_has_the_name_of_its_job_or_of_its_user(cluster: Slurm) -> None:
    job = cluster.submit("--job-name=night", "--wrap=python train.py")
    (header,) = headers(cluster.ledgers, job)
    assert header.name == "night"
    job = cluster.submit("--wrap=python train.py", STEPSCOPE_RUN="bert")
    (header,) = headers(cluster.ledgers, job)
    assert header.name == "bert"


def called(path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return ran(["/bin/sh", path], env=environment, check=True)


def test_the_folders_are_open_to_those_who_need_them(tmp_path: Path) -> None:
    called(script("prolog.sh", tmp_path), JOB)
    modes = {name: (tmp_path / name).stat().st_mode & 0o7777 for name in ("ledgers", "runs", "runs/7")}
    assert modes == {"ledgers": 0o1777, "runs": 0o755, "runs/7": 0o750}


def test_a_link_in_place_of_the_ledgers_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "ledgers").symlink_to("elsewhere")
    called(script("prolog.sh", tmp_path), JOB)
    assert (tmp_path / "elsewhere").stat().st_mode & 0o7777 == 0o700


def test_a_prolog_that_can_make_nothing_still_succeeds_so_no_node_is_drained(tmp_path: Path) -> None:
    for name in ("ledgers", "runs"):
        (tmp_path / name).write_text("in the way")
    called(script("prolog.sh", tmp_path), JOB)
    assert "STEPSCOPE_RUN_DIR" not in called(script("task-prolog.sh", tmp_path), TASK).stdout
    called(script("epilog.sh", tmp_path), JOB)


def test_a_folder_that_cannot_be_given_to_the_user_is_no_place_to_record(tmp_path: Path) -> None:
    """As on a file system that refuses root: stepscope run would not start the training."""
    called(script("prolog.sh", tmp_path), JOB | {"SLURM_JOB_UID": "no-such-user"})
    assert "STEPSCOPE_RUN_DIR" not in called(script("task-prolog.sh", tmp_path), TASK).stdout


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to be another user")
def test_the_folder_of_another_users_job_is_no_place_to_record(open_path: Path) -> None:
    called(script("prolog.sh", open_path), JOB)
    folder = open_path / "runs" / "7"
    folder.chmod(folder.stat().st_mode | 0o011)
    other = ("setpriv", "--reuid=1001", "--regid=65534", "--clear-groups")
    command = [*other, "/bin/sh", str(script("task-prolog.sh", open_path))]
    done = ran(command, env=TASK, check=True)
    assert done.stdout == "export STEPSCOPE_RUN=resnet\n"


def test_steps_and_attempts_of_a_job_have_folders_of_their_own(tmp_path: Path) -> None:
    called(script("prolog.sh", tmp_path), JOB)
    printed = {
        called(script("task-prolog.sh", tmp_path), TASK | more).stdout
        for more in ({}, {"SLURM_STEP_ID": "0"}, {"SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"})
    }
    assert {lines.splitlines()[1].rpartition("/")[2] for lines in printed} == {
        "batch.0-node1",
        "0.0-node1",
        "0.1-node1",
    }


def test_a_name_of_several_lines_sets_no_other_variable(tmp_path: Path) -> None:
    printed = called(script("task-prolog.sh", tmp_path), TASK | {"SLURM_JOB_NAME": "a\nexport LD_PRELOAD=b"})
    assert printed.stdout == "export STEPSCOPE_RUN=a_export LD_PRELOAD=b\n"


def test_a_name_with_backslashes_is_printed_as_it_is(tmp_path: Path) -> None:
    printed = called(script("task-prolog.sh", tmp_path), TASK | {"SLURM_JOB_NAME": r"runs\new\nexport A=%s"})
    assert printed.stdout == "export STEPSCOPE_RUN=runs\\new\\nexport A=%s\n"


def test_an_example_job_that_starts_nothing_fails() -> None:
    job = ["bash", str(SCRIPTS / "train.sbatch"), "torchrnu"]
    ended = ran(job, env=TASK)
    assert ended.returncode == 2
    assert "torchrnu starts nothing; give torchrun or srun" in ended.stderr


def test_the_epilog_keeps_what_a_job_recorded(tmp_path: Path) -> None:
    called(script("prolog.sh", tmp_path), JOB)
    (tmp_path / "runs" / "7" / "0.0-node1").mkdir()
    called(script("epilog.sh", tmp_path), JOB)
    assert (tmp_path / "runs" / "7" / "0.0-node1").is_dir()
