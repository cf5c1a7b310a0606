"""When windows begin and end, what their files say, and that nothing about them raises into training.

The profiler is a stand-in: tests/training/torch_hooks/test_profiler.py has the real one.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import struct
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stepscope.training import layout, window_files, window_request
from stepscope.training.ledger import Ledger, create_ledger
from stepscope.training.ranks import Ranks
from stepscope.training.recorder import Recorder, make_recorder
from stepscope.training.window_plans import parse_plans
from stepscope.training.windows import NO_HOOKS, Windows

if TYPE_CHECKING:
    from stepscope.training.windows import Profiler as OfFramework


BASE = 10**18  # nanoseconds since the epoch
BASE_BEFORE = f'{{"baseTimeNanoseconds": {BASE}, "traceEvents": [\n{{"ph": "M"}}]}}'
BASE_AFTER = f'{{"traceEvents": [\n{{"ph": "M"}}], "baseTimeNanoseconds": {BASE}\n}}'  # of PyTorch 2.6


class Profiler:
    """Writes a trace without events. `fails` names the function that raises."""

    ending = window_files.TRACE
    text = BASE_BEFORE

    def __init__(self) -> None:
        self.reason, self.fails, self.calls = "", "", ""
        self.error: BaseException | None = None  # that it raises instead, once

    def why_not(self) -> str:
        return self.reason

    def start(self, kind: str = "") -> None:
        self._call(kind or "start")

    def wait(self) -> None:
        pass

    def stop(self) -> None:
        self._call("stop")

    def forget(self) -> None:
        pass

    def write(self, path: str) -> list[dict[str, Any]]:
        self._call("write")
        Path(path).write_text(self.text)
        return []

    def knows_rank(self) -> bool:
        return False

    def _call(self, name: str) -> None:
        self.calls += name[:3] + " "
        if name == self.fails:
            if self.error is not None:
                self.fails = ""
                raise self.error
            raise RuntimeError(f"{name} failed")


def test_an_interrupt_while_a_step_is_recorded_costs_no_later_step(tmp_path: Path) -> None:
    interrupts = [True]

    def name_devices() -> bool:
        if interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return True

    looks: list[float] = []

    def look(_phase: str, _done: float, recorded: float) -> float:
        looks.append(recorded)
        return recorded + 1

    ledger = create_ledger(str(tmp_path), "resnet-1", Ranks(0, None, 1))
    recorder = make_recorder(lambda: True, name_devices=name_devices, look_around=look)
    recorder.attach(ledger.memory)
    ledger.look_at(1.0)
    assert recorder.in_automatic_step()
    with pytest.raises(KeyboardInterrupt):
        recorder.end_automatic_step(-1)
    assert recorder.end_automatic_step(-1)
    assert looks == [1.0]
    recorder.record_step("train", 1.0, 2.0)
    assert looks == [1.0, 2.0]
    ledger.remove()


class Training:
    """A process that trains: its recorder, its windows and what it complained about."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.ledger: Ledger | None = create_ledger(str(folder / "ledgers"), "resnet-1", Ranks(rank, None, 4))
        self.ranks = (rank, 4)
        self.stand_in = Profiler()
        self.profiler: OfFramework | None = self.stand_in
        self.capturing = False
        self.captures = lambda: self.capturing
        self.complaints: list[str] = []
        self.windows = Windows(self, lambda _, text: self.complaints.append(text))
        self.recorder: Recorder = make_recorder(
            lambda: True,
            look_around=lambda phase, done, recorded: self.windows.look(phase, int(done), recorded),
        )
        self.recorder.attach(self.ledger.memory)
        if os.environ.get("STEPSCOPE_PROFILE"):
            self.ledger.look_at(1.0)
        self.now = 100.0

    def step(self, count: int = 1, phase: str = "train") -> None:
        for _ in range(count):
            self.recorder.record_step(phase, self.now, self.now + 0.01)
            self.now += 0.01

    @property
    def fd(self) -> int:
        assert self.ledger is not None
        return self.ledger.fd

    def ask(self, first: float, steps: float) -> int:
        number = window_request.write_request(self.fd, first, steps)  # type: ignore[arg-type]
        window_request.wake(self.fd)
        return number

    @property
    def answer(self) -> window_request.Answer:
        return window_request.read_answer(self.fd)

    def listed(self) -> list[dict[str, Any]]:
        (path,) = self.folder.glob("profiles/*.windows.json")
        return list(json.loads(path.read_text())["windows"])

    def steps(self) -> list[tuple[int, int, str]]:
        return [(each["first"], each["last"], each["state"]) for each in self.listed()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_PROFILE_DIR", str(tmp_path / "profiles"))
    monkeypatch.delenv("STEPSCOPE_PROFILE", raising=False)
    return tmp_path


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    def training(text: str, rank: int = 0) -> Training:
        monkeypatch.setenv("STEPSCOPE_PROFILE", text)
        return Training(folder, rank)

    return training


# -- which steps ---------------------------------------------------------------------------------------


def test_windows_have_exactly_the_steps_that_were_named(plan: Any) -> None:
    training = plan("2:4;every=10,steps=3 14:14")
    training.step(35)
    found = training.steps()
    assert [(first, last) for first, last, _ in found] == [(2, 4), (10, 12), (14, 14), (20, 22), (30, 32)]
    assert {state for _, _, state in found} == {"written"}
    assert training.stand_in.calls == "sta sto wri " * 5


def test_a_step_is_between_two_windows(plan: Any) -> None:
    training = plan("2:4 5:8")
    training.step(12)
    assert training.steps() == [(2, 4, "written"), (6, 8, "written")]


def test_a_window_of_a_time_begins_then_and_ends_after_its_seconds(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    training = plan("at=1s,for=500ms")
    for _ in range(300):
        now = training.now + 0.01
        training.step()
    ((first, last, state),) = training.steps()
    assert state == "written"
    assert 99 <= first <= 116
    assert 49 <= last - first <= 51
    assert training.stand_in.calls == "sta sto wri "


def test_a_window_of_a_date_begins_then(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now, begin = 100.0, 1_800_000_000.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr("time.time", lambda: begin + now - 100.0)
    training = plan(f"at=@{begin + 1:.0f},for=500ms at=@{begin - 60:.0f},steps=2")
    for _ in range(300):
        now = training.now + 0.01
        training.step()
    (past, _, _), (first, last, state) = training.steps()
    assert state == "written"
    assert 97 <= first <= 116
    assert 49 <= last - first <= 51
    assert past <= 2  # a date that is over means as soon as possible


def test_only_the_ranks_that_were_named_record(plan: Any) -> None:
    training = plan("2:4,ranks=1,3", 2)
    training.step(10)
    assert training.stand_in.calls == ""
    assert not (training.folder / "profiles").exists()
    other = plan("2:4,ranks=1,3", 3)
    other.step(10)
    assert other.steps() == [(2, 4, "written")]


def test_outside_windows_the_recorder_does_not_even_ask(plan: Any) -> None:
    training = plan("5:6")
    asked: list[int] = []
    look = training.windows.look

    def counted(phase: str, done: int, recorded: float) -> float:
        asked.append(done)
        return float(look(phase, done, recorded))

    training.windows.look = counted
    training.step(1000)
    assert asked == [1, 5, 6, 7]  # first to read the plan, then at each step of the window


def test_an_evaluation_ends_a_window_and_is_not_in_its_steps(plan: Any) -> None:
    training = plan("2:9")
    training.step(5)
    training.step(3, "eval")
    training.step(10)
    assert training.steps() == [(2, 4, "written")]
    assert training.listed()[0]["reason"] == "an evaluation began"


def test_a_window_into_which_an_evaluation_falls_at_once_begins_after_it(plan: Any) -> None:
    training = plan("every=4,steps=2")
    training.step(4)
    training.step(3, "eval")
    training.step(6)
    assert training.steps() == [(5, 6, "written"), (8, 9, "written")]


def test_a_window_whose_steps_are_over_is_listed_with_the_reason(plan: Any) -> None:
    training = plan("2:6 3:4 3:8")
    training.step(12)
    assert training.steps() == [(2, 6, "written"), (8, None, "skipped"), (8, 8, "written")]
    assert training.listed()[1]["reason"] == "its steps were over before it could begin"


def test_a_plan_that_cannot_be_is_reported_once_and_training_continues(plan: Any) -> None:
    training = plan("9:2")
    training.step(5)
    assert training.complaints == [
        "STEPSCOPE_PROFILE is ignored: '9:2': the last step is before the first: use 2:9"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "use 2:9, at=60s,for=5s or every=1000,steps=3"),
        ("0:4", "step 1 is the earliest: use 1:4"),
        ("2:99999", "use at most 1000"),
        ("every=0", "use a number of steps from 1"),
        ("every=3,steps=3", "make `every` larger"),
        ("at=1x", "'1x' is not a duration"),
        ("at=1s,for=90s", "shorter than 60s"),
        ("steps=3", "says not when the window begins"),
        ("2:9,every=5", "says twice when the window begins"),
        ("2:9,steps=4", "says twice how long"),
        ("ranks=a,2:3", "use numbers, as in ranks=0,7"),
        ("when=3", "'when' is no setting"),
        ("2:4,memory=1", "memory=1: use python, python=cpu, python=off-cpu, memory or shapes"),
        ("2:4,python=wall", "python=wall: use python, python=cpu"),
        ("2:4,python,python=cpu", "has python and python=cpu: use two windows"),
        ("at=@soon", "at=@soon: use seconds since the epoch"),
        ("2:4,python,memory", "has python and memory: use two windows"),
        ("", "no window given"),
    ],
)
def test_a_plan_that_cannot_be_says_the_cause_and_the_fix(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        parse_plans(text)
    assert "\n" not in str(refused.value)


# -- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BASE_BEFORE, BASE_AFTER])
def test_a_trace_has_the_rank_and_a_mark_for_each_step(plan: Any, text: str) -> None:
    training = plan("2:4", 3)
    training.stand_in.text = text
    training.step(10)
    (path,) = training.folder.glob("profiles/*.pt.trace.json.gz")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    marks = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert trace["distributedInfo"] == {"rank": 3, "world_size": 4}
    assert [mark["name"] for mark in marks] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    assert all(
        mark["ts"] + mark["dur"] == pytest.approx(after["ts"], abs=1) for mark, after in pairwise(marks)
    )
    assert BASE / 1e9 + marks[0]["ts"] / 1e6 == pytest.approx(time.time(), abs=3600)
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(each.suffix for each in path.parent.iterdir()) == [".gz", ".json"]


def test_the_oldest_traces_of_a_rank_go_first_and_that_is_listed(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_files, "MOST_TRACES", 2)
    training = plan("every=10,steps=1")
    other = training.folder / "profiles" / "rank-1.steps-1-2.7-0.pt.trace.json.gz"
    other.parent.mkdir()
    other.write_bytes(b"of another rank")
    training.step(45)
    assert [state for _, _, state in training.steps()] == ["removed", "removed", "written", "written"]
    assert "the oldest go first" in training.listed()[0]["reason"]
    assert len(list(training.folder.glob("profiles/rank-0.*.gz"))) == 2
    assert other.exists()


def test_a_folder_that_others_can_write_to_gets_no_trace(plan: Any) -> None:
    training = plan("2:4")
    (training.folder / "profiles").mkdir()
    (training.folder / "profiles").chmod(0o777)
    training.step(10)
    assert training.stand_in.calls == ""
    assert "others can write to it" in training.complaints[0]
    assert list((training.folder / "profiles").iterdir()) == []


@pytest.mark.parametrize("name", ["start", "stop", "write"])
def test_a_profiler_that_fails_costs_only_its_window(plan: Any, name: str) -> None:
    training = plan("2:4 8:9")
    training.stand_in.fails = name
    training.step(6)
    training.stand_in.fails = ""
    training.step(6)
    assert [state for _, _, state in training.steps()] == ["failed", "written"]
    assert training.listed()[0]["reason"] == f"RuntimeError: {name} failed"
    assert len(list(training.folder.glob("profiles/*.gz"))) == 1


@pytest.mark.parametrize("name", ["start", "stop", "write"])
def test_an_interrupt_in_a_profiler_leaves_none_on_and_costs_only_its_window(plan: Any, name: str) -> None:
    training = plan("2:4 8:9")
    training.stand_in.fails, training.stand_in.error = name, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        training.step(6)
    assert training.stand_in.calls.split()[:2] == ["sta", "sto"]
    training.step(9)
    found = [(each["state"], each["reason"]) for each in training.listed()]
    assert found == [("failed", "KeyboardInterrupt"), ("written", "")]


def test_a_profiler_that_cannot_be_used_skips_the_window_and_says_why(plan: Any) -> None:
    training = plan("2:4 8:9")
    training.stand_in.reason = "the script's own profiler is active"
    training.step(6)
    training.stand_in.reason = ""
    training.step(6)
    assert [state for _, _, state in training.steps()] == ["skipped", "written"]
    assert training.complaints == [
        "the profile window at step 2 was skipped: the script's own profiler is active"
    ]


def test_the_end_of_the_run_ends_the_window(plan: Any) -> None:
    training = plan("2:40")
    training.step(6)
    training.windows.end()
    assert training.steps() == [(2, 5, "written")]
    assert training.listed()[0]["reason"] == "the run ended"


def test_each_run_of_a_process_keeps_the_windows_of_the_one_before_and_closes_its_folder(plan: Any) -> None:
    training = plan("1:2")

    def another_run() -> int:
        training.ledger = create_ledger(str(training.folder / "ledgers"), "resnet-2", Ranks(0, None, 4))
        training.recorder.attach(training.ledger.memory)
        training.ledger.look_at(1.0)
        training.step(5)
        training.ledger.finish()
        open_now = [each.resolve() for each in Path("/proc/self/fd").iterdir()]
        return open_now.count(training.folder / "profiles")

    assert another_run() == another_run()
    for ending in window_files.LIST, window_files.TRACE:
        assert len([*training.folder.glob(f"profiles/rank-0*{ending}")]) == 2


def test_the_scripts_own_profiler_ends_the_window(plan: Any) -> None:
    training = plan("2:40")
    training.step(6)
    training.windows.by_the_script()
    training.step(60)
    assert training.steps() == [(2, 5, "written")]
    assert training.stand_in.calls == "sta sto wri "


def test_a_window_ends_at_a_hook_once_no_step_has_ended_for_long(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = plan("2:8 every=10,steps=3")
    monkeypatch.setattr("time.perf_counter", lambda: training.now)
    now = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now)
    training.step(4)
    now += 60 * 10**9
    training.windows.end_if_idle()
    training.step()
    assert training.stand_in.calls == "sta "
    now += 60 * 10**9 + 1
    training.windows.end_if_idle()
    training.step(5)
    now += 61 * 10**9
    training.windows.end_if_idle()
    training.step(16)
    assert training.steps() == [(2, 4, "written"), (10, 9, "failed"), (20, 22, "written")]
    assert [each["reason"] for each in training.listed()] == [
        "training paused for 60 s",
        "training paused for 60 s before its first step was complete",
        "",
    ]


def test_a_window_of_slow_steps_waits_for_ten_of_them(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training = plan("2:8")
    monkeypatch.setattr("time.perf_counter", lambda: 60 * (training.now + 0.01 - 100.0) / 0.01 + 100.0)
    now = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now)
    training.step(2)
    now += 599 * 10**9
    training.windows.end_if_idle()
    assert training.stand_in.calls == "sta "
    now += 2 * 10**9
    training.windows.end_if_idle()
    assert training.stand_in.calls == "sta sto "


def test_no_window_begins_or_ends_while_work_is_put_into_a_cuda_graph(plan: Any) -> None:
    training = plan("2:6")
    training.step()
    training.capturing = True
    training.step(2)
    assert not training.stand_in.calls
    training.capturing = False
    training.step(3)
    training.capturing = True
    training.step()
    training.windows.end_if_idle()
    assert training.stand_in.calls == "sta "
    training.capturing = False
    training.step()
    assert training.stand_in.calls == "sta sto wri "
    assert training.steps() == [(4, 7, "written")]


def test_no_window_begins_in_the_step_in_which_another_one_ended(plan: Any) -> None:
    training = plan("2:40 6:9")
    training.step(5)
    training.windows.by_the_script()
    training.step(9)
    assert training.steps() == [(2, 4, "written"), (7, 9, "written")]


# -- requests ------------------------------------------------------------------------------------------


def test_a_request_is_answered_when_a_step_has_ended(folder: Path) -> None:
    training = Training(folder)
    training.step(3)
    number = training.ask(6, 2)
    training.step()
    answer = training.answer
    assert (answer.number, answer.state, answer.first, answer.last) == (number, window_request.WAITS, 6, 7)
    training.step(2)
    assert training.answer.state == window_request.RECORDS
    training.step(2)
    assert training.answer.state == window_request.WRITTEN
    assert Path(training.answer.text).exists()
    assert training.steps() == [(6, 7, "written")]
    second = training.ask(0, 1)
    training.step(3)
    assert (training.answer.number, training.answer.state) == (second, window_request.WRITTEN)


def test_a_request_that_is_withdrawn_records_nothing(folder: Path) -> None:
    training = Training(folder)
    training.step(3)
    number = training.ask(6, 2)
    training.step()
    window_request.withdraw(training.fd, number)
    training.step(20)
    assert training.stand_in.calls == ""


def test_a_process_without_hooks_says_so(folder: Path) -> None:
    training = Training(folder)
    training.profiler = None
    training.step(3)
    training.ask(6, 2)
    training.step()
    assert (training.answer.state, training.answer.text) == (window_request.REFUSED, NO_HOOKS)


def test_whatever_a_request_says_training_continues_and_only_a_possible_one_is_believed(folder: Path) -> None:
    training = Training(folder)
    assert training.ledger is not None
    training.step(2)
    chance = random.Random(33)
    odd = [float("nan"), float("inf"), -1.0, 0.5, 1e300, 2.0**53 + 2, 0.0]
    for _ in range(300):
        values = [chance.choice([*odd, chance.uniform(0, 30), *map(float, range(1, 20))]) for _ in range(3)]
        raw = struct.pack("<3d", *values) if chance.random() < 0.7 else chance.randbytes(24)
        training.ledger.memory[layout.WINDOW_AT : layout.WINDOW_AT + 24] = raw
        window_request.wake(training.fd)
        training.step(3)
    assert training.stand_in.calls.count("sta") > 5
    assert training.complaints
    for each in training.listed():
        assert each["state"] != "written" or each["last"] - each["first"] < 1000
    window_request.drop_request(training.ledger.memory)
    training.windows.end()
    training.ask(0, 2)
    training.step(5)
    assert training.answer.state == window_request.WRITTEN


@pytest.mark.parametrize("kind", ["memory", "shapes"])
def test_a_plan_or_a_request_says_that_it_means_memory_or_shapes(plan: Any, kind: str) -> None:
    training = plan(f"{kind},1:2")
    training.step(4)
    window_request.write_request(training.fd, 6, 2, kind)
    window_request.wake(training.fd)
    training.step(8)
    assert training.stand_in.calls == 2 * f"{kind[:3]} sto wri "
    assert [each[2] for each in training.steps()] == ["written", "written"]
