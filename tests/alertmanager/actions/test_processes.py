"""A process is signalled only if it is still the one that was found."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.alertmanager.actions import processes
from stepscope.alertmanager.actions.processes import Identity, TrainingProcess, processes_of
from stepscope.common.users import user_name
from stepscope.exporter.ledgers.reader import open_ledgers

from tests.support.training_process import LAUNCH, RESNET
from tests.support.training_script import training, wait_for_line
from tests.support.waiting import SECONDS

SCRIPT = """
import signal
def stop(*_):
    say("asked")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
stepscope.start(run="resnet")
hold()
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with training(SCRIPT, tmp_path / "ledgers", {"STEPSCOPE_LAUNCH": LAUNCH}) as process:
        wait_for_line(process)
        yield process


@pytest.fixture
def found(tmp_path: Path, trainer: subprocess.Popen[str]) -> TrainingProcess:
    (process,) = processes_of(RESNET, os.geteuid(), tmp_path / "ledgers")
    assert (process.pid, process.spared) == (trainer.pid, "")
    return process


class ProcTree:
    """A copy of a process's part of /proc, to change what it says."""

    def __init__(self, root: Path, pid: int) -> None:
        self._folder = root / str(pid)
        self._folder.mkdir(parents=True)
        for name in ("stat", "status"):
            (self._folder / name).write_bytes(Path(f"/proc/{pid}/{name}").read_bytes())

    def start_later(self) -> None:
        before, after = (self._folder / "stat").read_text().rsplit(")", 1)
        fields = after.split()
        fields[19] = str(int(fields[19]) + 1)
        (self._folder / "stat").write_text(f"{before}) {' '.join(fields)}\n")

    def run_as(self, user: int) -> None:
        lines = (self._folder / "status").read_text().splitlines()
        changed = [f"Uid:\t{user}\t{user}\t{user}\t{user}" if line[:4] == "Uid:" else line for line in lines]
        (self._folder / "status").write_text("\n".join(changed))

    def forget_namespaces(self) -> None:
        lines = (self._folder / "status").read_text().splitlines()
        (self._folder / "status").write_text("\n".join(line for line in lines if line[:2] != "NS"))

    def call_it(self, name: str) -> None:
        stat = (self._folder / "stat").read_text()
        (self._folder / "stat").write_text(f"1 ({name}){stat.rpartition(')')[2]}")


@pytest.fixture
def proc(tmp_path: Path, trainer: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> ProcTree:
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    return ProcTree(tmp_path / "proc", trainer.pid)


def no_pidfd(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("missing", [None, errno.ENOSYS, errno.EPERM])
def test_the_process_that_was_found_is_asked_with_and_without_pidfds(
    found: TrainingProcess,
    trainer: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: int | None,
) -> None:
    if missing is not None:
        monkeypatch.setattr(os, "pidfd_open", lambda _: no_pidfd(missing))
    assert found.ask_to_stop() == "sent"
    wait_for_line(trainer, "asked")


@pytest.mark.parametrize("change", ["start", "user"])
def test_a_process_that_has_another_start_time_or_user_by_now_is_not_asked(
    proc: ProcTree,
    found: TrainingProcess,
    trainer: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    if change == "start":
        proc.start_later()
    else:
        proc.run_as(12345)
    assert found.ask_to_stop() == "is not the same process any more"
    monkeypatch.setattr(os, "pidfd_open", lambda _: no_pidfd(errno.ENOSYS))
    assert found.ask_to_stop() == "is not the same process any more"
    assert trainer.poll() is None


def test_a_process_that_runs_as_another_user_than_its_ledgers_owner_is_spared(
    tmp_path: Path, proc: ProcTree, trainer: subprocess.Popen[str]
) -> None:
    """On a kernel that does not publish PIDs in namespaces, a process is found, too."""
    proc.forget_namespaces()
    (process,) = processes_of(RESNET, os.geteuid(), tmp_path / "ledgers")
    assert (process.pid, process.spared) == (trainer.pid, "")
    proc.run_as(12345)
    (process,) = processes_of(RESNET, os.geteuid(), tmp_path / "ledgers")
    assert (
        process.spared == f"runs as user {user_name(12345)}, but its ledger is of {user_name(os.geteuid())}"
    )


@pytest.mark.usefixtures("trainer")
def test_a_process_that_may_not_be_seen_is_named_and_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    monkeypatch.setattr(Path, "read_bytes", refused)  # as with hidepid=1
    (process,) = processes_of(RESNET, os.geteuid(), tmp_path / "ledgers")
    assert process.spared == "cannot be seen in /proc"


def test_the_name_of_a_process_cannot_forge_its_start_time(
    trainer: subprocess.Popen[str], proc: ProcTree
) -> None:
    before = Identity.read(trainer.pid)
    proc.call_it("x) R 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 77 (y")
    assert Identity.read(trainer.pid) == before != None  # noqa: E711 - it can be seen


def test_a_process_that_has_ended_meanwhile_is_not_asked(
    found: TrainingProcess, trainer: subprocess.Popen[str]
) -> None:
    trainer.kill()
    trainer.wait(SECONDS)
    assert found.ask_to_stop() == "had ended already"


def test_a_process_whose_ledger_was_replaced_is_not_asked(
    tmp_path: Path, found: TrainingProcess, trainer: subprocess.Popen[str]
) -> None:
    (ledger,) = open_ledgers(tmp_path / "ledgers")
    os.link(ledger, tmp_path / "ledgers" / "other.ledger")
    (process,) = processes_of(RESNET, os.geteuid(), tmp_path / "ledgers")
    assert process.pid == trainer.pid, "found once, by two names of its ledger"
    (tmp_path / "ledgers" / "other.ledger").unlink()
    content = ledger.read_bytes()
    ledger.unlink()
    ledger.write_bytes(content)
    assert found.ask_to_stop() == "no longer holds its ledger"
    assert trainer.poll() is None
