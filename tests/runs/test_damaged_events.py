"""Events that no profiler can have meant: each is left out and said, and all others count."""

import json
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from stepscope.evaluation.engine import evaluate
from stepscope.runs.traces.capture import captures_of
from stepscope.runs.traces.events import load
from stepscope.runs.traces.source import KinetoTraces

from tests.runs.test_kineto import Row, marked, on_gpu, row, write
from tests.runs.test_other_profiles import GPU, TPU

AT = {"pid": 100, "tid": 1, "ts": 6000.0}
MEMORY = {"Device Type": 1, "Device Id": 0, "Bytes": 64, "Total Allocated": 128, "Addr": 4096}
SHAPED: Row = {"Input Dims": [[4, 8], [8, 2]], "Sequence number": 7}
CALL: Row = {
    "External id": 5,
    "Seq": 1,
    "Dst Rank": 1,
    "Collective name": "allreduce",
    "Process Group Ranks": "[0, 1]",
    "Group size": 2,
    "In msg nelems": 8,
}
OF_PYTORCH: list[Row] = [
    marked(1, 0, 100),
    marked(2, 100, 200),
    row("nn_module", "Linear_0", 1, 20),
    row("cpu_op", "aten::mm", 2, 10, **SHAPED),
    row("cpu_op", "record_param_comms", 30, 31, **CALL),
    row("cuda_runtime", "cudaLaunchKernel", 30, 31, correlation=2),
    on_gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32", 60, 90, correlation=2, **{"External id": 5}),
    on_gpu("kernel", "sgemm", 5, 60, correlation=1),
    on_gpu("gpu_memcpy", "Memcpy HtoD", 92, 95, correlation=3),
    row("python_function", "train.py(12): step", 0, 99),
    row("overhead", "Activity Buffer Request", 97, 98),
    {"ph": "i", "cat": "python_line", "name": "train.py:12", **AT},
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", **AT, "args": MEMORY},
    {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", **AT},
    {"ph": "B", "cat": "cpu_op", "name": "aten::add", **AT, "args": {}},
    {"ph": "E", **AT},
]
ODD = [2**63, -(2**64), 10**400, -5, 1e300, nan, inf, "text", "ProfilerStep#" + 30 * "9", [1], {"a": 1}, None]
OTHERS = [row("cpu_op", f"aten::other{number}", 100 + number, 101 + number, thread=2) for number in range(9)]


def changed(value: Any) -> Iterator[Any]:
    """Yields the value with each part of it replaced by each odd value, or missing."""
    yield from ODD
    for key in value if isinstance(value, dict) else ():
        yield {name: part for name, part in value.items() if name != key}
        yield from ({**value, key: part} for part in changed(value[key]))


def files(rows: list[Row], place: int) -> Iterator[list[Row]]:
    """Yields the rows with all changes of one after it, and with each change of its time as the last."""
    intact = rows[place]
    yield [
        *rows[: place + 1],
        *(each for each in changed(intact) if at(each) == at(intact)),
        *rows[place + 1 :],
    ]
    for event in changed(intact):
        if at(event) != at(intact):
            yield [*rows[:place], *rows[place + 1 :], event]


def at(event: Any) -> Any:
    return event.get("ts") if isinstance(event, dict) else None


@pytest.mark.parametrize("place", range(2, len(OF_PYTORCH)))
def test_odd_values_cost_at_most_their_own_event(tmp_path: Path, place: int) -> None:
    for rows in files([*OF_PYTORCH, *OTHERS], place):
        (capture,) = captures_of(write(tmp_path / "t.json", rows))
        assert [step.number for step in capture.summary.steps] == [1, 2]
        operators = {each.name: each.seconds for each in capture.summary.operators}
        assert sum(operators[each["name"]] for each in OTHERS) == pytest.approx(0.009)


@pytest.mark.parametrize("profile", [GPU, TPU])
def test_odd_values_in_a_profile_of_xla_cost_no_other_events(tmp_path: Path, profile: list[Row]) -> None:
    for place in range(len(profile) - 1):
        for rows in files(profile, place):
            assert captures_of(write(tmp_path / "t.json", rows))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"args": [1]}, "damaged events (1)"),
        ({"tid": [1]}, "damaged events (1)"),
        ({"args": {"device": 0, "correlation": 2**63}}, "damaged events (1)"),
        ({"args": {"device": "none"}}, "damaged events (1)"),
        ({"dur": 1e300}, "kernel with an impossible duration (1)"),
        ({"ts": -1e15}, "events at an impossible time (1)"),
    ],
)
def test_what_is_left_out_is_named_and_the_trace_is_never_healthy(
    tmp_path: Path, broken: Row, said: str
) -> None:
    kernel = on_gpu("kernel", "sgemm", 5, 10)
    path = write(tmp_path / "t.json", [marked(1, 0, 2000), *OTHERS, {**kernel, **broken}])
    analysis = evaluate(KinetoTraces(path))
    assert any(said in sentence for sentence in analysis.unknowns)
    assert analysis.unrecognised == 1


def test_a_clock_that_was_wrong_for_more_than_a_few_events_makes_no_time_certain(tmp_path: Path) -> None:
    rows = [marked(1, 0, 100), *OTHERS, *(on_gpu("kernel", "a", -(10**12) - n, -(10**12)) for n in range(2))]
    with pytest.raises(Exception, match="the clock of some was wrong"):
        load(write(tmp_path / "t.json", rows))


def test_addresses_with_the_highest_bit_are_distinguished(tmp_path: Path) -> None:
    rows = [
        {"ph": "i", "name": "[memory]", **AT, "args": {**MEMORY, "Addr": address}}
        for address in (1 << 63, (1 << 64) - 1, -2)
    ]
    trace = load(write(tmp_path / "t.json", [*rows, *OTHERS]))
    assert trace.allocations.addresses.tolist() == [-(1 << 63), -1, -2]
    assert trace.unknown == {}


def test_a_byte_order_mark_is_no_damage_and_a_second_document_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [marked(1, 0, 10)])
    text = path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + text)
    assert load(path).notes == ()
    path.write_bytes(text + b"\n\n" + text)
    assert "continues after its end" in load(path).notes[0]
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([marked(1, 0, 10)]).encode())
    assert list(KinetoTraces(tmp_path).trace_files()) == [(path, 0.0)]
