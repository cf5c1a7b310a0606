"""The merged timeline: everything of a run on one time axis, whole, aligned and bounded."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stepscope.analysis
from stepscope.commands.cli import main
from stepscope.evaluation.analysis import Band
from stepscope.evaluation.engine import evaluate
from stepscope.report import merged_timeline
from stepscope.report.merged_timeline import write_timeline
from stepscope.rules.low_gpu_utilization import LowGPUUtilization
from stepscope.runs.model import COMPONENTS
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.chrome_trace import ChromeTrace, Slice, read_chrome_trace
from tests.support.commands import refusal
from tests.support.profile_windows import event, recording_with_windows, window
from tests.support.rank_traces import BASE, Job, traces
from tests.support.recording import START, header, sample, step, totals


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    folder = recording_with_windows(tmp_path)
    samples = RecordingWriter(folder, "node-a", 0.5, "bert-1")
    for tick in range(200):
        samples.sample(sample(tick))
    samples.close()
    return folder


def timeline(recording: Path, *flags: str) -> ChromeTrace:
    assert main(["timeline", str(recording), *flags]) == 0
    return read_chrome_trace(recording / "timeline.json.gz")


def named(slices: list[Slice], name: str) -> Slice:
    (found,) = [each for each in slices if each.name == name]
    return found


def test_steps_parts_operators_samples_and_findings_are_on_one_axis(recording: Path) -> None:
    read = timeline(recording)
    for rank, slow in ((0, 0.05), (1, 0.3)):
        process = f"Rank {rank} on node-a"
        steps = read.track(process, "Steps")
        assert [each.name for each in steps] == [f"train {number}" for number in range(6)]
        assert steps[3].start == pytest.approx(1.5)
        assert steps[3].end == pytest.approx(1.9, abs=1e-4)
        assert [each.about.get("profiled", False) for each in steps] == [False] * 2 + [True] * 2 + [False] * 2
        parts = [each for each in read.slices if each.process == process and "Parts" in each.track]
        first = [each for each in parts if steps[0].start <= each.start < steps[0].end]
        assert [round(each.end - each.start, 6) for each in first][:4] == [0.01, 0.02, 0.03, 0.04]
        assert len(first) <= len(COMPONENTS)
        operators = read.track(process, "CPU thread 100")
        assert named(operators[:4], "aten::index_put_").end - named(
            operators[:4], "aten::index_put_"
        ).start == pytest.approx(slow, rel=1e-3)
        assert named(operators[:4], "aten::linear").start == pytest.approx(2.1)
    gpu = read.counters["Node node-a", "GPU 0 (%)"]
    assert gpu[10] == pytest.approx((5.0, 20.0))
    assert read.counters["Node node-a", "CPU, busiest core (%)"][10][1] == pytest.approx(10.1)
    assert read.counters["Node node-a", "GPU 1 power (W)"][0][1] == pytest.approx(301.0)
    assert {each.process for each in read.slices} == {"Findings", "Rank 0 on node-a", "Rank 1 on node-a"}
    assert read.about["run"] == "bert-1"


def test_a_part_of_a_run_has_only_what_happened_then(recording: Path) -> None:
    out = stepscope.analysis.open(recording).write_timeline(recording / "part.json.gz", 0.95, 2.15)
    read = read_chrome_trace(out)
    assert [each.name for each in read.track("Rank 0 on node-a", "Steps")] == [
        f"train {number}" for number in (2, 3, 4)
    ]
    assert [each for each in read.slices if each.end < 0.95 or each.start > 2.15] == []
    assert [time for time, _ in read.counters["Node node-a", "GPU 0 (%)"]] == [1.0, 1.5, 2.0]


def test_a_rule_that_held_for_a_time_and_what_was_not_recorded_are_slices(recording: Path) -> None:
    analysis = evaluate(RecordingDirectory(recording))
    band = Band("node-a", "GPU 1", START + 10, START + 40, lasts=False, worst=9.0, words="9 % used")
    low = analysis.result_of(LowGPUUtilization)
    assert low is not None
    rules = [replace(low, bands=[band], finding="GPU 1 was hardly used.")]
    with (recording / "timeline.json.gz").open("wb") as file:
        write_timeline(file, replace(analysis, rules=rules), RecordingDirectory(recording))
    read = read_chrome_trace(recording / "timeline.json.gz")
    (found,) = read.track("Findings", "LowGPUUtilization")
    assert found.name == "LowGPUUtilization: node-a GPU 1 9 % used"
    assert (found.start, found.end) == (10.0, 40.0)
    assert found.about["finding"] == "GPU 1 was hardly used."


@pytest.mark.parametrize(
    ("recorded", "ahead", "collectives"),
    [("together", 0, True), ("apart", 0, True), ("apart", 3600, True), ("apart", 3600, False)],
)
def test_the_clocks_of_two_nodes_are_aligned_by_collectives_or_the_ends_of_steps(
    tmp_path: Path, recorded: str, ahead: int, collectives: bool
) -> None:
    folders = [tmp_path / f"{node if recorded == 'apart' else ''}" for node in range(2)]
    begins = []
    for rank, trace in enumerate(traces(Job(ranks=2, clocks=0.5))):
        for each in trace["traceEvents"]:
            each["ts"] = each.get("ts", 0) + rank * ahead * 1e6
        if not collectives:
            trace["traceEvents"] = [each for each in trace["traceEvents"] if "nccl" not in str(each)]
        marks = {
            each["name"]: each["ts"] / 1e6 for each in trace["traceEvents"] if "ProfilerStep" in each["name"]
        }
        begins.append(marks["ProfilerStep#12"])
        _write_node(folders[rank], rank, trace, begins[-1])
    assert abs(begins[0] - begins[1]) > 0.05  # as the clocks of the nodes say it
    out = tmp_path / "timeline.json.gz"
    assert main(["timeline", *sorted({str(folder) for folder in folders}), "-o", str(out)]) == 0
    read = read_chrome_trace(out)
    first, second = (each for each in read.slices if each.name == "ProfilerStep#12")
    assert second.start == pytest.approx(first.start, abs=0.01)
    rows = [read.track(f"Rank {rank} on node-{rank}", "Steps")[-1] for rank in (0, 1)]
    for row, mark in zip(rows, (first, second), strict=True):
        assert row.start == pytest.approx(mark.start, abs=1e-5)


def _write_node(folder: Path, rank: int, trace: dict[str, Any], begin: float) -> None:
    """Writes 12 steps of a node, up to step 12 at `begin`, and its window."""
    (folder / "profiles").mkdir(parents=True, exist_ok=True)
    RunFile("bert", run="bert-1", start=BASE + begin - 10, end=BASE + begin + 10).write(folder)
    name = f"rank-{rank}.steps-10-14.100-0.pt.trace.json.gz"
    (folder / "profiles" / name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    windows = {"windows": [window(10, 14, "written", name)]}
    values = {"format": 1, "run": "bert-1", "node": f"node-{rank}", "rank": rank, "pid": 100}
    (folder / "profiles" / f"rank-{rank}.100.windows.json").write_text(json.dumps(values | windows))
    writer = RecordingWriter(folder, f"node-{rank}", 0.5, "bert-1")
    writer.ranks([(header(rank), totals(1, BASE + begin), False)])
    starts = {number: BASE + begin + (number - 12) for number in range(1, 13)}
    writer.steps(
        header(rank), [replace(step(number), start=at, duration=0.01) for number, at in starts.items()]
    )
    writer.close()


def test_a_long_run_is_bounded_and_says_so(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(merged_timeline, "MOST_STEPS", 4)
    monkeypatch.setattr(merged_timeline, "MOST_READINGS", 300)
    monkeypatch.setattr(merged_timeline, "MOST_OPERATORS", 8)
    read = timeline(recording)
    said = " ".join(capsys.readouterr().err.split())
    steps = read.track("Rank 0 on node-a", "Steps")
    assert [each.name for each in steps] == ["train 0 to 1", "train 2", "train 3", "train 4 to 5"]
    assert steps[0].about == {"steps": 2, "longest step": "400 ms"}
    assert (steps[0].start, steps[0].end) == pytest.approx((0.0, 0.9), abs=1e-4)
    assert "It joins the steps of 50.0 s into one slice" in said
    assert sum(map(len, read.counters.values())) <= 300 + len(read.counters)
    gpu = read.counters["Node node-a", "GPU 0 (%)"]
    assert np.mean([value for _, value in gpu]) == pytest.approx(49.0, abs=0.5)
    operators = [each for each in read.slices if "CPU thread" in each.track]
    assert len(operators) == 8
    assert min(each.end - each.start for each in operators) == pytest.approx(0.5, rel=1e-3)
    assert "It has the 8 longest of 16 operators and kernels." in said
    assert len(read.about["notes"]) == 3


def test_a_sample_decades_ahead_takes_no_memory_for_the_time_before_it(recording: Path) -> None:
    wrong = sample(200)
    wrong.time += 1e10
    samples = RecordingWriter(recording, "node-a", 0.5, "bert-1")
    samples.sample(wrong)
    samples.sample(sample(201))
    samples.close()
    gpu = timeline(recording).counters["Node node-a", "GPU 0 (%)"]
    assert len(gpu) == 202
    assert max(time for time, _ in gpu) > 1e9


def test_slices_that_overlap_go_to_another_row(recording: Path) -> None:
    name = recording / "profiles" / "rank-0.steps-2-3.100-0.pt.trace.json.gz"
    crossing = [event("outer", 2.0, 0.4), event("crossing", 2.2, 0.5), event("inside", 2.3, 0.1)]
    name.write_bytes(gzip.compress(json.dumps({"traceEvents": crossing}).encode()))
    read = timeline(recording)
    rows = {each.name: each.track for each in read.slices if each.name in ("outer", "crossing", "inside")}
    assert rows == {
        "outer": "CPU thread 100",
        "crossing": "CPU thread 100 (2)",
        "inside": "CPU thread 100",
    }


def test_a_damaged_trace_costs_only_itself(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = recording / "profiles" / "rank-1.steps-2-3.100-0.pt.trace.json.gz"
    damaged.write_bytes(b"no gzip")
    read = timeline(recording)
    assert damaged.name in capsys.readouterr().err
    assert read.track("Rank 0 on node-a", "CPU thread 100")
    assert not read.track("Rank 1 on node-a", "CPU thread 100")


def test_what_cannot_be_written_is_one_line(recording: Path, tmp_path: Path) -> None:
    for words, reason in (
        ((str(recording / "profiles"),), "is no recording: say where to write the timeline, with -o FILE"),
        ((str(recording / "profiles"), "-o", str(tmp_path / "x")), "is a trace already"),
        ((str(recording), "-o", str(tmp_path / "none" / "x")), "choose another file with -o"),
    ):
        assert reason in refusal("timeline", *words)
    assert not (recording / "timeline.json.gz").exists()
