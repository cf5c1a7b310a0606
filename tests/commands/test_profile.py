"""`stepscope profile` on processes that train."""

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from stepscope.commands import profile
from stepscope.commands.cli import main
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.asked_windows import TrainingRank
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.exporter.ledgers.run_totals import SHOWN
from stepscope.runs.traces.capture import captures_of
from stepscope.training import layout

from tests.support.environment import unobserved
from tests.support.exporter_process import ExporterProcess
from tests.support.places import put_counters
from tests.support.pytorch import needs_torch
from tests.support.ranks import launcher
from tests.support.training_script import EXPORTER, training, wait_for_line
from tests.support.waiting import wait_until

STEPS = """
    say()
    while True:
        stepscope.record_step('train', 1.0, 1.01)
        time.sleep(0.01)
"""
HELD = """
    stepscope.record_step('train', 1.0, 2.0)
    hold()
"""
HOOKED = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


def asked(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str]:
    status = main(["profile", *words, "--ledger-dir", str(folder)])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def started(stack: ExitStack, folder: Path, script: str = STEPS, **more: str) -> subprocess.Popen[str]:
    environment = {"STEPSCOPE_RUN": "bert", "STEPSCOPE_LAUNCH": "one", **more}
    process = stack.enter_context(training(script, folder / "ledgers", environment))
    wait_for_line(process)
    wait_until(lambda: any(map(_has_steps, open_ledgers(folder / "ledgers"))))
    return process


def _has_steps(path: Path) -> bool:
    with LedgerReader(path) as reader:
        return reader.totals().steps_recorded > 0


@needs_torch
def test_one_rank_of_two_that_trains_records_a_window_on_demand_and_the_exporter_publishes_its_operators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(HOOKED)
    inherited = unobserved()
    environment = inherited | {
        "STEPSCOPE_RUN": "bert",
        "STEPSCOPE_LAUNCH": "one",
        "STEPSCOPE_INSTRUMENT": "1",
        "STEPSCOPE_LEDGER_DIR": str(tmp_path / "ledgers"),
        "STEPSCOPE_PROFILE_DIR": str(tmp_path / "profiles"),
        "PYTHONPATH": f"{STARTUP}{os.pathsep}{EXPORTER}",
    }
    command, name = [*launcher(2), str(tmp_path / "train.py")], "stepscope_operator_seconds_total"
    seconds: dict[frozenset[tuple[str, str]], float] = {}
    with subprocess.Popen(command, env=environment) as ranks:
        try:
            wait_until(lambda: sum(map(_has_steps, open_ledgers(tmp_path / "ledgers"))) == 2)
            status, said = asked(capsys, tmp_path / "ledgers", "bert", "--steps", "3", "--ranks", "1")
            with ExporterProcess(f"--ledger-dir={tmp_path / 'ledgers'}") as exporter:
                exporter.wait_for(lambda: seconds.update(exporter.scrape().all(name)) or bool(seconds))
                loaded = Path(f"/proc/{exporter.process.pid}/maps").read_text()
        finally:
            ranks.terminate()
    assert status == 0, said
    (trace,) = (tmp_path / "profiles").glob("*.gz")
    assert trace.name.startswith("rank-1.steps-")
    assert said.splitlines()[-1].endswith(str(trace))
    assert "rank 0" not in said
    assert "numpy" not in loaded
    (capture,) = captures_of(trace)
    truth = {each.name: each.self_seconds for each in capture.summary.operators}
    found = {dict(labels)["operator"]: value for labels, value in seconds.items()}
    assert {(dict(labels)["rank"], dict(labels)["device"]) for labels in seconds} == {("1", "cpu")}
    assert sum(found.values()) == pytest.approx(sum(truth.values()))
    most = sorted(truth, key=lambda operator: -truth[operator])[:SHOWN]
    assert {operator: found[operator] for operator in most} == pytest.approx(
        {operator: truth[operator] for operator in most}
    )


def test_a_process_without_hooks_refuses_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        started(stack, tmp_path)
        status, said = asked(capsys, tmp_path / "ledgers", "bert")
    assert status == 1
    assert "rank 0: no window: the hooks of PyTorch, JAX or TensorFlow are not on in this process" in said


def test_a_process_without_a_step_for_a_minute_is_given_up_and_the_request_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "NO_STEP", 0.3)
    with ExitStack() as stack:
        started(stack, tmp_path, HELD)
        status, said = asked(capsys, tmp_path / "ledgers", "bert")
        (ledger,) = open_ledgers(tmp_path / "ledgers")
        assert ledger.read_bytes()[layout.WINDOW_AT :][: layout.WINDOW_REQUEST.size] == bytes(
            layout.WINDOW_REQUEST.size
        )
    assert status == 1
    assert "rank 0: no window: no step has ended for 0.3 s" in said


def test_a_process_that_ends_meanwhile_is_no_longer_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        process = started(stack, tmp_path, HELD)

        def kill(_: float) -> None:
            process.send_signal(signal.SIGKILL)
            process.wait()

        monkeypatch.setattr("time.sleep", kill)
        status, said = asked(capsys, tmp_path / "ledgers", "bert")
    assert status == 1
    assert "its process has ended" in said


def test_ctrl_c_takes_the_request_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with ExitStack() as stack:
        started(stack, tmp_path, HELD)
        monkeypatch.setattr("time.sleep", interrupted)
        status, said = asked(capsys, tmp_path / "ledgers", "bert")
        (ledger,) = open_ledgers(tmp_path / "ledgers")
        assert ledger.read_bytes()[layout.WINDOW_AT :][: layout.WINDOW_REQUEST.size] == bytes(
            layout.WINDOW_REQUEST.size
        )
    assert status == 130
    assert "taken back" in said


def test_a_run_of_another_user_is_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        started(stack, tmp_path)
        (ledger,) = open_ledgers(tmp_path / "ledgers")
        assert ledger.stat().st_mode & 0o022 == 0  # the kernel refuses it, too
        before = ledger.read_bytes()[layout.WINDOW_AT :]
        monkeypatch.setattr("os.geteuid", lambda: ledger.stat().st_uid + 4711)
        status, said = asked(capsys, tmp_path / "ledgers", "bert")
        assert ledger.read_bytes()[layout.WINDOW_AT :] == before
    assert status == 2
    assert "only this user and root can ask it" in said


def test_slow_and_median_are_ranks_by_their_time_without_communication() -> None:
    known = {
        rank: TrainingRank(rank, Path("ledger"), 0, 10, 5.0, own)
        for rank, own in enumerate([1.0, 4.0, 2.0, 1.5, 0.5])
    }
    assert profile._chosen(("slow",), known) == {1}
    assert profile._chosen(("median", "4"), known) == {3, 4}
    assert profile._chosen((), known) == set(known)


def test_what_cannot_be_asked_for_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        started(stack, tmp_path)
        for words, reason in (
            (("resnet",), "there is no run 'resnet'"),
            (("bert", "--ranks", "7"), "--ranks 7: not on this node; the ranks here are 0"),
            (("bert", "--ranks", "median"), "--ranks median: not on this node; the ranks here are 0"),
        ):
            status, said = asked(capsys, tmp_path / "ledgers", *words)
            assert status == 2
            assert reason in said
            assert said.count("\n") == 1
    status, said = asked(capsys, tmp_path, "bert", "--steps", "0")
    assert status == 2
    assert "'0' must be a number from 1 to 1000" in said


def test_an_answer_that_cannot_be_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        started(stack, tmp_path, HELD)
        (ledger,) = open_ledgers(tmp_path / "ledgers")
        at = (layout.WINDOW_ANSWER_AT - layout.COUNTERS_AT) // 8
        put_counters(ledger, at, float("nan"), 3.0, -1.0, 1e300)
        status, said = asked(capsys, tmp_path / "ledgers", "bert")
    assert status == 1
    assert "has an answer that cannot be" in said
