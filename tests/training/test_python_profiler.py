"""Windows of Python functions: what they count, and that a profiler of the script's own is not disturbed."""

import cProfile
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stepscope.training import python_profiler as module
from stepscope.training import window_request
from stepscope.training.python_profiler import ANOTHER, TAKEN, python_profiler
from stepscope.training.window_plans import parse_plans

from tests.training.test_windows import Training

BACKENDS = [
    pytest.param(
        module._InC, marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="not used there"), id="C"
    ),
    pytest.param(module._InPython, id="Python"),
]


@pytest.fixture(params=BACKENDS)
def training(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Training]:
    monkeypatch.setenv("STEPSCOPE_PROFILE_DIR", str(tmp_path / "profiles"))
    monkeypatch.setenv("STEPSCOPE_PROFILE", "2:4,python")
    monkeypatch.setattr(python_profiler, "makes", request.param)
    yield Training(tmp_path)
    sys.setprofile(None)


def inner(values: list[int]) -> int:
    return sum(values)


def outer(depth: int) -> int:
    return outer(depth - 1) if depth else inner([1, 2, 3])


def functions(training: Training) -> dict[str, tuple[int, float, float]]:
    return {name: (calls, total, own) for name, calls, total, own, _ in written(training)["functions"]}


def written(training: Training) -> Any:
    (path,) = training.folder.glob("profiles/*.python.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))


def the_one(found: dict[str, Any], beginning: str) -> Any:
    (name,) = [name for name in found if name.startswith(beginning)]
    return found[name]


def test_it_counts_the_calls_of_the_windows_steps(training: Training) -> None:
    training.profiler = None  # no framework
    for _ in range(8):
        outer(2)
        training.step()
    assert training.steps() == [(2, 4, "written")]
    assert training.complaints == []
    assert sys.getprofile() is None
    found = functions(training)
    calls, total, own = the_one(found, "outer, ")
    assert calls == 3 * 3
    assert found["sum"][0] == 3
    of_inner = the_one(found, "inner, ")
    assert of_inner[0] == 3
    assert total == pytest.approx(own + of_inner[1], rel=1e-6)
    assert of_inner[1] >= found["sum"][1]
    (name,) = [name for name in found if name.startswith("inner")]
    assert name.endswith(f"test_python_profiler.py:{inner.__code__.co_firstlineno}")
    assert not [name for name in found if "training/windows.py" in name or "_lsprof" in name]


def test_a_call_of_a_function_by_itself_is_no_primitive_one(training: Training) -> None:
    for _ in range(8):
        outer(2)
        training.step()
    calls = {name.partition(",")[0]: (each[0], each[3]) for name, *each in written(training)["functions"]}
    assert (calls["outer"], calls["inner"]) == ((9, 3), (3, 3))


@pytest.mark.parametrize("kind", ["python=cpu", "python=off-cpu"])
def test_its_seconds_may_be_those_on_a_core_or_the_others(
    training: Training, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_PROFILE", f"2:4,{kind}")

    def computes() -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass

    def waits() -> None:
        time.sleep(0.05)

    for _ in range(8):
        computes()
        waits()
        training.step()
    assert training.steps() == [(2, 4, "written")]
    assert written(training)["kind"] == kind
    found = functions(training)
    seconds = {name: the_one(found, f"{name}, ")[1] for name in ("computes", "waits")}
    if kind == "python=cpu":  # a sleep takes no time on a core
        assert seconds["computes"] >= 3 * 0.02
        assert seconds["waits"] < seconds["computes"]
    else:
        assert seconds["waits"] >= 3 * 0.045


@pytest.mark.parametrize("kind", ["python", "python=cpu", "python=off-cpu"])
def test_whole_stacks_have_the_seconds_of_the_windows_clock(
    training: Training, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_PROFILE", f"2:4,{kind}")

    def computes() -> None:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass

    def waits() -> None:
        time.sleep(0.1)

    for _ in range(6):
        computes()
        waits()
        training.step()
    seconds = {"computes": 0.0, "waits": 0.0}
    for of_stack, *stack in written(training)["stacks"]:
        names = [name.partition(", ")[0].rpartition(".")[2] for name in stack]
        if names[-1] in seconds:
            assert names[-2] == "test_whole_stacks_have_the_seconds_of_the_windows_clock"[:32]
            seconds[names[-1]] += of_stack
    if kind == "python=cpu":  # a sleep takes no time on a core
        assert seconds["computes"] > 0
        assert seconds["waits"] < 3 * 0.1 / 2
    else:
        assert seconds["waits"] > 0


def test_an_exception_and_a_generator_leave_the_counts_right(training: Training) -> None:
    def fails() -> None:
        raise KeyError(7)

    def numbers() -> Iterator[int]:
        yield from range(3)

    for _ in range(8):
        with pytest.raises(KeyError):
            fails()
        assert list(numbers()) == [0, 1, 2]
        training.step()
    found = functions(training)
    assert the_one(found, "fails, ")[0] == 3
    assert all(own >= 0 and total >= own - 1e-9 for _, total, own in found.values())


def test_no_window_begins_while_the_script_profiles_and_its_profiler_goes_on(training: Training) -> None:
    def of_script(*_: Any) -> None:
        pass

    sys.setprofile(of_script)
    training.step(8)
    assert sys.getprofile() is of_script
    assert [(each["state"], each["reason"]) for each in training.listed()] == [("skipped", ANOTHER)]


@pytest.mark.parametrize("own", ["setprofile", "cProfile"])
def test_a_profiler_that_the_script_starts_in_the_window_takes_over(training: Training, own: str) -> None:
    def of_script(*_: Any) -> None:
        pass

    training.step(3)
    assert sys.getprofile() is not None
    profile = cProfile.Profile()
    if own == "setprofile":
        sys.setprofile(of_script)
    else:
        profile.enable()
    mine = sys.getprofile()
    training.step(5)
    outer(1)
    assert sys.getprofile() is mine
    sys.setprofile(None)
    if own == "cProfile":
        profile.disable()
        counted = {each.code.co_name for each in profile.getstats() if not isinstance(each.code, str)}
        assert "outer" in counted
    assert [(each["state"], each["reason"]) for each in training.listed()] == [("failed", TAKEN)]


def test_a_process_that_is_forked_in_the_window_is_not_profiled(training: Training) -> None:
    training.step(3)
    child = os.fork()
    if not child:
        os._exit(0 if sys.getprofile() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sys.getprofile() is not None
    training.step(3)
    assert training.steps() == [(2, 4, "written")]


def test_an_evaluation_before_the_first_step_of_a_window_moves_it(training: Training) -> None:
    training.step(2)
    training.step(1, "eval")
    assert sys.getprofile() is None
    training.step(8)
    assert [each["state"] for each in training.listed()] == ["written"]


def test_a_request_says_that_it_means_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_PROFILE_DIR", str(tmp_path / "profiles"))
    monkeypatch.delenv("STEPSCOPE_PROFILE", raising=False)
    training = Training(tmp_path)
    training.step(2)
    window_request.write_request(training.fd, 3, 2, "python")
    window_request.wake(training.fd)
    training.step(8)
    assert training.answer.state == window_request.WRITTEN
    assert training.answer.text.endswith(".python.json.gz")
    assert training.stand_in.calls == ""
    assert functions(training)


@pytest.mark.parametrize("text", ["2:4,python", "python,2:4", "2:4,ranks=0,7,python"])
def test_python_is_a_word_anywhere_in_a_window(text: str) -> None:
    (plan,) = parse_plans(text)
    assert (plan.kind, plan.first, plan.last) == ("python", 2, 4)
    assert plan.ranks == (frozenset({0, 7}) if "ranks" in text else frozenset())


@pytest.mark.parametrize("training", [module._InPython], indirect=True)  # cProfile calls nothing of ours
def test_without_steps_a_window_ends_after_so_many_calls(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_EVERY", 100)
    training.step(3)
    for _ in range(100):
        inner([1])
    assert sys.getprofile() is not None
    assert training.windows._open is not None
    training.windows._open.patience = 0.0
    for _ in range(100):
        inner([1])
    assert sys.getprofile() is None
    assert training.steps() == [(2, 2, "written")]
