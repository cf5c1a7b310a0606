"""`stepscope report` on a Debugger directory: from the command to the JSON files."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.runs.debugger.source import DebuggerOutput
from stepscope.runs.open import open_source
from stepscope.runs.traces.source import KinetoTraces

from tests.support.commands import refusal
from tests.support.debugger_output import START, DebuggerDirectory, snapshot, step, write_training_job


def rule(out: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / "profiler-reports" / f"{name}.json").read_text())
    return result


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("inner", ["", "profiler-output"])
def test_a_report_of_a_job_says_what_was_slow_on_each_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: int, inner: str
) -> None:
    write_training_job(tmp_path / "my-job" / "profiler-output", nodes=nodes)
    out = tmp_path / "out"
    assert main(["report", str(tmp_path / "my-job" / inner), "--out", str(out)]) == 0
    assert capsys.readouterr().err.startswith("▲ found: Unbalanced GPU load ")
    assert "my-job" in (out / "report.html").read_text()
    bottleneck = rule(out, "CPUBottleneck")
    # 1,400 snapshots a node; they are judged at 4 of the 12 scans, from the 1,000th snapshot on
    assert (bottleneck["Violations"], bottleneck["Datapoints"]) == (1400 * nodes, 1400 * nodes)
    assert bottleneck["RuleTriggered"] == 4 * nodes
    steps = rule(out, "StepOutlier")
    assert steps["Datapoints"] == 300 * nodes
    assert steps["Violations"] == 15 * nodes
    starved = rule(out, "DataStarved")
    assert [one["data_wait_seconds"] for one in starved["Details"]["ranks"]] == pytest.approx([57.0] * nodes)
    loading = rule(out, "Dataloader")
    assert (loading["Details"]["cores"], loading["Details"]["dataloaders"]) == (4, 2)
    usage = rule(out, "OverallSystemUsage")["Details"]
    assert usage["CPU"]["algo-1"]["p50"] == pytest.approx(28.25, abs=0.05)  # (98 + 5 + 5 + 5) / 4
    assert sorted(usage["GPU"]) == [f"algo-{number}" for number in range(1, nodes + 1)]


def test_a_pinned_core_of_one_node_and_an_idle_gpu_of_another_are_no_bottleneck(tmp_path: Path) -> None:
    directory = DebuggerDirectory(tmp_path / "profiler-output")
    times = [START + 0.5 * index for index in range(1200)]
    for node, cpu, gpu in (("algo-1", (99.0, 1.0), (95.0,)), ("algo-2", (10.0, 10.0), (0.0,))):
        directory.write_readings([r for time in times for r in snapshot(time, cpu, gpu, node=node)], node)
    assert main(["report", str(directory.root), "--out", str(tmp_path / "out")]) == 0
    bottleneck = rule(tmp_path / "out", "CPUBottleneck")
    assert (bottleneck["Violations"], bottleneck["Datapoints"], bottleneck["RuleTriggered"]) == (0, 2400, 0)


def test_a_terminal_shows_how_much_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.report.terminal.PROGRESS_EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    directory = DebuggerDirectory(tmp_path / "profiler-output")
    times = [START + 60.0 * index for index in range(4)]
    directory.write_readings(row for time in times for row in snapshot(time, (5.0,)))
    assert main(["report", str(directory.root), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"\[#{5}\.{15}\] [\d.]+ k?B of [\d.]+ k?B, read 0 samples", shown)
    assert re.search(r"\[#{20}\] ([\d.]+ k?B) of \1, read 4 samples and steps", shown)
    assert shown.rpartition("\r\033[K")[2].lstrip("\033[;0123456789m").startswith("? ")


def bad_directories() -> dict[str, tuple[dict[str, str], str]]:
    """Files by path, and what is said of them."""
    return {
        "empty": ({}, "is empty"),
        "of something else": ({"notes.txt": "hello"}, "is not a recording, Debugger's"),
        "with empty folders": (
            {"system/incremental/.keep": "", "framework/.keep": ""},
            "holds no file of Debugger's",
        ),
        "with files of other names": (
            {"system/incremental/metrics.json": "{}"},
            "holds no file of Debugger's",
        ),
        "half-written": ({"system/incremental/1600000020.algo-1.json": '{"Type":"cpu"'}, "hold no reading"),
        "with empty files": (
            {
                "system/incremental/1600000020.algo-1.json": "",
                "framework/pevents/16_1-a_pythontimeline.json": "",
            },
            "hold no reading",
        ),
        "with another format": (
            {"framework/pevents/1600000020000000_1-algo-1_pythontimeline.json": "some\nwords\n"},
            "line 1: not JSON",
        ),
    }


@pytest.mark.parametrize("kind", bad_directories())
def test_a_directory_that_is_none_gives_one_clear_line_and_no_report(tmp_path: Path, kind: str) -> None:
    files, message = bad_directories()[kind]
    source = tmp_path / "profiler-output"
    source.mkdir()
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    said = refusal("report", source, "--out", tmp_path / "out")
    assert message in said
    assert str(source) in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nowhere", "does not exist"),
        ("words.txt", "is a file"),
        ("ftp://bucket/job", "cannot be read from there"),
    ],
)
def test_a_source_that_is_none_is_said(tmp_path: Path, word: str, message: str) -> None:
    (tmp_path / "words.txt").write_text("hello")
    source = word if "://" in word else str(tmp_path / word)
    assert message in refusal("report", source, "--out", tmp_path / "out")


def test_a_source_is_told_by_what_lies_there(tmp_path: Path) -> None:
    debugger = DebuggerDirectory(tmp_path / "debugger")
    debugger.write_events([step(0, 1.0, 0.5)])
    traces = tmp_path / "traces" / "run"
    traces.mkdir(parents=True)
    (traces / "host_1.2.pt.trace.json").write_text('{"traceEvents": []}')
    assert isinstance(open_source(debugger.root), DebuggerOutput)
    assert isinstance(open_source(tmp_path / "traces"), KinetoTraces)
    assert isinstance(open_source(traces / "host_1.2.pt.trace.json"), KinetoTraces)
