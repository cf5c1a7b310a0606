"""`stepscope stacks` on real training processes: where they are, and their Python stacks."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
from stepscope.commands.cli import main
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.exporter.processes import stacks
from stepscope.exporter.processes.stacks import NoStackError, python_stack

from tests.support.places import put_place
from tests.support.training_script import training, wait_for_line, wait_until_held
from tests.support.waiting import SECONDS, wait_until

SCRIPT = """
    def endless_loader():
        stepscope.record_step('train', 1.0, 2.0)
        hold()
    endless_loader()
"""
BUSY = """
    def endless_loader():
        say()
        while True: pass
    stepscope.record_step('train', 1.0, 2.0)
    endless_loader()
"""


KEEPS_THE_LOCK = """
    import ctypes
    def endless_loader():
        say()
        ctypes.PyDLL(None).sleep(600)
    stepscope.record_step('train', 1.0, 2.0)
    endless_loader()
"""


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ExitStack]:
    monkeypatch.setenv("PATH", str(tmp_path))  # without a py-spy that may be installed
    monkeypatch.setattr(stacks, "ANSWER_SECONDS", SECONDS)
    with ExitStack() as stack:
        yield stack


def rank(
    stack: ExitStack, folder: Path, number: int = 0, script: str = SCRIPT, launch: str = "one", on: str = "1"
) -> Popen[str]:
    """Starts a rank of the run `resnet`, and waits until it is in its loader."""
    environment = {
        "STEPSCOPE_RUN": "resnet",
        "STEPSCOPE_LAUNCH": launch,
        "RANK": str(number),
        "WORLD_SIZE": "4",
        "STEPSCOPE_STACKS": on,
    }
    process = stack.enter_context(training(script, folder, environment))
    (wait_until_held if "hold()" in script else wait_for_line)(process)
    return process


def ledgers(folder: Path) -> dict[int, Path]:
    found = {}
    for path in open_ledgers(folder):
        with LedgerReader(path) as reader:
            found[reader.header.rank] = path
    return found


def asked(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str]:
    status = main(["stacks", *words, "--ledger-dir", str(folder)])
    return status, capsys.readouterr().out


def test_the_table_says_where_each_rank_is_and_the_stack_in_which_function(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting, loading = rank(stack, tmp_path), rank(stack, tmp_path, 3, BUSY)
    long_ago = time.perf_counter() - 485
    put_place(ledgers(tmp_path)[0], "communication", time.perf_counter(), "gradients")
    put_place(ledgers(tmp_path)[3], "data_wait", long_ago)
    status, said = asked(capsys, tmp_path, "resnet")
    table, _, traces = said.partition("\n\n")
    heading, first, second = (line.split() for line in table.splitlines())
    assert heading == ["rank", "process", "state", "where", "for", "steps"]
    assert first[:5] == ["0", str(waiting.pid), "waiting", "communication:", "gradients"]
    assert second[:4] == ["3", str(loading.pid), "running", "data_wait"]
    assert f"rank 3 (process {loading.pid}):\n" in traces
    assert re.search(r'File "<string>", line \d+ in endless_loader', traces.partition("rank 3")[2])
    assert status == 0
    _, said = asked(capsys, tmp_path, "resnet", "--rank", "3")
    assert ("rank 3 (" in said, "rank 0 (" in said) == (True, False)
    status, said = asked(capsys, tmp_path, "resnet", "--no-stacks")
    assert (status, "in endless_loader" in said) == (0, False)


def test_asking_twice_gives_two_answers_and_training_goes_on(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = rank(stack, tmp_path)
    for _ in range(2):
        assert asked(capsys, tmp_path, "resnet")[1].count("in endless_loader") == 1
    process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 0


def test_code_that_keeps_the_interpreter_lock_is_found_by_the_signal(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank(stack, tmp_path, script=KEEPS_THE_LOCK)
    kill = os.kill

    def kill_and_wait(pid: int, number: int) -> None:
        monkeypatch.setattr(stacks, "ANSWER_SECONDS", SECONDS)
        kill(pid, number)

    monkeypatch.setattr(stacks, "ANSWER_SECONDS", 0.5)  # of which the process can use none
    monkeypatch.setattr(os, "kill", kill_and_wait)
    status, said = asked(capsys, tmp_path, "resnet")
    assert (status, said.count("in endless_loader")) == (0, 1)


def test_a_process_that_can_answer_is_never_interrupted(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal's handler reads the stacks of threads that run: now and then that ends the process."""
    rank(stack, tmp_path, script=BUSY)
    monkeypatch.setattr(stacks, "SIGNAL", signal.SIGKILL)
    for _ in range(2):
        assert asked(capsys, tmp_path, "resnet")[1].count("in endless_loader") == 1


def test_a_file_in_place_of_the_request_is_not_written(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank(stack, tmp_path)
    monkeypatch.setattr(stacks, "ANSWER_SECONDS", 0.5)
    (ledger,) = ledgers(tmp_path).values()
    request = ledger.with_name(f"{ledger.name}.stack.request")
    request.unlink()
    request.write_text("mine")
    asked(capsys, tmp_path, "resnet")
    assert request.read_text() == "mine"


NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@as_root
@pytest.mark.parametrize("kind", ["file", "fifo", "directory", "link"])
def test_what_another_user_planted_is_neither_printed_nor_waited_for(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    rank(stack, tmp_path, on="0")
    (ledger,) = ledgers(tmp_path).values()
    answer, request = (ledger.with_name(f"{ledger.name}{end}") for end in (".stack", ".stack.request"))
    if kind == "link":
        answer.symlink_to("/etc/passwd")
    elif kind == "directory":
        answer.mkdir()
    elif kind == "fifo":
        os.mkfifo(answer)
    else:
        answer.touch()
    os.mkfifo(request)
    for planted in (answer, request):
        os.chown(planted, NOBODY, NOBODY, follow_symlinks=False)
    asking = os.open(request, os.O_RDWR)
    if kind == "file":
        with answer.open("a") as file:
            file.write("Thread 0x1: File planted")
    status, said = asked(capsys, tmp_path, "resnet")
    os.set_blocking(asking, False)
    with pytest.raises(BlockingIOError):
        os.read(asking, 1)  # nobody asked there
    os.close(asking)
    assert (status, "Thread 0x1" in said) == (1, False)
    assert f"no stack: {answer} is not of its process (" in said
    assert said.count("\n\n") == 1, "one line says why"


@as_root
def test_a_foreign_request_next_to_genuine_answers_is_not_written(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank(stack, tmp_path)
    (ledger,) = ledgers(tmp_path).values()
    request = ledger.with_name(f"{ledger.name}.stack.request")
    os.chown(request, NOBODY, NOBODY)
    status, said = asked(capsys, tmp_path, "resnet")
    assert (status, said.count("in endless_loader")) == (0, 1), "the signal asks instead"


@as_root
def test_a_run_of_another_user_with_the_same_name_is_not_taken_for_ones_own(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = rank(stack, tmp_path)
    (ledger,) = ledgers(tmp_path).values()
    other = rank(stack, tmp_path)  # it is newer
    (planted,) = set(open_ledgers(tmp_path)) - {ledger}
    os.chown(planted, NOBODY, NOBODY)
    said = asked(capsys, tmp_path, "resnet", "--no-stacks")[1]
    assert (f" {mine.pid} " in said, f" {other.pid} " in said) == (True, False)
    said = asked(capsys, tmp_path, f"resnet@{NOBODY}", "--no-stacks")[1]
    assert (f" {mine.pid} " in said, f" {other.pid} " in said) == (False, True)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert main(["stacks", "resnet", "--ledger-dir", str(tmp_path)]) == 2
    assert "have a run 'resnet': name one of them, as in resnet@root" in capsys.readouterr().err


def test_a_process_without_a_handler_gets_no_signal_whatever_its_files_and_the_fix_is_said(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = rank(stack, tmp_path, on="0")
    status, said = asked(capsys, tmp_path, "resnet")
    assert status == 1
    assert "no stack: it was started without STEPSCOPE_STACKS=1" in said
    assert "pip install py-spy" in said
    (ledger,) = ledgers(tmp_path).values()
    ledger.with_name(f"{ledger.name}.stack").touch()
    assert asked(capsys, tmp_path, "resnet")[0] == 1
    process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 0, "it lives"


def test_a_stopped_process_is_stopped_and_its_answer_is_not_waited_for(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = rank(stack, tmp_path)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
    status, said = asked(capsys, tmp_path, "resnet")
    assert status == 1
    assert f"no stack: it is stopped: continue it (kill -CONT {process.pid})" in said
    assert said.splitlines()[1].split()[2] == "stopped"


def test_a_killed_rank_is_in_the_table_and_has_no_stack(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = rank(stack, tmp_path)
    process.kill()
    process.wait()
    status, said = asked(capsys, tmp_path, "resnet")
    assert (status, said.splitlines()[1].split()[2]) == (0, "dead")
    assert "process " not in said.partition("\n")[2]


def test_a_name_means_its_newest_launch_and_a_label_its_own(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = rank(stack, tmp_path, launch="first")
    (ledger,) = open_ledgers(tmp_path)
    with LedgerReader(ledger) as reader:
        label = reader.header.run
    second = rank(stack, tmp_path, launch="second")
    assert f" {second.pid} " in asked(capsys, tmp_path, "resnet", "--no-stacks")[1]
    assert f" {first.pid} " in asked(capsys, tmp_path, label, "--no-stacks")[1]


def test_py_spy_takes_the_stack_where_the_process_does_not_answer(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stub at the edge: py-spy needs a permission that not every machine gives."""
    process = rank(stack, tmp_path, on="0")
    spy = tmp_path / "py-spy"
    spy.write_text('#!/bin/sh\nif [ "$2" = --nonblocking ]; then echo "dumped $4 \x1b[31m"; fi\n')
    spy.chmod(0o755)
    status, said = asked(capsys, tmp_path, "resnet")
    assert (status, f"dumped {process.pid} ?[31m" in said) == (0, True)
    spy.write_text("#!/bin/sh\necho 'Permission Denied' >&2\nexit 1\n")
    status, said = asked(capsys, tmp_path, "resnet")
    assert (status, "no stack: py-spy says: Permission Denied" in said) == (1, True)


@pytest.mark.parametrize(
    ("user", "scope", "advice"),
    [
        (0, "1", ""),
        (1000, "0", ""),
        (1000, "1", r" \(/proc/sys/kernel/yama/ptrace_scope is 1: run as root, or set it to 0\)"),
        (1000, None, "; run as root, or in a container with --cap-add SYS_PTRACE"),
    ],
)
def test_what_py_spy_may_not_read_is_said_with_the_reason_that_this_user_can_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, scope: str | None, advice: str
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\necho 'Permission Denied' >&2\nexit 1\n")
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    yama = tmp_path / "sys/kernel/yama"
    yama.mkdir(parents=True)
    if scope is not None:
        (yama / "ptrace_scope").write_text(f"{scope}\n")
    with pytest.raises(NoStackError, match=f"^py-spy says: Permission Denied{advice}$"):
        python_stack(os.getpid(), tmp_path / "of-nobody.ledger", user, tmp_path)


def test_a_mistake_is_one_line_with_its_fix(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank(stack, tmp_path)
    for words, said in (
        ("gone", f"there is no run 'gone' in {tmp_path}: the runs there are resnet-"),
        ("resnet --rank 7", "--rank 7: not on this node; the ranks here are 0"),
        ("resnet --rank 0 --rank 7", "--rank 7: not on this node; the ranks here are 0"),
    ):
        assert main(["stacks", *words.split(), "--ledger-dir", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_the_answer_file_goes_with_the_ledger(stack: ExitStack, tmp_path: Path) -> None:
    from stepscope.exporter.ledgers.ages import Now
    from stepscope.exporter.ledgers.folder import LedgerFolder
    from stepscope.exporter.sampling.limits import Limits

    process = rank(stack, tmp_path)
    folder = LedgerFolder(tmp_path, retention=1.0)
    folder.look(time.time(), Limits())
    assert len(os.listdir(tmp_path)) == 3
    process.kill()
    process.wait()
    for ledger in folder.ledgers:
        ledger.end_at(Now(0.0, 0.0))
    folder.tidy(time.monotonic())
    assert [name for name in os.listdir(tmp_path) if ".ledger" in name] == []
    folder.close()


def test_sampling_lines_leaves_the_process_alive_for_readers(stack: ExitStack, tmp_path: Path) -> None:
    script = """
    from stepscope.training.line_identity import Identity
    from stepscope.training.session import session
    stepscope.record_step('train', 1.0, 2.0)
    identity = Identity(session.ledger)
    assert (identity.rank, identity.role) == (0, 1)
    hold()
    """
    rank(stack, tmp_path, script=script)
    (ledger,) = ledgers(tmp_path).values()
    with LedgerReader(ledger) as reader:
        assert reader.alive()
