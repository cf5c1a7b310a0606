"""Traces of the PyTorch profiler: made-up ones of GPUs, with exact numbers."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.errors import UserError
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.problems import problems_of
from stepscope.report.sentences import traced
from stepscope.report.verdict import verdict
from stepscope.runs.model import COMPONENTS, RunFacts, Steps
from stepscope.runs.traces.events import load
from stepscope.runs.traces.intervals import Intervals
from stepscope.runs.traces.source import KinetoTraces
from stepscope.runs.traces.trace import SLICES, TraceSummary

from tests.support.commands import refusal
from tests.support.few_rules import of_rule

BASE = 1_700_000_000  # seconds since the epoch
LOADING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
Row = dict[str, Any]


def row(category: str, name: str, start: float, end: float, thread: int = 1, **args: Any) -> Row:
    """A complete event of the process 100; milliseconds since BASE."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": thread,
        "ts": start * 1000,
        "dur": (end - start) * 1000,
        "args": args,
    }


def on_gpu(category: str, name: str, start: float, end: float, stream: int = 7, **args: Any) -> Row:
    device = args.setdefault("device", 0)
    return {**row(category, name, start, end, stream, stream=stream, **args), "pid": device}


def marked(number: int, start: float, end: float) -> Row:
    return row("user_annotation", f"ProfilerStep#{number}", start, end)


def write(path: Path, rows: list[Row], **more: Any) -> Path:
    document = {"schemaVersion": 1, "host_name": "node-a", "baseTimeNanoseconds": BASE * 10**9, **more}
    text = json.dumps({**document, "traceEvents": rows})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def read(place: Path) -> tuple[list[Steps], list[TraceSummary], RunFacts]:
    source = KinetoTraces(place)
    steps = [chunk for chunk in source.read() if isinstance(chunk, Steps)]
    return steps, source.summaries, source.facts


def summary_of(tmp_path: Path, rows: list[Row]) -> TraceSummary:
    return read(write(tmp_path / "node-a_100.1.pt.trace.json", rows))[1][0]


def milliseconds(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value * 1000, 6) for name, value in values.items() if round(value * 1000, 6)}


@pytest.mark.parametrize(
    "odd",
    [
        {"distributedInfo": "rank 0"},
        {"baseTimeNanoseconds": "NaN"},
        {"deviceProperties": [7]},
    ],
)
def test_values_of_another_kind_are_one_line_that_names_the_file(tmp_path: Path, odd: Row) -> None:
    path = write(tmp_path / "node-a_100.1.pt.trace.json", [marked(1, 0, 10)])
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    with pytest.raises(UserError, match=r"node-a_100\.1\.pt\.trace\.json: not a trace of the profiler"):
        read(path)


def test_each_moment_of_a_step_counts_once_for_the_first_that_runs(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        [
            marked(3, 0, 100),
            row("user_annotation", LOADING, 0, 20),
            row("cpu_op", "aten::to", 10, 30),
            row("cuda_runtime", "cudaLaunchKernel", 25, 40),
            on_gpu("kernel", "sgemm", 35, 60),
            on_gpu("kernel", "relu", 50, 65, stream=9),
            on_gpu("gpu_memcpy", "Memcpy HtoD", 62, 70),
            on_gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 55, 80, stream=20),
            on_gpu("gpu_user_annotation", "ProfilerStep#3", 35, 80),
            row("python_function", "train.py(12): step", 0, 100),
        ],
    )
    assert len(summary.steps) == 1
    step = summary.steps[0]
    assert milliseconds(step.slices) == {
        "data loading": 20,
        "other CPU": 5,  # 20..25
        "runtime": 10,  # 25..35
        "kernel": 30,  # 35..65
        "memory copy": 5,  # 65..70
        "communication": 10,  # 70..80
        "other": 20,  # 80..100
    }
    assert sum(step.slices.values()) == pytest.approx(step.seconds, abs=1e-12)
    assert (step.number, step.start, round(step.seconds, 9)) == (3, BASE, 0.1)


def run_ahead(known: bool) -> list[Row]:
    """A host launches 3 steps in 6 ms: kernels of 100 ms, collectives, and in the first a copy of 290 ms."""
    rows = [on_gpu("gpu_memcpy", "Memcpy DtoH", 2, 292, stream=9, correlation=99)]
    rows += [row("cuda_runtime", "cudaMemcpyAsync", 1.6, 1.7, correlation=99)]
    for number in range(3):
        at, end = 2.0 * number, 102 + 100.0 * number
        rows += [marked(number, at, at + 2)]
        rows += [
            row("cuda_runtime", "cudaLaunchKernel", at + 1, at + 1.1, correlation=2 * number + 1)
        ] * known
        rows += [
            row("cuda_runtime", "cudaLaunchKernel", at + 1.2, at + 1.3, correlation=2 * number + 2)
        ] * known
        rows += [on_gpu("kernel", "gemm", end - 100, end, correlation=2 * number + 1)]
        rows += [
            on_gpu("kernel", "ncclDevKernel_AllReduce_Sum", end, end + 5, 20, correlation=2 * number + 2)
        ]
    return rows


def test_a_step_lasts_until_its_work_is_done_although_the_host_runs_ahead(tmp_path: Path) -> None:
    (steps,), _, facts = read(write(tmp_path / "t.json", run_ahead(known=True)))
    assert steps.durations == pytest.approx([0.102, 0.1, 0.1])
    assert facts.traces[0].step.tolist() == [0, 1, 2]
    steps_of_host, _, facts = read(write(tmp_path / "t.json", run_ahead(known=False)))
    assert steps_of_host == []
    assert any("the host ran ahead of its device" in sentence for sentence in facts.unknowns)


def test_allocations_of_old_versions_without_a_total_are_no_damage(tmp_path: Path) -> None:
    about = {"Device Type": 0, "Device Id": -1, "Bytes": 4}
    allocation = {**row("", "[memory]", 1, 1, **about), "ph": "i"}
    _, _, facts = read(write(tmp_path / "t.json", [marked(1, 0, 10), allocation]))
    assert (facts.damaged, facts.unrecognised) == ((), 0)


def test_what_goes_over_the_end_of_a_step_counts_in_both(tmp_path: Path) -> None:
    rows = [marked(1, 0, 10), marked(2, 10, 20), on_gpu("kernel", "sgemm", 8, 14)]
    steps = summary_of(tmp_path, rows).steps
    assert [milliseconds(step.slices) for step in steps] == [
        {"kernel": 2, "other": 8},
        {"kernel": 4, "other": 6},
    ]


def test_a_device_is_idle_when_none_of_its_streams_runs(tmp_path: Path) -> None:
    def launch(correlation: int, at: float) -> Row:
        return row("cuda_runtime", "cudaLaunchKernel", at, at + 0.5, correlation=correlation)

    summary = summary_of(
        tmp_path,
        [
            on_gpu("kernel", "a", 0, 10, stream=7, correlation=1),
            on_gpu("kernel", "b", 5, 20, stream=8, correlation=2),  # stream 7 is idle, the device is not
            launch(3, 26),
            on_gpu("kernel", "c", 30, 40, stream=7, correlation=3),  # 6.5 ms for the host, 3.5 for the launch
            launch(4, 35),
            on_gpu("gpu_memset", "Memset", 43, 50, stream=8, correlation=4),  # launched long before: 3 ms
            on_gpu("kernel", "d", 55, 60, stream=7, correlation=5),  # nobody knows who launched it
            on_gpu("kernel", "other device", 0, 1, device=1, correlation=6),
        ],
    )
    devices = {one.device: one for one in summary.devices}
    first = devices["gpu0"]
    assert (first.busy, first.idle) == pytest.approx((0.042, 0.018))
    assert sum(first.idle_for.values()) == pytest.approx(first.idle)
    assert (first.idle_for["launch"], first.idle_for["unknown"]) == pytest.approx((0.0065, 0.005))
    assert devices["gpu1"].busy == pytest.approx(0.001)
    assert devices["gpu1"].idle == 0


def test_the_correlation_0_joins_no_call_with_work(tmp_path: Path) -> None:
    """CUPTI writes it if it does not know what launched the work."""
    unknown = {"correlation": 0}
    rows = [on_gpu("kernel", "gemm", 10 * number, 10 * number + 2, **unknown) for number in range(5)]
    (device,) = summary_of(tmp_path, [*rows, row("cuda_runtime", "cudaFree", 0, 42, **unknown)]).devices
    assert device.idle_for["unknown"] == pytest.approx(device.idle)


@pytest.mark.parametrize("thread", [1, 9])
@pytest.mark.parametrize(("begins", "status"), [(3, "healthy"), (50, "found")])
def test_a_wait_for_data_costs_only_what_no_device_works_meanwhile(
    tmp_path: Path, begins: float, status: str, thread: int
) -> None:
    """The host waits for the next batch, here or on a thread that prefetches, while the GPU computes."""
    rows = []
    for number in range(20):
        at = 100 * number
        launch = row(
            "cuda_runtime", "cudaLaunchKernel", at + begins - 2, at + begins - 1, correlation=number + 1
        )
        kernel = on_gpu("kernel", "gemm", at + begins, at + 99, correlation=number + 1)
        rows += [
            marked(number, at, at + 100),
            row("user_annotation", LOADING, at, at + 98, thread),
            launch,
            kernel,
        ]
    analysis = evaluate(KinetoTraces(write(tmp_path / "t.json", rows)))
    assert of_rule("DataStarved", analysis).status == status
    assert analysis.component_seconds["data_wait"] == pytest.approx(0.02 * begins)
    assert verdict(analysis).status == status


def test_waits_for_data_that_are_all_hidden_are_timed(tmp_path: Path) -> None:
    rows = [on_gpu("kernel", "gemm", 0, 2000)]
    for number in range(20):
        rows += [marked(number, 100 * number, 100 * number + 100)]
        rows += [row("user_annotation", LOADING, 100 * number, 100 * number + 50)]
    analysis = evaluate(KinetoTraces(write(tmp_path / "t.json", rows)))
    assert of_rule("DataStarved", analysis).status == "healthy"


def test_operators_have_their_own_time_and_that_of_what_they_call(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path,
        [
            row("cpu_op", "aten::linear", 0, 10),
            row("cpu_op", "aten::addmm", 2, 9),
            row("cpu_op", "aten::copy_", 3, 4),
            row("cpu_op", "aten::addmm", 20, 25),
            row("cpu_op", "aten::copy_", 3, 8, thread=2),  # on another thread: of no other operator
            on_gpu("kernel", "sgemm", 5, 6),
            on_gpu("kernel", "sgemm", 7, 9),
        ],
    )
    assert [
        (one.name, one.calls, round(one.seconds * 1000, 6), round(one.self_seconds * 1000, 6))
        for one in summary.operators
    ] == [("aten::addmm", 2, 12, 11), ("aten::copy_", 2, 6, 6), ("aten::linear", 1, 10, 3)]
    assert [(one.device, one.name, one.calls, round(one.seconds * 1000, 6)) for one in summary.kernels] == [
        ("gpu0", "sgemm", 2, 3)
    ]


def test_collectives_tell_what_nothing_hid(tmp_path: Path) -> None:
    named: dict[str, Any] = {"Collective name": "_allgather_base"}
    summary = summary_of(
        tmp_path,
        [
            on_gpu("kernel", "sgemm", 0, 10),
            on_gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 5, 12, stream=20),
            on_gpu("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(...)", 20, 23, stream=20),
            on_gpu("kernel", "ncclDevKernel_Generic(...)", 30, 31, 7, **named),
            row("cpu_op", "nccl:all_reduce", 0, 1),  # this only starts it
            row("user_annotation", "gloo:all_reduce", 40, 44, thread=5),
        ],
    )
    assert [
        (one.device, one.name, one.calls, round(one.seconds * 1000, 6), round(one.self_seconds * 1000, 6))
        for one in summary.collectives
    ] == [
        ("cpu", "allreduce", 1, 4, 4),
        ("gpu0", "allgatherbase", 1, 1, 1),
        ("gpu0", "allreduce", 2, 10, 5),
    ]


@pytest.mark.parametrize("ending", [".pt.trace.json", ".pt.trace.json.gz"])
def test_a_directory_has_a_trace_a_rank(tmp_path: Path, ending: str) -> None:
    for rank in (1, 0):
        rows = [marked(5, 0, 10), marked(6, 10, 20 + rank)]
        rows.append(row("user_annotation", "Optimizer.step#Adam.step", 12, 14))
        rows.append(
            row("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 11)
        )
        job = {"backend": "nccl", "rank": rank, "world_size": 2}
        gpus = [{"id": rank, "name": "NVIDIA H200"}]
        path = tmp_path / f"node-{rank}_10{rank}.1700000000{ending}"
        write(path, rows, host_name=f"node-{rank}", distributedInfo=job, deviceProperties=gpus)
    steps, _, facts = read(tmp_path)
    by_rank = {one.rank: one for one in steps}
    assert by_rank[1].node == "node-1"
    assert by_rank[1].numbers.tolist() == [5, 6]
    np.testing.assert_allclose(by_rank[1].durations, [0.010, 0.011], atol=1e-9)
    np.testing.assert_allclose(by_rank[0].starts, [BASE, BASE + 0.010], atol=1e-6)
    waits = by_rank[0].components[:, COMPONENTS.index("data_wait")]
    np.testing.assert_allclose(waits, [0, 0.001], atol=1e-9)
    optimizer = by_rank[0].components[:, COMPONENTS.index("optimizer")]
    np.testing.assert_allclose(optimizer, [0, 0.002], atol=1e-9)
    assert [(one.rank, one.node, one.pid, one.world_size) for one in facts.ranks] == [
        (0, "node-0", 100, 2),
        (1, "node-1", 100, 2),
    ]
    assert [gpu.model for node in facts.nodes for gpu in node.gpus] == ["NVIDIA H200", "NVIDIA H200"]


def test_several_traces_of_one_process_are_one_rank(tmp_path: Path) -> None:
    for number, start in ((1, 0.0), (2, 5000.0)):
        rows = [marked(number, start, start + 10), row("cpu_op", "aten::mm", start, start + 4)]
        write(tmp_path / f"node-a_100.{number}.pt.trace.json", rows)
    steps, _, facts = read(tmp_path)
    assert [one.numbers.tolist() for one in steps] == [[1, 2]]
    assert [(one.operator, one.calls, round(one.seconds, 9)) for one in facts.operators] == [
        ("aten::mm", 2, 0.008)
    ]


def test_the_time_between_captures_belongs_to_no_figure(tmp_path: Path) -> None:
    for number, start in ((1, 0.0), (2, 5000.0)):
        write(tmp_path / f"{number}.json", [marked(number, start, start + 10)])
    source = KinetoTraces(tmp_path)
    analysis = evaluate(source)
    assert analysis.run_seconds == pytest.approx(0.020, abs=1e-6)
    assert analysis.phase_seconds["other"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("ahead", "seconds"), [(0.0, 0.2), (40.0, 0.28), (7000.0, 0.2), (-3600_000.0, 0.2)])
def test_a_run_of_ranks_on_other_clocks_is_no_longer_than_each_was_traced(
    tmp_path: Path, ahead: float, seconds: float
) -> None:
    """Two captures of 100 ms of each rank; `ahead` is in milliseconds."""
    for number, start in ((1, 0.0), (2, 3000.0)):
        for rank in (0, 1):
            rows = [marked(number, start + rank * ahead, start + rank * ahead + 100)]
            write(tmp_path / f"{rank}.{number}.json", rows, distributedInfo={"rank": rank})
    assert evaluate(KinetoTraces(tmp_path)).run_seconds == pytest.approx(seconds, abs=1e-6)


def test_the_time_in_which_a_profiler_was_paused_belongs_to_no_figure(tmp_path: Path) -> None:
    """As by `toggle_collection_dynamic`: steps 10 to 12, 50 to 52 and so on in one trace, with a frame."""
    rows = [row("python_function", "train.py(3): train", 1000, 13_300)]
    for number in (each + more for each in (10, 50, 90, 130) for more in range(3)):
        start = 100.0 * number
        rows += [
            marked(number, start, start + 100),
            row("cuda_runtime", "cudaLaunchKernel", start, start + 1, correlation=number),
            on_gpu("kernel", "gemm", start + 2, start + 99, correlation=number),
        ]
    source = KinetoTraces(write(tmp_path / "t.json", rows))
    analysis = evaluate(source)
    assert analysis.run_seconds == pytest.approx(1.2, abs=0.01)
    assert analysis.phase_seconds["other"] == pytest.approx(0, abs=1e-6)
    (device,) = analysis.devices
    assert (device.compute, device.idle) == pytest.approx((12 * 0.097, 8 * 0.003))
    assert verdict(analysis).status == "healthy"
    assert [said for said in analysis.unknowns if "pause" in said] == [
        "t.json has 3 pauses of its profiler, 11.1 s, which count in no figure."
    ]


@pytest.mark.parametrize(
    ("numbers", "between"), [((10, 11), []), ((10, 50), [row("cpu_op", "aten::mm", 200, 4800)])]
)
def test_time_without_steps_is_no_pause_if_none_is_missing_or_something_was_recorded(
    tmp_path: Path, numbers: tuple[int, int], between: list[Row]
) -> None:
    first, second = numbers
    rows = [marked(first, 0, 100), *between, marked(second, 5000, 5100)]
    assert evaluate(KinetoTraces(write(tmp_path / "t.json", rows))).run_seconds == pytest.approx(5.1)


def test_the_work_of_a_device_that_the_file_does_not_list_is_that_of_a_gpu(tmp_path: Path) -> None:
    kernels = [on_gpu("kernel", "gemm", 100 * number, 100 * number + 98) for number in range(30)]
    said = verdict(evaluate(KinetoTraces(write(tmp_path / "t.json", kernels)))).sentence
    assert said == "Not enough data: the trace marks no steps."
    analysis = evaluate(KinetoTraces(write(tmp_path / "t.json", [*kernels, marked(1, 0, 3000)])))
    assert traced(analysis).endswith("on 1 node with 1 GPU")
    host = evaluate(KinetoTraces(write(tmp_path / "t.json", [marked(1, 0, 3000)])))
    assert traced(host).endswith("on 1 node with no GPU seen")


def test_begins_and_ends_are_events_and_what_nests_is_joined_on_its_own_thread(tmp_path: Path) -> None:
    def ends(phase: str, name: str, at: float, thread: int = 1) -> Row:
        return {**row("cpu_op", name, at, at, thread), "ph": phase}

    rows = [
        ends("B", "outer", 0),
        ends("B", "other", 1, thread=2),
        ends("B", "inner", 2),
        ends("E", "", 5),
        ends("E", "", 9, thread=2),
        ends("E", "outer", 10),
        ends("E", "never begun", 11),
        ends("B", "never ended", 12),
    ]
    found = {one.name: round(1000 * one.seconds, 6) for one in summary_of(tmp_path, rows).operators}
    assert found == {"outer": 10, "inner": 3, "other": 8}


def test_times_before_the_zero_of_a_trace_that_counts_from_its_start_are_read(tmp_path: Path) -> None:
    write(tmp_path / "t.json", [row("cpu_op", "a", -17, 3), row("cpu_op", "b", 4, 5)], baseTimeNanoseconds=0)
    assert read(tmp_path)[2].end == pytest.approx(0.022)
    write(tmp_path / "t.json", [row("cpu_op", "a", 0, 3)], baseTimeNanoseconds=-(10**18) * 2)
    with pytest.raises(UserError, match="not a time since 1970"):
        read(tmp_path)


def test_a_gpu_that_a_trace_lists_without_its_work_is_never_healthy(tmp_path: Path) -> None:
    """As with torch.profiler's activity CPU only."""
    steps = [marked(number, 100 * number, 100 * number + 100) for number in range(3)]
    loads = [row("user_annotation", LOADING, 100 * number, 100 * number + 1) for number in range(3)]
    write(tmp_path / "t.json", [*steps, *loads], deviceProperties=[{"id": 0, "name": "NVIDIA H100"}])
    found = verdict(evaluate(KinetoTraces(tmp_path)))
    assert found.status == "not enough data"
    assert "the trace lists a GPU, but no work of it" in found.sentence
    write(tmp_path / "t.json", [*steps, *loads], deviceProperties=[])
    assert verdict(evaluate(KinetoTraces(tmp_path))).status == "healthy"


def test_events_with_a_negative_duration_count_nowhere_and_are_named(tmp_path: Path) -> None:
    steps = [marked(number, 100 * number, 100 * number + 100) for number in range(3)]
    wrong = [marked(3, 400, 350), on_gpu("kernel", "gemm", 300, 200)]
    wrong += [{**row("cpu_op", "aten::mm", at, at), "ph": phase} for phase, at in (("B", 9), ("E", 8))]
    (read_steps,), _, facts = read(
        write(tmp_path / "t.json", [*steps, on_gpu("kernel", "a", 0, 200), *wrong])
    )
    assert read_steps.numbers.tolist() == [0, 1, 2]
    assert [round(1000 * device.compute, 6) for device in facts.devices] == [200]
    for category in ("cpu_op", "kernel"):
        assert any(f"{category} with a negative duration (1)" in sentence for sentence in facts.unknowns)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([on_gpu("kernel", "gemm", 0, 0.1)], "µs with no known step"),
        ([marked(1, 0, 100), on_gpu("kernel", "gemm", 0, 99)], "the trace covers only 100 ms with 1 step"),
        (
            [*(marked(number, number, number + 1) for number in range(9)), on_gpu("kernel", "gemm", 0, 9)],
            "the trace covers only 9.00 ms with 9 steps",
        ),
        (
            [
                *(marked(number, 100 * number, 100 * number + 100) for number in range(9)),
                on_gpu("kernel", "a", 0, 1),
            ],
            "the trace shows the device of rank 0 for only 1.00 ms of the 900 ms of its steps",
        ),
        (
            [row("cpu_op", "aten::mm", 0, 1200), on_gpu("kernel", "gemm", 1186, 1200)],
            "the trace shows the device of rank 0 for only 14.0 ms of the 1.20 s that it covers",
        ),
    ],
)
def test_a_trace_that_shows_too_little_is_never_healthy(tmp_path: Path, rows: list[Row], said: str) -> None:
    analysis = evaluate(KinetoTraces(write(tmp_path / "t.json", rows)))
    assert (verdict(analysis).status, said in verdict(analysis).sentence) == ("not enough data", True)
    assert not [rule.rule for rule in analysis.rules if rule.status == "healthy"]


def test_a_trace_of_many_steps_of_a_busy_device_is_healthy(tmp_path: Path) -> None:
    steps = [marked(number, 100 * number, 100 * number + 100) for number in range(3)]
    rows = [*steps, *(on_gpu("kernel", "gemm", 100 * number, 100 * number + 100) for number in range(3))]
    assert verdict(evaluate(KinetoTraces(write(tmp_path / "t.json", rows)))).status == "healthy"


def test_events_without_a_duration_or_a_partner_count_nowhere_and_are_named(tmp_path: Path) -> None:
    wrong = [on_gpu("kernel", "gemm", 0, 5), on_gpu("kernel", "gemm", 5, 9)]
    del wrong[0]["dur"]
    wrong[1]["dur"] = float("nan")
    begun = [{**row("cpu_op", "aten::mm", 0, 0), "ph": phase} for phase in "EBB"]
    _, _, facts = read(write(tmp_path / "t.json", [marked(1, 0, 10), *wrong, *begun]))
    assert not facts.devices
    (said,) = (sentence for sentence in facts.unknowns if "count nowhere" in sentence)
    for kind in ("kernel without a duration (2)", "begin without an end (2)", "end without a begin (1)"):
        assert kind in said
    assert facts.unrecognised == 5


def test_steps_whose_numbers_fall_were_recorded_by_a_clock_that_was_set_back(tmp_path: Path) -> None:
    rows = [marked(number, 100 * (number % 3), 100 * (number % 3) + 30) for number in (1, 2, 3)]
    with pytest.raises(UserError, match=r"t\.json: step 3 begins before step 1, so the clock was set back"):
        read(write(tmp_path / "t.json", rows))


def test_steps_that_are_twice_in_a_trace_or_overlap_count_once(tmp_path: Path) -> None:
    rows = [marked(number, 100 * number, 100 * number + 100) for number in (1, 2, 3)]
    (once,), _, facts = read(write(tmp_path / "t.json", [*rows, *rows]))
    assert once.numbers.tolist() == [1, 2, 3]
    assert not any("overlap" in sentence for sentence in facts.unknowns)
    rows = [marked(number, 100 * number, 100 * number + 150) for number in (1, 2, 3)]
    (overlapping,), _, facts = read(write(tmp_path / "t.json", rows))
    assert overlapping.durations == pytest.approx([0.1, 0.1, 0.15])
    assert any("overlap, by 100 ms in all" in sentence for sentence in facts.unknowns)


@pytest.mark.parametrize("base", [BASE, 0])
def test_a_copy_of_a_trace_counts_nowhere_and_that_is_said(tmp_path: Path, base: int) -> None:
    for name in ("a.json", "b.json"):
        about = {"distributedInfo": {"rank": 0}, "baseTimeNanoseconds": base * 10**9}
        write(tmp_path / name, [marked(1, 0, 10), on_gpu("kernel", "gemm", 0, 10)], **about)
    (steps,), _, facts = read(tmp_path)
    assert (len(steps), len(facts.ranks)) == (1, 1)
    assert facts.devices[0].compute == pytest.approx(0.01)
    assert "b.json covers the time of a.json in the same process: it counts nowhere." in facts.unknowns


@pytest.mark.parametrize(("host", "process"), [("node-a", 200), ("node-b", 100)])
def test_two_processes_with_one_rank_at_a_time_are_two_ranks_and_that_is_said(
    tmp_path: Path, host: str, process: int
) -> None:
    """Containers on two nodes may have the same numbers of processes."""
    processes = (("a", "node-a", 100, 0), ("b", host, process, 0), ("c", "node-a", 300, 1))
    for name, node, pid, rank in processes:
        about = {"distributedInfo": {"rank": rank}, "host_name": node}
        write(tmp_path / f"{name}.json", [{**marked(1, 0, 10), "pid": pid}], **about)
    _, _, facts = read(tmp_path)
    assert [(rank.rank, rank.node, rank.pid) for rank in facts.ranks] == [
        (0, "node-a", 100),
        (1, "node-a", 300),
        (2, host, process),
    ]
    assert "b.json is not the only process with rank 0: it is numbered 2." in facts.unknowns


def test_a_trace_without_a_rank_takes_no_number_that_another_one_has(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [{**marked(1, 0, 10), "pid": 50}])
    write(tmp_path / "b.json", [marked(1, 0, 10)], distributedInfo={"rank": 0})
    _, _, facts = read(tmp_path)
    assert [(rank.rank, rank.pid) for rank in facts.ranks] == [(0, 100), (1, 50)]


def test_a_compressed_trace_that_is_cut_off_is_named_in_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json.gz", [marked(number, number, number + 1) for number in range(999)])
    path.write_bytes(path.read_bytes()[:-99])
    with pytest.raises(UserError, match=r"t\.json\.gz: cannot be read"):
        read(tmp_path)


def test_events_that_are_years_apart_are_refused(tmp_path: Path) -> None:
    """A kernel without a time, as old drivers wrote it."""
    rows = [marked(1, 0, 100), {**on_gpu("kernel", "a", 0, 10), "ts": -BASE * 1e6}]
    with pytest.raises(UserError, match="the clock of some was wrong"):
        read(write(tmp_path / "t.json", rows))


@pytest.mark.parametrize("category", ["ai_core", None])
def test_events_that_may_be_the_work_of_a_device_are_named_and_never_healthy(
    tmp_path: Path, category: str | None
) -> None:
    steps = [marked(number, 100 * number, 100 * number + 100) for number in range(3)]
    loads = [row("user_annotation", LOADING, 100 * number, 100 * number + 1) for number in range(3)]
    work = [row("", "MatMul", 100 * number + 5, 100 * number + 25, thread=7) for number in range(3)]
    for each in work:
        each["cat"] = category
    write(tmp_path / "t.json", [*steps, *loads, *work])
    analysis = evaluate(KinetoTraces(tmp_path))
    assert verdict(analysis).status == "not enough data"
    said = " ".join(verdict(analysis).sentences)
    assert "3 events of the trace may be the work of a device" in said
    assert f"count nowhere: {category or 'without a category'} (3). Only operators, kernels" in said
    assert any(f"{category or 'without a category'} (3)" in sentence for sentence in analysis.unknowns)


@pytest.mark.parametrize(
    ("copied", "communicated", "title"),
    [(0, 0, "Idle GPU"), (60, 0, "Copies of memory"), (0, 15, "Exposed communication")],
)
def test_a_device_that_hardly_computes_is_not_healthy(
    tmp_path: Path, copied: int, communicated: int, title: str
) -> None:
    idle = 0 if copied or communicated else 60
    end = 100 - idle
    rows = [row("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1)]
    rows += [row("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=2)]
    rows += [on_gpu("kernel", "gemm", 2, end - copied - communicated, correlation=1)]
    if copied:
        rows += [on_gpu("gpu_memcpy", "Memcpy", 100 - copied, 100, correlation=2)]
    elif communicated:
        rows += [on_gpu("kernel", "ncclDevKernel_AllReduce_Sum", 100 - communicated, 100, correlation=2)]
    else:
        rows += [on_gpu("kernel", "gemm", 100, 100.01, stream=8, correlation=2)]  # waits for another stream
    write(tmp_path / "t.json", rows)
    found = problems_of(evaluate(KinetoTraces(tmp_path)))
    assert [problem.title for problem in found] == [title]
    assert found[0].seconds_lost == pytest.approx((idle or copied or communicated) / 1000, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "words", "helps"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "from pageable memory", "pin_memory=True"),
        ("Memcpy HtoD (Pinned -> Device)", "from the host", "from pinned memory"),
        ("MemcpyH2D", "from the host", "from pinned memory"),  # XLA
        ("CopyHostToDevice", "from the host", "from pinned memory"),  # ROCm
        ("zeCommandListAppendMemoryCopy(M2D)", "from pageable memory", "pin_memory=True"),  # Level Zero
        ("zeCommandListAppendMemoryCopy(D2M)", "to the host", "less often"),
        ("Memcpy DtoH (Device -> Pageable)", "to the host", "less often"),
        ("Memcpy DtoD (Device -> Device)", "inside of the device", "clone"),
        ("Memcpy PtoP (Device -> Device)", "inside of the device", "clone"),
        ("Memset (Device)", "to fill memory", "gradients to None"),
        ("Memcpy", "", "Look in the trace"),
    ],
)
def test_the_advice_about_copies_is_for_the_kind_that_took_most(
    tmp_path: Path, name: str, words: str, helps: str
) -> None:
    rows = [row("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1)]
    rows += [on_gpu("kernel", "gemm", 2, 40, correlation=1)]
    rows += [on_gpu("gpu_memcpy", name, 40, 80), on_gpu("gpu_memcpy", "Memcpy DtoD", 80, 100, stream=8)]
    rows += [on_gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 80, 100)]
    for part in range(2):  # of the capture: each file is one
        later = [{**each, "ts": each["ts"] + 1000 * 1000 * part} for each in rows]
        write(tmp_path / f"t.{part}.json", later)
    (found,) = problems_of(evaluate(KinetoTraces(tmp_path)))
    assert words in found.rule.finding
    assert ("most of it" in found.rule.finding) == bool(words)
    assert helps in found.rule.recommendation


def test_any_sensible_name_is_read_and_other_json_is_not(tmp_path: Path) -> None:
    for name in ("trace.json", "logs/run/rank-1.json.gz"):
        rank = {"rank": int("rank-1" in name), "world_size": 2}
        write(tmp_path / name, [marked(1, 0, 10)], distributedInfo=rank)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "broken.json.gz").write_bytes(b"no gzip")
    assert [(one.rank, len(one)) for one in read(tmp_path)[0]] == [(1, 1), (0, 1)]


def test_a_rank_that_no_file_contains_is_numbered_and_that_is_said(tmp_path: Path) -> None:
    for process in (7, 8):
        write(tmp_path / f"rank-{process}.json", [{**marked(1, 0, 10), "pid": process}])
    _, _, facts = read(tmp_path)
    assert [(rank.rank, rank.pid) for rank in facts.ranks] == [(0, 7), (1, 8)]
    assert any("rank-7.json (rank 0) and rank-8.json (rank 1)" in sentence for sentence in facts.unknowns)


def test_old_categories_and_other_devices_count_and_unknown_ones_are_reported(tmp_path: Path) -> None:
    rows = [
        row("Operator", "ProfilerStep#1", 0, 20),
        row("Operator", "aten::mm", 0, 5),
        row("Runtime", "cudaLaunchKernel", 1, 2, correlation=1),
        on_gpu("Kernel", "sgemm", 2, 10, correlation=1),
        on_gpu("Memcpy", "Memcpy DtoH", 12, 14),
        on_gpu("mtia_ccp_events", "matmul", 3, 9, device=1),
        row("new_category", "x", 0, 1),
    ]
    _, summaries, facts = read(write(tmp_path / "old.json", rows))
    times = {one.device: (round(one.compute, 6), round(one.copy, 6)) for one in summaries[0].devices}
    assert times == {"gpu0": (0.008, 0.002), "gpu1": (0.006, 0)}
    assert [step.number for step in summaries[0].steps] == [1]
    assert any("new_category (1)" in sentence for sentence in facts.unknowns)


def test_steps_without_marks_are_between_calls_of_the_optimizer(tmp_path: Path) -> None:
    calls = ((3, 5), (12, 15), (13, 14), (28, 30))  # one calls the method of its base class
    rows = [row("user_annotation", "Optimizer.step#Adam.step", *call) for call in calls]
    steps, _, facts = read(write(tmp_path / "t.json", rows))
    np.testing.assert_allclose(steps[0].durations, [0.010, 0.015], atol=1e-9)
    assert any("between calls of the optimizer" in sentence for sentence in facts.unknowns)


def test_frames_that_overlap_on_one_thread_do_not_sum_to_more_than_the_wait(tmp_path: Path) -> None:
    """Frames of generators and annotations end after what they begin in. Each moment counts once."""
    rows = [on_gpu("kernel", "a", 0, 10), row("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1)]
    for depth in range(10):
        rows.append(row("python_function", f"train.py({depth}): step", 10 + depth, 60 + 2 * depth))
        rows.append(row("cpu_op", f"aten::op{depth}", 10.5 + depth, 55 + 3 * depth))
    rows += [row("cuda_runtime", "cudaLaunchKernel", 110, 111, correlation=2)]
    rows += [on_gpu("kernel", "b", 112, 120, correlation=2)]
    summary = summary_of(tmp_path, rows)
    (device,) = summary.devices
    assert sum(part.seconds for part in device.host) == pytest.approx(device.idle_for["host"])
    assert min(each.self_seconds for each in summary.operators) >= 0
    assert sum(each.self_seconds for each in summary.operators) <= 0.0815  # from 10.5 to 82 ms at most


def test_a_gpu_waits_for_data_the_profiler_or_the_host_and_the_host_s_line_is_named(tmp_path: Path) -> None:
    rows = [
        on_gpu("kernel", "a", 0, 10, correlation=1),
        row("python_function", "train.py(7): step", 0, 60),
        row("user_annotation", LOADING, 12, 20),
        row("overhead", "Activity Buffer Request", 20, 23, thread=9),
        row("cpu_op", "aten::item", 24, 38),
        row("cuda_runtime", "cudaStreamSynchronize", 25, 37),
        row("cuda_runtime", "cudaLaunchKernel", 40, 41, correlation=2),
        on_gpu("kernel", "b", 42, 50, correlation=2),
    ]
    device = summary_of(tmp_path, rows).devices[0]
    assert milliseconds(device.idle_for) == {"data": 8, "profiler": 3, "host": 20, "launch": 1}
    assert [(part.kind, part.site, round(1000 * part.seconds, 6)) for part in device.host] == [
        ("synchronising", "train.py(7): step", 12),
        ("python", "train.py(7): step", 5),
        ("synchronising", "train.py(7): step", 2),
        ("runtime", "train.py(7): step", 1),  # the call that launches
    ]
    assert [(part.name, part.calls) for part in device.synchronising] == [
        ("aten::item (cudaStreamSynchronize)", 1)
    ]
    rows.append(row("python_function", "/tmp/torchinductor_me/ab/cab.py(9): call", 24, 39))
    generated = summary_of(tmp_path, rows).devices[0]
    assert {part.site for part in generated.host} == {"train.py(7): step"}


def test_collectives_know_their_group_and_bytes(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "Process Group Name": "1",
        "Process Group Ranks": "[0, 1]",
        "dtype": "BFloat16",
        "Seq": 4,
    }
    external: dict[str, Any] = {"External id": 5}
    said |= {**external, "In msg nelems": 8}
    rows = [
        row("cpu_op", "record_param_comms", 0, 1, **said),
        row("cuda_runtime", "cudaLaunchKernelExC", 0.5, 1, correlation=3),
        on_gpu("kernel", "ncclDevKernel_AllReduce_Sum_bf16", 2, 4, correlation=3, **external),
    ]
    call = load(write(tmp_path / "t.json", rows)).collectives[0]
    assert (call.operation, call.launched, call.about.bytes) == ("allreduce", 500, 16)
    assert (call.about.group, call.about.ranks, call.sequence) == ("1", (0, 1), 4)


def test_a_trace_without_steps_is_split_as_a_whole_and_that_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.pt.trace.json", [row("cpu_op", "aten::mm", 0, 3), row("cpu_op", "x", 8, 10)])
    steps, summaries, facts = read(path)
    assert steps == []
    assert milliseconds(summaries[0].steps[0].slices) == {"other CPU": 5, "other": 5}
    assert any("marks no step" in sentence for sentence in facts.unknowns)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"traceEvents": [\n{"ph": "X",', "line 2: not JSON; the trace is cut off"),
        (b'[{"ts": 0x262ca50},\n{}]', "line 1: not JSON; expecting ',' delimiter, export"),
        (b"{}", "no traceEvents"),
        (b'[{"id": 1, "timestamps": []}, [2]]', "is no trace"),
        (b'{"Type": 48, "CudaEvent": {}}\n{"Type": 59}', "nsys export --type sqlite"),
        (b'{"traceEvents": []}', "holds no event"),
        (b'{"traceEvents": [{"ph": "b", "cat": "c", "name": "k"}]}', "only 1 asynchronous event"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}', "only 1 kernel without a duration"),
        (b'{"traceEvents": [{"ph": "X", "name": "k", "ts": Infinity, "dur": 1}]}', "only 1 damaged event"),
        (gzip.compress(b"{}")[:-4], "cannot be read"),
    ],
)
def test_a_corrupt_trace_gives_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / ("t.pt.trace.json.gz" if content[:2] == b"\x1f\x8b" else "t.pt.trace.json")
    path.write_bytes(content)
    said = refusal("report", path, "--out", tmp_path / "out")
    assert message in said
    assert str(path) in said


def test_a_directory_without_a_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no trace"):
        KinetoTraces(tmp_path)


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=12)


@given(INTERVALS, INTERVALS, st.integers(0, 30), st.integers(0, 30))
def test_intervals_are_sets_of_moments(
    one: list[tuple[int, int]], other: list[tuple[int, int]], start: int, length: int
) -> None:
    def moments(pairs: list[tuple[int, int]]) -> set[int]:
        return {moment for begin, size in pairs for moment in range(begin, begin + size)}

    def intervals(pairs: list[tuple[int, int]]) -> Intervals:
        begins = np.array([begin for begin, _ in pairs], float)
        return Intervals.union(begins, begins + np.array([size for _, size in pairs], float))

    both = intervals(one) | intervals(other)
    expected = moments(one) | moments(other)
    assert both.length == len(expected)
    window = set(range(start, start + length))
    assert both.within(np.array([float(start)]), np.array([float(start + length)])) == [
        len(expected & window)
    ]
    if expected:
        assert both.gaps().length == max(expected) + 1 - min(expected) - len(expected)


def test_the_slices_are_those_of_the_documentation() -> None:
    page = Path(__file__).parents[2] / "docs" / "traces.md"
    text = page.read_text(encoding="utf-8")
    assert [name for name in SLICES if name not in text] == []
