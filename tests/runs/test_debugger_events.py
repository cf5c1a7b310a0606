"""Debugger's framework events: every quirk of its files, with exact values."""

import gzip
import json
import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.evaluation.engine import evaluate
from stepscope.runs.debugger.files import find
from stepscope.runs.debugger.source import DebuggerOutput
from stepscope.runs.model import COMPONENTS, PHASES, RunFacts, Steps

from tests.support.debugger_output import START, DebuggerDirectory, event, pair, snapshot, step

GET_NEXT = ("DataLoaderIter", "_MultiProcessingDataLoaderIter::GetNext")


@pytest.fixture
def directory(tmp_path: Path) -> DebuggerDirectory:
    return DebuggerDirectory(tmp_path / "job" / "profiler-output")


def read(root: Path) -> tuple[dict[int, Steps], RunFacts]:
    """The steps of each rank, and the facts."""
    source = DebuggerOutput(root)
    steps = {chunk.rank: chunk for chunk in source.read() if isinstance(chunk, Steps)}
    return steps, source.facts


def component(steps: Steps, name: str) -> list[float]:
    seconds: list[float] = steps.components[:, COMPONENTS.index(name)].round(6).tolist()
    return seconds


def test_steps_have_their_phase_number_start_and_duration(directory: DebuggerDirectory) -> None:
    modes = ["TRAIN", "EVAL", "PREDICT", "GLOBAL"]
    directory.write_events([step(index, index, 0.25, mode) for index, mode in enumerate(modes)])
    steps = read(directory.root)[0][0]
    assert [PHASES[phase] for phase in steps.phases] == ["train", "eval", "predict", "global"]
    assert steps.numbers.tolist() == [0, 1, 2, 3]
    assert steps.starts.tolist() == [START, START + 1, START + 2, START + 3]
    np.testing.assert_allclose(steps.durations, 0.25, rtol=0, atol=1e-6)
    assert steps.node == "algo-1"


def test_each_process_that_trained_is_a_rank_by_node_and_number(directory: DebuggerDirectory) -> None:
    for process in ("200-algo-10", "99-algo-2", "151-algo-1", "160-algo-1"):
        directory.write_events([step(0, 1.0, 0.5)], process)
    directory.write_events([event("DataLoaderWorker", "fetch", 0.0, 5.0)], "155-algo-1")
    steps, facts = read(directory.root)
    assert [(rank, one.node) for rank, one in sorted(steps.items())] == [
        (0, "algo-1"),
        (1, "algo-1"),
        (2, "algo-2"),
        (3, "algo-10"),
    ]
    assert [(one.rank, one.pid, one.world_size) for one in facts.ranks] == [
        (0, 151, 4),
        (1, 160, 4),
        (2, 99, 4),
        (3, 200, 4),
    ]
    assert [(one.rank, one.activity, one.seconds) for one in facts.activities] == [
        (0, "DataLoaderWorker", 5.0)
    ]


def test_a_rank_sits_on_the_only_node_where_its_host_has_another_name(directory: DebuggerDirectory) -> None:
    directory.write_readings(snapshot(START, (5.0,)))
    directory.write_events([step(0, 1.0, 0.5)], "905-b88ab1bb8259")
    directory.write_events([step(1, 2.0, 0.5)], "0001", kind="model_timeline")
    steps, facts = read(directory.root)
    assert {one.node for one in steps.values()} == {"algo-1"}
    assert [node.node for node in facts.nodes] == ["algo-1"]


def test_forward_and_backward_are_summed_into_the_step_in_which_they_began(
    directory: DebuggerDirectory,
) -> None:
    parts = [
        event(f"{way}-SubModuleInternal", "conv1", at, seconds, step_num="0")
        for way, at, seconds in (
            ("Forward", 0.5, 9.0),  # before the first step: of none
            ("Forward", 1.0, 0.1),
            ("Forward", 1.1, 0.2),
            ("Backward", 1.3, 0.4),
            ("Forward", 3.0, 0.3),
            ("Backward", 2.5, 9.0),  # between the steps: of none
        )
    ]
    directory.write_events([*parts, step(0, 1.0, 1.0), step(1, 3.0, 1.0)])
    steps, facts = read(directory.root)
    assert component(steps[0], "forward") == [0.3, 0.3]
    assert component(steps[0], "backward") == [0.4, 0.0]
    assert {one.activity: (one.calls, round(one.seconds, 6)) for one in facts.activities} == {
        "Backward-SubModuleInternal": (2, 9.4),
        "Forward-SubModuleInternal": (4, 9.6),
    }
    assert facts.ranks[0].framework == "pytorch"


def test_a_wait_for_data_right_before_a_step_belongs_to_it(directory: DebuggerDirectory) -> None:
    waits = [
        event(*GET_NEXT, 0.5, 0.5),
        event(*GET_NEXT, 2.25, 0.5),
        event(*GET_NEXT, 3.25, 0.125),  # within the step
        event(*GET_NEXT, 9.0, 0.5),  # after the last step
    ]
    directory.write_events([step(0, 1.0, 1.0), *waits, step(1, 3.0, 1.0), step(2, 4.0, 1.0)])
    steps = read(directory.root)[0][0]
    assert component(steps, "data_wait") == [0.5, 0.625, 0.0]
    np.testing.assert_allclose(steps.starts - START, [0.5, 2.25, 4.0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(steps.durations, [1.5, 1.75, 1.0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("pin_memory", [True, "True"])
@pytest.mark.parametrize("workers", [4, "4"])
def test_loaders_have_workers_and_pinned_memory_in_the_phase_that_follows(
    directory: DebuggerDirectory, workers: Any, pin_memory: Any
) -> None:
    def begin(at: float, **args: Any) -> dict[str, Any]:
        name = "_MultiProcessingDataLoaderIter.__init__"
        return event("DataLoaderIterInitialize", name, at, 0.1, **args)

    directory.write_events(
        [
            begin(0.5, num_workers=workers, pin_memory=pin_memory),
            step(0, 1.0, 1.0),
            begin(2.5, num_workers=0, pin_memory=False),
            step(0, 3.0, 1.0, "EVAL"),
            begin(4.5, num_workers=workers, pin_memory=pin_memory),
            step(1, 5.0, 1.0),
        ]
    )
    loaders = read(directory.root)[1].ranks[0].loaders
    assert [(one.phase, one.workers, one.pin_memory) for one in loaders] == [
        ("train", 4, True),
        ("eval", 0, False),
    ]


def test_time_outside_of_steps_is_initialization_other_and_finalization(directory: DebuggerDirectory) -> None:
    directory.write_readings([*snapshot(START, (5.0,)), *snapshot(START + 30, (5.0,))])
    directory.write_events([step(0, 10.0, 1.0), step(1, 13.0, 2.0), step(0, 16.0, 1.0, "EVAL")])
    directory.write_end()
    facts = read(directory.root)[1]
    seconds = {name: round(value, 5) for name, value in facts.ranks[0].phase_seconds.items()}
    assert seconds == {
        "train": 3.0,
        "eval": 1.0,
        "predict": 0.0,
        "global": 0.0,
        "initialization": 10.0,
        "other": 3.0,
        "finalization": 13.0,
    }


def test_operators_are_summed_by_device_and_name(directory: DebuggerDirectory) -> None:
    directory.write_events(
        [
            step(0, 0.0, 1.0),
            event("cpu_functions", "aten::conv2d", 0.1, 0.5, device="cpu"),
            event("cpu_functions", "aten::conv2d", 0.6, 0.25, device="cpu"),
            event("gpu_functions-dev:0", "volta_sgemm", 0.1, 0.125, device=0),
            event("gpu_functions-dev:7", "volta_sgemm", 0.1, 0.0625, device=7),
        ]
    )
    operators = read(directory.root)[1].operators
    assert [(one.device, one.operator, one.calls, one.seconds) for one in operators] == [
        ("cpu", "aten::conv2d", 2, 0.75),
        ("gpu0", "volta_sgemm", 1, 0.125),
        ("gpu7", "volta_sgemm", 1, 0.0625),
    ]


def test_horovod_events_need_no_base_time(directory: DebuggerDirectory) -> None:
    directory.write_events([step(0, 0.0, 1.0)])
    events = [
        *pair("Adam_Allreduce/dense", "NEGOTIATE_ALLREDUCE", 77575.0, 0.5),
        *pair("Adam_Allreduce/dense", "ALLREDUCE", 77576.0, 0.25),
        *pair("Adam_Allreduce/conv", "ALLREDUCE", 77576.0, 0.125),
        event("Adam_Allreduce/conv", "4", 77575.1, 0.0),  # rank 4 is ready
        {"kind": "Adam_Allreduce/conv", "name": "CYCLE_START", "ph": "i", "ts": 77576, "s": "g"},
    ]
    directory.write_events(events, kind="horovod_timeline", base=None, end=START + 80)
    steps, facts = read(directory.root)
    assert [(one.operation, one.calls, one.seconds) for one in facts.collectives] == [
        ("ALLREDUCE", 2, 0.375),
        ("NEGOTIATE_ALLREDUCE", 1, 0.5),
    ]
    assert facts.start == steps[0].starts[0] == START


def test_horovods_events_alone_give_a_report_and_a_comparison_without_dates(
    directory: DebuggerDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    events = pair("Adam_Allreduce/dense", "ALLREDUCE", 77576.0, 0.25)
    directory.write_events(list(events), kind="horovod_timeline", base=None, end=START + 80)
    assert main(["report", str(directory.root), "--format", "json", "--price", "3.6"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text)
    assert [report["run"][name] for name in ("start", "end", "seconds", "ranks")] == [None, None, None, 0]
    assert {rule["status"] for rule in report["rules"]} <= {"not enough data", "healthy"}
    assert report["cost"] is None
    assert "1970" not in text
    assert "No event has a base time" in str(report["measurement"]["unknowns"])
    assert read(directory.root)[1].collectives[0].seconds == 0.25
    assert main(["compare", str(directory.root), str(directory.root)]) == 0
    assert "1970" not in capsys.readouterr().out


def test_a_process_without_steps_is_not_accused_of_a_slow_start(directory: DebuggerDirectory) -> None:
    """Debugger may have recorded operators only; how long after the start is all the same."""
    directory.write_events([event("cpu_functions", "aten::add", 3600.0, 1.0)], end=START + 3700)
    directory.write_readings(snapshot(START, cpu=[0.5]) + snapshot(START + 3700, cpu=[0.5]))
    analysis = evaluate(DebuggerOutput(directory.root))
    assert [rule.rule for rule in analysis.rules if rule.status == "found"] == []
    states = {rule.rule: rule.status for rule in analysis.rules}
    assert (states["MaxInitializationTime"], states["TrainingStalled"]) == ("not enough data",) * 2


def test_pairs_of_begin_and_end_nest_by_kind_and_go_over_files(directory: DebuggerDirectory) -> None:
    outer, inner = pair("Collective", "outer", 1.0, 2.0), pair("Collective", "inner", 1.5, 0.5)
    other = pair("Another", "crossing", 1.6, 5.0)
    directory.write_events([step(0, 0.0, 1.0), outer[0], inner[0], other[0], inner[1]], end=START + 60)
    directory.write_events([other[1], outer[1], outer[1]], end=START + 120)  # the last end has no begin
    facts = read(directory.root)[1]
    assert {one.activity: (one.calls, round(one.seconds, 6)) for one in facts.activities} == {
        "Collective": (2, 2.5),
        "Another": (1, 5.0),
    }


def test_a_merged_timeline_is_not_counted_again(directory: DebuggerDirectory) -> None:
    directory.write_events([step(0, 0.0, 1.0)])
    directory.write_events([step(0, 0.0, 1.0)], kind="merged_timeline", end=START + 90)
    assert len(read(directory.root)[0][0]) == 1


def test_files_still_being_written_are_said(directory: DebuggerDirectory) -> None:
    path = directory.write_events([step(0, 0.0, 1.0)])
    path.with_name("151-algo-1_pythontimeline.json.tmp").write_text("[\n")
    assert any("still being written" in sentence for sentence in read(directory.root)[1].unknowns)


def test_tensorflow_traces_count_what_streams_ran(directory: DebuggerDirectory) -> None:
    for process in ("151-algo-1", "151-algo-2"):
        directory.write_events([step(0, 0.0, 1.0)], process)

    def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "args": {"name": name}, **more}

    def ran(pid: int, tid: int, name: str, microseconds: float) -> dict[str, Any]:
        return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": 5.5, "dur": microseconds}

    directory.write_tensorflow_trace(
        [
            named("process_name", "/device:GPU:0", pid=1),
            named("process_name", "/host:CPU", pid=9),
            named("thread_name", "Stream #13(Compute)", pid=1, tid=13),
            named("thread_name", "TensorFlow Ops", pid=1, tid=99),
            ran(1, 13, "volta_sgemm", 500000),
            ran(1, 99, "MatMul", 500000),
            ran(9, 1, "IteratorGetNext", 250000),
            {},
        ],
        process="151-algo-2",
    )
    facts = read(directory.root)[1]
    assert {(one.node, one.rank, one.device, one.operator, one.seconds) for one in facts.operators} == {
        ("algo-2", 1, "cpu", "IteratorGetNext", 0.25),
        ("algo-2", 1, "gpu0", "volta_sgemm", 0.5),
    }


def test_a_tensorflow_trace_next_to_marks_of_several_processes_is_of_none_of_them(
    directory: DebuggerDirectory,
) -> None:
    rows = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/host:CPU"}},
        {"ph": "X", "name": "MatMul", "pid": 1, "ts": 5.5, "dur": 1000},
    ]
    for process in ("151-algo-1", "151-algo-2"):
        directory.write_events([step(0, 0.0, 1.0)], process)
        directory.write_tensorflow_trace(rows, f"ip-{process[-1]}", process)
    assert {one.node for one in read(directory.root)[1].operators} == {"ip-1", "ip-2"}


def test_a_node_may_have_a_name_of_any_digits(directory: DebuggerDirectory) -> None:
    for node in ("a1²", "a1"):
        directory.write_readings(snapshot(START, [0.5], node=node), node)
    assert list(find(directory.root).system) == ["a1", "a1²"]


def test_a_tensorflow_trace_outside_of_its_folders_is_read(
    directory: DebuggerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory.write_tensorflow_trace([{"ph": "X", "pid": 1, "name": "a", "ts": 0, "dur": 1}])
    path.rename(directory.root / "framework" / path.name)
    monkeypatch.chdir(directory.root)
    (file,) = find(Path()).events
    assert (file.kind, file.host) == ("tensorflow", "ip-10-0-0-1")


def test_a_trace_that_is_cut_off_is_said(directory: DebuggerDirectory) -> None:
    directory.write_events([step(0, 0.0, 1.0)])
    path = directory.write_tensorflow_trace([{"ph": "X", "pid": 1, "name": "a", "ts": 0, "dur": 1}])
    path.write_bytes(path.read_bytes()[:-12])
    assert any("cut" in s or "middle" in s for s in read(directory.root)[1].unknowns)


def test_a_compressed_trace_that_is_none_is_named(directory: DebuggerDirectory) -> None:
    directory.write_events([step(0, 0.0, 1.0)])
    path = directory.write_tensorflow_trace([])
    with gzip.open(path, "wt") as file:
        json.dump({"something": "else"}, file)
    with pytest.raises(UserError, match=r"ip-10-0-0-1.trace.json.gz: holds no traceEvents"):
        read(directory.root)


FORMS = ["lines", "one line", "pretty", "object"]


@pytest.mark.parametrize("form", FORMS)
def test_the_layout_of_the_json_does_not_matter(directory: DebuggerDirectory, form: str) -> None:
    path = directory.write_events([step(index, index, 0.5) for index in range(5)])
    rows = json.loads(path.read_text())
    if form == "one line":
        path.write_text(json.dumps(rows))
    elif form == "pretty":
        path.write_text(json.dumps(rows, indent=2))
    elif form == "object":
        path.write_text(json.dumps({"traceEvents": rows}))
    assert read(directory.root)[0][0].numbers.tolist() == [0, 1, 2, 3, 4]


def test_a_layout_that_changes_within_a_file_is_refused_because_no_step_may_count_twice(
    directory: DebuggerDirectory,
) -> None:
    path = directory.write_events([step(index, index, 0.5) for index in range(2)])
    first, *others = json.loads(path.read_text())
    path.write_text("[\n" + json.dumps(first) + ",\n" + json.dumps(others, indent=2).lstrip("[\n "))
    with pytest.raises(UserError, match=rf"{path.name}, line 3: not JSON"):
        read(directory.root)


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_half_written_last_event_is_skipped_and_said(directory: DebuggerDirectory, cut: int) -> None:
    path = directory.write_events([step(index, index, 0.5) for index in range(5)], closed=False)
    path.write_text(path.read_text().rstrip().rstrip(",")[:-cut])
    steps, facts = read(directory.root)
    assert steps[0].numbers.tolist() == [0, 1, 2, 3]
    assert [s for s in facts.unknowns if path.name in s and "middle of a line" in s]


def test_an_array_that_was_not_closed_is_whole(directory: DebuggerDirectory) -> None:
    directory.write_events([step(0, 0.0, 1.0)], closed=False)
    steps, facts = read(directory.root)
    assert len(steps[0]) == 1
    assert not any("middle of a line" in sentence for sentence in facts.unknowns)


def test_a_process_that_wrote_no_event_costs_nothing(directory: DebuggerDirectory) -> None:
    path = directory.write_events([step(0, 0.0, 1.0)])
    path.with_name(path.name.replace("151-", "152-")).write_text("[]\n")
    assert len(read(directory.root)[0][0]) == 1


@pytest.mark.parametrize(
    "wrong",
    ['{"name": "Step', '{"name": "x", "ph": "X", "pid": 1}', '{"name": "x", "ph": "X", "ts": "soon"}'],
)
@pytest.mark.parametrize("line", [2, 6])
def test_another_corrupt_event_is_named_with_its_line(
    directory: DebuggerDirectory, wrong: str, line: int
) -> None:
    path = directory.write_events([step(index, index, 0.5) for index in range(5)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[: line - 1], wrong + ",", *lines[line - 1 :]]))
    with pytest.raises(UserError, match=rf"{path.name}, line {line}: not"):
        read(directory.root)


@pytest.mark.parametrize(
    "impossible",
    [
        [step(1, 2.0, -0.5)],
        [step(1, 2.0, 1e12)],
        [{**step(1, 2.0, 0.5), "dur": float("nan")}],
        [step(1, 1.0 - START, 0.5)],  # in 1970
        [step(1, -1.0 - START, 0.5)],
        [step(1, 1e9, 0.5)],
        pair("Collective", "all", 2.0, -1.0),
    ],
)
def test_an_event_with_an_impossible_time_or_duration_is_left_out_and_said(
    directory: DebuggerDirectory, impossible: list[dict[str, Any]]
) -> None:
    path = directory.write_events([step(0, 0.0, 1.0), *impossible, step(2, 3.0, 1.0)])
    steps, facts = read(directory.root)
    assert steps[0].numbers.tolist() == [0, 2]
    assert (facts.start, facts.activities) == (START, ())
    (said,) = (sentence for sentence in facts.unknowns if "impossible" in sentence)
    assert said == (
        f"{path.relative_to(directory.root)} has 1 event with an impossible time or duration, left out."
    )
    assert [event.start - START for event in DebuggerOutput(directory.root).events()] == [0.0, 3.0]


@given(
    st.lists(st.tuples(st.floats(0.01, 3), st.floats(0.01, 2), st.floats(0, 1)), min_size=1, max_size=12),
    st.lists(st.integers(0, 11), max_size=3),
    st.booleans(),
)
def test_neither_files_nor_folders_matter(
    shape: list[tuple[float, float, float]], cuts: list[int], hour_folder: bool
) -> None:
    events, now = [], 1.0
    for number, (gap, duration, wait) in enumerate(shape):
        events.append(event(*GET_NEXT, now, wait * gap))
        events.append(step(number, now + gap, duration, "TRAIN" if number % 3 else "EVAL"))
        events += pair("Collective", "all", now, gap)
        now += gap + duration
    with tempfile.TemporaryDirectory() as folder:
        one = DebuggerDirectory(Path(folder) / "one", hour_folder)
        other = DebuggerDirectory(Path(folder) / "other", not hour_folder)
        one.write_events(events)
        edges = [0, *sorted(cut * 4 for cut in cuts), len(events)]
        for index, (start, end) in enumerate(pairwise(edges)):
            other.write_events(events[start:end], end=START + 3600 * index)
        steps, facts = read(one.root)
        same_steps, same_facts = read(other.root)
    for name, values in vars(steps[0]).items():
        np.testing.assert_array_equal(getattr(same_steps[0], name), values, err_msg=name)
    assert [asdict(one) for one in same_facts.ranks] == [asdict(one) for one in facts.ranks]
    assert same_facts.activities == facts.activities
    durations = [duration for _, duration, _ in shape]
    waits = component(steps[0], "data_wait")
    np.testing.assert_allclose(waits, [round(gap * wait, 6) for gap, _, wait in shape], atol=3e-6)
    assert (steps[0].durations + 3e-6 >= np.add(durations, waits)).all()
