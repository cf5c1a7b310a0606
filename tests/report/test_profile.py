"""Profile windows in the report: operators, windows without a trace, damaged traces, and no accusation."""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.common.status import Status
from stepscope.evaluation.account import BETWEEN, PROFILING, account
from stepscope.evaluation.analysis import Analysis, Profile
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.profile import profile_of, with_evidence
from stepscope.report.charts import chart_data
from stepscope.report.devices import headline
from stepscope.report.document import document
from stepscope.report.html import render_html
from stepscope.report.markdown import render_markdown
from stepscope.report.strip import memory_over_time, slow_and_median
from stepscope.rules.straggler import Straggler
from stepscope.runs.model import PHASES, PICTURE, PassTime, ProfileWindow, RankFacts
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.traces.source import KinetoTraces

from tests.support.profile_windows import (
    allocation,
    event,
    modules_of_a_step,
    recording_with_windows,
    with_allocations,
    with_another_window,
    with_python_window,
)
from tests.support.recording import START
from tests.support.schemas import validator_of


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return recording_with_windows(tmp_path)


def evaluated(recording: Path) -> tuple[Analysis, Profile]:
    analysis = evaluate(RecordingDirectory(recording))
    assert analysis.profile is not None
    return analysis, analysis.profile


def edited(recording: Path, rank: str = "*") -> Iterator[list[dict[str, Any]]]:
    """Yields the events of each trace of steps 2 and 3, and then writes what they have become."""
    paths = list((recording / "profiles").glob(f"rank-{rank}.steps-2-3.*.gz"))
    assert paths
    for path in paths:
        values = json.loads(gzip.decompress(path.read_bytes()))
        yield values["traceEvents"]
        path.write_bytes(gzip.compress(json.dumps(values).encode()))


def valid_document(analysis: Analysis) -> dict[str, Any]:
    """Returns the report as JSON. Fails if its schema does not take it."""
    schema = Path(__file__).parents[2] / "docs" / "report.schema.json"
    written: dict[str, Any] = json.loads(json.dumps(document(analysis)))
    assert list(validator_of(json.loads(schema.read_text())).iter_errors(written)) == []
    return written


def test_every_form_of_the_report_has_the_operators_of_each_rank(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis, profile = evaluated(recording)
    largest = {each.rank: each.operators[0] for each in profile.devices}
    assert {rank: each.operator for rank, each in largest.items()} == {0: "aten::addmm", 1: "aten::addmm"}
    (ours,) = [each for each in profile.devices[1].operators if each.operator == "aten::index_put_"]
    assert ours.calls == 2
    assert ours.place == "train.py:9"
    assert ours.self_seconds == pytest.approx(0.6, rel=1e-3)
    (outer,) = [each for each in profile.devices[1].operators if each.operator == "aten::linear"]
    assert outer.seconds == pytest.approx(1.0, rel=1e-3)
    assert outer.self_seconds == pytest.approx(0.4, rel=1e-3)
    markdown = render_markdown(analysis)
    assert "| Rank 1, CPU: 2 steps, 2.00 s |" in markdown
    assert "2 windows of 2 ranks, and 2 without a trace." in markdown
    page = render_html(analysis)
    assert 'href="profiles/rank-1.steps-2-3.100-0.pt.trace.json.gz"' in page
    assert "skipped: another window was open" in page
    assert "<td>train.py:9</td>" in page
    assert "| `aten::index_put_` | `train.py:9` |" in " ".join(markdown.split())
    known = document(analysis)["operators"]["devices"]
    assert [(each["rank"], each["steps"]) for each in known] == [(0, 2), (1, 2)]
    assert main(["report", str(recording)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "Rank 1 on CPU, of 2 profiled steps: 30 % in aten::addmm, 30 % in aten::index_put_ (train.py:9)"
        in said
    )


def test_a_window_with_shapes_shows_those_on_which_an_operator_spends_most(recording: Path) -> None:
    before = render_html(evaluate(RecordingDirectory(recording)))
    assert "Input shapes" not in before
    for events in edited(recording, "1"):
        linear = [each for each in events if each["name"] == "aten::addmm"]
        linear[0]["args"] = {"Input Dims": [[64], [32, 128], [128, 64], [], []]}
        linear[1]["args"] = {"Input Dims": [[64], [1, 128], [[1, 2], [3]]]}
        linear[1]["dur"] /= 10
    analysis = evaluate(RecordingDirectory(recording))
    assert "<td>64, 32×128, 128×64</td>" in render_html(analysis)
    assert "input shapes" in render_markdown(analysis)
    assert "`64, 32×128, 128×64`" in render_markdown(analysis)
    operators = [each["operators"] for each in document(analysis)["operators"]["devices"]]
    found = [[each["shapes"] for each in of if each["operator"] == "aten::addmm"] for of in operators]
    assert found == [[""], ["64, 32×128, 128×64"]]


def test_a_step_of_the_slowest_rank_is_drawn_above_one_of_the_rank_in_the_middle(recording: Path) -> None:
    for events in edited(recording, "0"):
        for each in events:  # rank 0 takes twice as long
            each["ts"], each["dur"] = START * 1e6 + 2 * (each["ts"] - START * 1e6), 2 * each.get("dur", 0)
        events += [
            event("autograd::engine::evaluate_function: AddmmBackward0", 6.5, 0.5),
            event("Optimizer.step#SGD.step", 7.5, 0.5, "user_annotation"),
            event("gemm", 7.0, 1.0, "kernel") | {"pid": 0, "tid": 7, "args": {"device": 0}},
        ]
    analysis, profile = evaluated(recording)
    drawn = slow_and_median(profile)
    assert drawn is not None
    assert [place for place, _ in drawn.ticks] == [0, 50, 100]
    assert drawn.ticks[-1][1] == "2.00 s"
    means = {row.name: {layer.name: round(layer.mean) for layer in row.layers} for row in drawn.rows}
    host = {"data loading": 0, "communication": 0}
    assert means == {
        "CPU of rank 0, step 3": host | {"backward": 25, "optimizer": 25, "other operators": 30},
        "GPU of rank 0, step 3": {"kernels": 50, "communication": 0, "copies": 0},
        "CPU of rank 1, step 3": host | {"backward": 0, "optimizer": 0, "other operators": 40},
    }
    assert 'aria-label="CPU of rank 1, step 3: data loading 0 % on average' in render_html(analysis)
    next((recording / "profiles").glob("rank-0.steps-2-3.*.gz")).unlink()
    alone = evaluate(RecordingDirectory(recording)).profile
    assert alone is not None
    assert slow_and_median(alone) is None


@pytest.mark.parametrize(("peak", "mfu"), [({"peak_flops": 2.0**21}, 0.5), ({}, None)])
def test_mfu_is_known_by_the_shapes_of_a_window_if_the_script_gives_only_the_peak(
    tmp_path: Path, peak: dict[str, float], mfu: float | None
) -> None:
    recording = recording_with_windows(tmp_path, gauges=peak)
    for events in edited(recording):
        for each in events:
            if each["name"] == "aten::addmm":  # 2**19 operations, in each of 6 steps, which take 3 s
                each["args"] = {"Input Dims": [[64], [32, 128], [128, 64]]}
    analysis = evaluate(RecordingDirectory(recording))
    assert analysis.flops_utilisation == mfu
    assert ("by the operators of profile windows" in render_html(analysis)) == (mfu is not None)


def test_gpus_and_collectives_of_windows_are_shown_as_a_report_on_their_traces_shows_them(
    recording: Path,
) -> None:
    for events in edited(recording):
        for correlation, (name, begin, length) in enumerate(
            [("gemm", 2.2, 0.3), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2.6, 0.2), ("gemm", 3.5, 0.1)]
        ):
            launch = event("cudaLaunchKernel", begin - 0.05, 0.01, "cuda_runtime")
            launch["args"] = {"correlation": correlation}
            kernel = event(name, begin, length, "kernel") | {"pid": 0, "tid": 7}
            kernel["args"] = {"correlation": correlation, "device": 0}
            if "nccl" in name:
                kernel["args"] |= {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float"}
            events += [launch, kernel]
    analysis, traces = evaluate(RecordingDirectory(recording)), evaluate(KinetoTraces(recording / "profiles"))
    shown, alone = valid_document(analysis)["operators"], document(traces)
    assert [each["device"] for each in shown["gpus"]] == ["gpu0", "gpu0"]
    measured = ("rank", "seconds", "percent", "idle_percent", "idle_seconds")
    assert [[gpu[name] for name in measured] for gpu in shown["gpus"]] == [
        [gpu[name] for name in measured] for gpu in alone["devices"]
    ]
    assert [each["operation"] for each in shown["collectives"]] == ["allreduce"]
    kinds = [device["kinds"] for device in shown["devices"] if device["device"] == "gpu0"]
    assert kinds == [pytest.approx({"matrix products": 0.4, "exposed communication": 0.2}, rel=1e-3)] * 2
    page = render_html(analysis)
    assert "GPUs in profile windows" in page
    assert "Collectives in profile windows" in page
    spent = "Matrix products 67 % and exposed communication 33 % of what it did."
    assert spent in page
    assert f"GPU 0 of rank 1: {spent}" in " ".join(render_markdown(analysis).split())
    (said,) = headline(traces)
    assert said in " ".join(render_markdown(analysis).split())


def test_passes_by_module_are_in_every_form_of_the_report(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for events in edited(recording):
        events[:0] = modules_of_a_step()
    analysis = evaluate(RecordingDirectory(recording))
    written = valid_document(analysis)
    first, second = written["operators"]["passes"]
    assert (first["rank"], second["rank"]) == (0, 1)
    parts = {part: first[part] for part in ("forward", "backward", "optimizer")}
    assert parts == pytest.approx({"forward": 0.4, "backward": 0.2, "optimizer": 0.1}, rel=1e-3)
    assert [each["module"] for each in first["modules"]] == ["Net.head (Linear)", "Net"]
    assert first["modules"][0] == {
        "module": "Net.head (Linear)",
        "calls": 1,
        "forward": pytest.approx(0.3, rel=1e-3),
        "backward": pytest.approx(0.2, rel=1e-3),
        "total": pytest.approx(0.5, rel=1e-3),
    }
    title = "Modules of rank 0, CPU: forward 20 %, backward 10 % and optimizer 5.0 % of 2 steps"
    assert title in render_html(analysis)
    markdown = render_markdown(analysis)
    assert f"| {title} |" in markdown
    assert "| `Net.head (Linear)` | 300 ms | 200 ms | 500 ms | 25 % |" in markdown
    assert "| `Optimizer` | – | – | 100 ms | 5.0 % |" in markdown
    assert main(["report", str(recording)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "forward 20 %, backward 10 % and optimizer 5.0 %; most by module: 25 % in Net.head (Linear)" in said
    )


def test_modules_of_many_layers_are_shown_together(recording: Path) -> None:
    facts = KinetoTraces(recording / "profiles").facts
    times = tuple(
        PassTime("node-a", 0, "cpu", "forward", f"Net.layers.{layer}.{name} ({kind})", 2, 0.25)
        for layer in range(12)
        for name, kind in (("fc", "Linear"), ("fc.inner", "ReLU"))
    )
    (many,) = profile_of(evaluate(RecordingDirectory(recording)), replace(facts, passes=times)).passes
    (few,) = profile_of(evaluate(RecordingDirectory(recording)), replace(facts, passes=times[:20])).passes
    assert [(each.module, each.calls, each.forward, each.total) for each in many.modules] == [
        ("Net.layers.*.fc (Linear)", 24, 3.0, 6.0),
        ("Net.layers.*.fc.inner (ReLU)", 24, 3.0, 3.0),
    ]
    assert len(few.modules) == 20


def test_a_report_without_a_gpu_in_its_windows_names_none(recording: Path) -> None:
    analysis = evaluate(RecordingDirectory(recording))
    assert document(analysis)["operators"]["gpus"] == []
    assert "in profile windows</h3>" not in render_html(analysis)


@pytest.mark.parametrize("damage", ["cut short", "no JSON", "gone", "list", "no last step"])
def test_a_damaged_trace_or_list_is_left_out_and_the_report_is_written(recording: Path, damage: str) -> None:
    damaged = recording / "profiles" / "rank-1.steps-2-3.100-0.pt.trace.json.gz"
    if damage == "cut short":
        damaged.write_bytes(damaged.read_bytes()[:100])
    elif damage == "no JSON":
        damaged.write_bytes(gzip.compress(b"\0\0"))
    elif damage == "gone":
        damaged.unlink()
    elif damage == "no last step":
        with_python_window(recording, 1, [])
        listed = recording / "profiles" / "rank-1.100.windows.json"
        listed.write_text(listed.read_text().replace('"last": 8', '"last": null'))
    else:
        (recording / "profiles" / "rank-1.100.windows.json").write_text('{"format": 1, "windows": [7]}')
    analysis, profile = evaluated(recording)
    assert 0 in {each.rank for each in profile.devices}
    if damage in ("cut short", "no JSON"):
        (unread,) = profile.unread
        assert damaged.name in unread
        assert damaged.name in render_html(analysis)
    if damage == "gone":
        assert [each.state for each in analysis.windows if each.rank == 1] == ["lost", "skipped"]
    if damage == "no last step":
        assert [each.first for each in analysis.windows if each.rank == 1] == [2, 5]
    if damage == "list":
        assert {each.rank for each in analysis.windows} == {0}
    assert analysis.run == "bert-1"


def test_no_trace_that_can_be_read_is_said(recording: Path) -> None:
    for each in (recording / "profiles").glob("*.gz"):
        each.write_bytes(b"no gzip")
    _, profile = evaluated(recording)
    assert profile.devices == ()
    assert len(profile.unread) == 1


def test_steps_of_a_window_are_no_outliers_but_count_in_all_totals(recording: Path) -> None:
    source = RecordingDirectory(recording)
    chunks = [chunk for chunk in source.read() if hasattr(chunk, "profiled")]
    marked = {chunk.rank: chunk.numbers[chunk.profiled].tolist() for chunk in chunks}  # type: ignore[union-attr]
    assert marked == {0: [2, 3], 1: [2, 3]}
    analysis = evaluate(RecordingDirectory(recording))
    assert {row.count for row in analysis.steps} == {4}
    assert sum(rank.steps["train"] for rank in source.facts.ranks) == 12


def test_the_time_to_begin_and_end_windows_is_a_part_of_its_own() -> None:
    rank = RankFacts(
        node="node-a",
        rank=0,
        pid=100,
        start=0.0,
        end=100.0,
        framework="pytorch",
        world_size=1,
        first_step_start=10.0,
        last_step_end=90.0,
        phase_seconds={**dict.fromkeys(PHASES, 0.0), "train": 60.0, "other": 20.0},
        component_seconds={},
        steps={"train": 60},
    )
    taken = ProfileWindow("node-a", 0, 100, 2, 3, 12.0, 15.0, "written", "", "profiles/x")
    without, with_window = (account(0.0, 100.0, [rank], {}, [], windows) for windows in ((), (taken,)))
    assert without is not None
    assert with_window is not None
    assert without.share(BETWEEN) == pytest.approx(0.20)
    assert with_window.share(BETWEEN) == pytest.approx(0.05)
    assert with_window.share(PROFILING) == pytest.approx(0.15)
    assert sum(leaf.share for leaf in with_window.leaves) == pytest.approx(1.0)


def test_python_functions_are_in_every_form_of_the_report(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_python_window(recording, 0, [["load, data.py:14", 6, 1.5, 1.2], ["sum", 9, 0.2, 0.2]])
    analysis, profile = evaluated(recording)
    (python,) = [each for each in profile.devices if each.device == "python"]
    assert (python.rank, python.steps, python.step_seconds) == (0, 2, 2.0)
    assert [each.operator for each in python.operators] == ["load, data.py:14", "sum"]
    assert "| Rank 0, Python: 2 steps, 2.00 s |" in render_markdown(analysis)
    assert "load, data.py:14" in render_html(analysis)
    known = valid_document(analysis)
    assert [each["device"] for each in known["operators"]["devices"]] == ["cpu", "python", "cpu"]
    assert main(["report", str(recording)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "Rank 0 in Python, of 2 profiled steps: 60 % in load, data.py:14 and 10 % in sum" in said


def test_the_stacks_of_a_window_of_python_are_a_flame_graph(recording: Path) -> None:
    stacks = [[1.2, "train.py:30", "load, data.py:14", "json.loads"], [0.4, "train.py:31"]]
    with_python_window(recording, 0, [["load, data.py:14", 6, 1.5, 1.2]], stacks)
    analysis = evaluate(RecordingDirectory(recording))
    charts = {name: data for name, data in chart_data(analysis).items() if data["kind"] == "flames"}
    ((name, graph),) = charts.items()
    assert graph["title"] == "rank 0, Python"
    assert [(row, seconds, graph["names"][at]) for row, _, seconds, at, _ in sorted(graph["flames"])] == [
        (0, 1.6, "rank 0, Python"),
        (1, 1.6, "steps 7 to 8"),
        (2, 1.2, "train.py:30"),
        (2, 0.4, "train.py:31"),
        (3, 1.2, "load, data.py:14"),
        (4, 1.2, "json.loads"),
    ]
    assert f'data-chart="{name}"' in render_html(analysis)


@pytest.mark.parametrize(
    ("listed", "stacks"),
    [
        ([["load", -1, 1.0, 1.0]], []),
        ([["load", 1, float("nan"), 1.0]], []),
        ([7], []),
        ("no list", []),
        ([], [[-1.0, "load"]]),
        ([], [[]]),
        ([], [[1.0, "lo\nad"]]),
    ],
)
def test_a_damaged_list_of_functions_costs_only_itself(recording: Path, listed: Any, stacks: Any) -> None:
    with_python_window(recording, 0, listed, stacks)
    _, profile = evaluated(recording)
    assert {each.device for each in profile.devices} == {"cpu"}
    (unread,) = profile.unread
    assert "rank-0.steps-7-8.100-1.python.json.gz" in unread


@pytest.mark.parametrize("accused", [0, 1])
def test_an_accused_rank_is_compared_with_its_peers_in_windows(recording: Path, accused: int) -> None:
    analysis = evaluate(RecordingDirectory(recording))
    result = analysis.result_of(Straggler)
    assert result is not None
    found = replace(result, status=Status.FOUND, finding="It is slow.", details={"rank": accused})
    (said,) = with_evidence([found], analysis.profile)
    evidence = (
        " In profile windows, it spends 300 ms per step in aten::index_put_, called from train.py:9; its "
        "peers 50.0 ms."
    )
    assert said.finding == f"It is slow.{evidence if accused else ''}"
    healthy = replace(found, status=Status.HEALTHY)
    assert with_evidence([healthy], analysis.profile) == [healthy]
    assert with_evidence([found], None) == [found]


MB = 1_000_000


def test_the_memory_that_operators_allocate_is_in_every_form_of_the_report(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """aten::linear, which calls aten::addmm, allocates 6 MB and frees 2 MB of them; aten::index_put_ 1 MB."""
    in_addmm, in_linear, in_index_put, between = 2.25, 2.55, 2.7, 2.99
    of_cpu = [
        allocation(in_addmm, 4 * MB, 4 * MB),
        allocation(in_linear, 2 * MB, 6 * MB),
        allocation(in_linear + 0.01, -2 * MB, 4 * MB),
        allocation(in_index_put, MB, 5 * MB),
        allocation(between, -4 * MB, MB),
    ]
    with_allocations(recording, 1, [*of_cpu, allocation(in_addmm, 8 * MB, 30 * MB, gpu=3)])
    analysis, profile = evaluated(recording)
    cpu, gpu = profile.memory
    assert (cpu.rank, cpu.device, cpu.steps, cpu.most) == (1, "cpu", 2, 6 * MB)
    assert [(each.operator, each.allocations, each.allocated, each.freed) for each in cpu.operators] == [
        ("aten::linear", 2, 6 * MB, 2 * MB),
        ("aten::index_put_", 1, MB, 0),
        ("outside operators", 0, 0, 4 * MB),
    ]
    assert cpu.operators[1].place == "train.py:9"
    assert (gpu.device, gpu.most, gpu.operators[0].operator) == ("gpu3", 30 * MB, "aten::linear")
    known = valid_document(analysis)
    assert [each["most"] for each in known["operators"]["memory"]] == [6 * MB, 30 * MB]
    title = "Memory of rank 1, CPU: 2 steps, at most 6.00 MB at once"
    markdown = " ".join(render_markdown(analysis).split())
    assert f"| {title} | called from |" in markdown
    assert "| `aten::linear` | | 3.00 MB | 2.00 MB | 1 | 86 % |" in markdown
    page = render_html(analysis)
    assert f"<h3>{title}</h3>" in page
    assert main(["report", str(recording)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    found = "3.00 MB in aten::linear and 500 kB in aten::index_put_ (train.py:9)"
    assert f"Rank 1 allocates on CPU per step: {found}." in said


def test_the_memory_of_a_window_is_drawn_by_the_part_that_allocated_it(recording: Path) -> None:
    """Steps 2 and 3 take a second each, from 2 s on. A backward node runs from 2.8 s to 2.9 s."""
    for events in edited(recording, "1"):
        events.append(event("autograd::engine::evaluate_function: AddmmBackward0", 2.8, 0.1))
    of_gpu = [
        allocation(2.25, 4 * MB, 10 * MB, 0, address=1),  # 6 MB were there before
        allocation(2.85, 6 * MB, 16 * MB, 0, address=2),
        allocation(2.95, -4 * MB, 12 * MB, 0, address=1),
        allocation(3.5, -2 * MB, 10 * MB, 0, address=3),  # of those before
    ]
    with_allocations(recording, 1, of_gpu)
    analysis, profile = evaluated(recording)
    (gpu,) = profile.memory
    percents = {part: list(dict.fromkeys(columns)) for part, columns in gpu.held.items()}
    assert percents == {"backward": [0, 38], "operators": [0, 25], "before": [0, 38, 25]}
    assert gpu.held["operators"].count(25) == pytest.approx(PICTURE * 0.7 / 2, abs=2)
    assert [(number, round(place)) for number, place in gpu.begins] == [(2, 0), (3, 50)]
    drawn = memory_over_time(gpu)
    assert drawn is not None
    assert [layer.name for layer in drawn.rows[0].layers] == [
        "before the window",
        "other operators",
        "backward",
    ]
    assert [said for _, said in drawn.ticks] == ["step 2", "step 3"]
    assert 'aria-label="GPU 0 of rank 1, up to 16.0 MB: before the window' in render_html(analysis)


def test_an_allocation_that_cannot_be_costs_nothing_else_and_is_named(recording: Path) -> None:
    with_allocations(recording, 1, [allocation(2.25, MB, MB) | {"args": {"Bytes": "many"}}])
    _, profile = evaluated(recording)
    assert {each.rank for each in profile.devices} == {0, 1}
    (unread,) = profile.unread
    assert re.match(
        r"rank-1\.steps-2-3\S* has events that are not understood.*: damaged events \(1\)", unread
    )


def test_what_changed_from_the_first_to_the_last_window_of_a_rank_is_in_the_report(recording: Path) -> None:
    assert evaluate(RecordingDirectory(recording)).profile.changes == ()  # type: ignore[union-attr]
    with_another_window(recording, 1, 0.1)
    analysis, profile = evaluated(recording)
    (changed,) = profile.changes  # rank 0 has one window
    assert (changed.operator, changed.place) == ("aten::index_put_", "train.py:9")
    assert [changed.a, changed.b] == pytest.approx([0.3, 0.1])
    row = "| `aten::index_put_` | CPU | `train.py:9` | 300 ms | 100 ms | \N{MINUS SIGN}200 ms |"
    assert row in " ".join(render_markdown(analysis).split())
    page = render_html(analysis)
    assert "From the first to the last window of each rank" in page
    assert '<td class="number">\N{MINUS SIGN}200 ms</td>' in page
    known = valid_document(analysis)
    assert known["operators"]["changes"][0]["difference"] == pytest.approx(-0.2)


def test_a_window_with_memory_is_not_compared_with_others(recording: Path) -> None:
    with_another_window(recording, 1, 0.1)
    with_allocations(recording, 1, [allocation(2.25, MB, MB)])
    _, profile = evaluated(recording)
    assert profile.changes == ()
    assert len(profile.memory) == 1
