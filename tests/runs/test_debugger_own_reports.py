"""A directory that holds nothing but Debugger's own reports."""

import json
from math import nan
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.evaluation.reported import STATISTICS

from tests.support.scenarios import WrittenScenarios

START = 1_708_761_020.5
REPORTS: dict[str, dict[str, Any]] = {
    "CPUBottleneck": {
        "RuleTriggered": 3,
        "Violations": 1200,
        "Datapoints": 2000,
        "Details": {"bottlenecks": {}},
    },
    "BatchSize": {"RuleTriggered": 12, "Violations": 12, "Datapoints": 2000, "Details": {}},
    "LoadBalancing": {"RuleTriggered": 0, "Violations": 0, "Datapoints": 2000, "Details": {}},
    "MaxInitializationTime": {
        "RuleTriggered": 0,
        "Violations": 0,
        "Datapoints": 63,
        "Details": {"job_start": START, "job_end": START + 1000, "step_num": {}},
    },
    "OverallSystemUsage": {
        "RuleTriggered": 0,
        "Violations": 0,
        "Datapoints": 2000,
        "Details": {
            "GPU": {"algo-1": {"max": 100.0, "p99": 40.44, "p95": 6.0, "p50": 0, "min": 0}},
            "I/O": {"algo-1": {"max": 17.79, "p99": 11.38, "p95": 8.86, "p50": 0, "min": 0}},
        },
    },
}


LOADER = {
    "pin_memory": False,
    "num_workers": 0,
    "cores": 8,
    "dataloaders": 1,
    "dataloading_time": {"p50": 0.254},
}
STEPS = {"algo-1-27": {"step_stats": {"p50": 1.911, "p95": 2.179}, "number_of_outliers": 3}}


def write(root: Path, reports: dict[str, dict[str, Any]] = REPORTS) -> Path:
    folder = root / "profiler-output" / "profiler-reports"
    folder.mkdir(parents=True)
    for rule, content in reports.items():
        (folder / f"{rule}.json").write_text(json.dumps({**content, "RuleParameters": "threshold:50"}))
    return root


@pytest.mark.parametrize("inner", ["", "profiler-output", "profiler-output/profiler-reports"])
def test_the_reports_alone_give_a_report_with_costs_and_say_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inner: str
) -> None:
    source = write(tmp_path / "dog-breeds") / inner
    assert main(["report", str(source), "--format", "json", "--price", "3.6"]) == 0
    report = json.loads(capsys.readouterr().out)
    findings = {one["rule"]: one for one in report["verdict"]["findings"]}
    assert list(findings) == ["CPUBottleneck", "BatchSize"]
    assert (
        "1200 of 2000 samples (60 % of all) have a core busy and an idle GPU"
        in findings["CPUBottleneck"]["finding"]
    )
    assert findings["CPUBottleneck"]["seconds_lost"] == pytest.approx(600)
    assert report["cost"]["amount"] == pytest.approx(1.0)
    assert {row["resource"]: row["p95"] for row in report["usage"]} == {"GPU": 6.0, "I/O wait": 8.86}
    states = {rule["rule"]: rule["status"] for rule in report["rules"]}
    assert (states["LoadBalancing"], states["Straggler"]) == ("healthy", "not enough data")
    assert "Readings (system/) and events (framework/) are missing" in str(report["measurement"]["unknowns"])


def test_the_only_copy_of_the_reports_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "job") / "profiler-output" / "profiler-reports"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["report", "job/profiler-output"]) == 0
    assert "stay as they are" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_reports_without_times_have_no_dates_and_no_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "job", {"BatchSize": REPORTS["BatchSize"]})
    assert main(["report", str(source), "--format", "markdown", "--price", "3.6"]) == 0
    said = capsys.readouterr().out
    assert "1970" not in said
    assert "When the job began and ended is missing" in said


def test_two_jobs_of_which_only_reports_are_left_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = {**REPORTS, "CPUBottleneck": {"RuleTriggered": 0, "Violations": 10, "Datapoints": 2000}}
    a, b = write(tmp_path / "a"), write(tmp_path / "b", healthy)
    assert main(["compare", str(a), str(b), "--price-a", "3.6", "--price-b", "1.8"]) == 0
    assert "$1.00" in capsys.readouterr().out


def test_a_damaged_report_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "job", {"BatchSize": {"RuleTriggered": "often"}})
    assert main(["report", str(source)]) == 2
    assert "BatchSize.json: not a report of Debugger's" in capsys.readouterr().err


def test_a_report_of_stepscope_is_not_taken_for_one_of_debugger_s(
    scenarios: WrittenScenarios, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(scenarios.written("healthy").recording_directory)
    assert main(["report", recording, "--out", str(tmp_path)]) == 0
    for command in (
        ["report", str(tmp_path)],
        ["compare", recording, str(tmp_path), "--out", str(tmp_path / "x.html")],
    ):
        assert main(command) == 2
        assert "give the recording" in capsys.readouterr().err


def findings(source: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["report", str(source), "--format", "json"]) == 0
    return {rule["rule"]: rule["finding"] for rule in json.loads(capsys.readouterr().out)["rules"]}


def test_the_figures_of_loader_and_steps_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"RuleTriggered": 0, "Violations": 0, "Datapoints": 10}
    reports = {
        "Dataloader": {**counts, "Details": LOADER},
        "StepOutlier": {**counts, "Details": {"step_details": STEPS}},
    }
    found = findings(write(tmp_path, {**REPORTS, **reports}), capsys)
    assert (
        "The loader had 0 workers for 8 cores. Half of its batches took 254 ms or more."
        in found["Dataloader"]
    )
    assert "Half of the steps of algo-1-27 took 1.91 s or less, 95 % 2.18 s." in found["StepOutlier"]


@pytest.mark.parametrize(
    "details", [{"num_workers": "many", "dataloading_time": [1]}, {"num_workers": -1}, {}]
)
def test_figures_that_are_none_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], details: dict[str, Any]
) -> None:
    counts = {"RuleTriggered": 0, "Violations": 0, "Datapoints": 10}
    steps = {"step_details": {"algo-1-27": [], "algo-2-27": {"step_stats": {"p50": None, "p95": True}}}}
    reports = {"Dataloader": {**counts, "Details": details}, "StepOutlier": {**counts, "Details": steps}}
    found = findings(write(tmp_path, {**REPORTS, **reports}), capsys)
    assert found["Dataloader"] == found["StepOutlier"] == "Debugger's rule fired at 0 scans of the job."


@pytest.mark.parametrize("row", [3, dict.fromkeys(STATISTICS, nan), dict.fromkeys(STATISTICS, "x")])
def test_usage_that_is_none_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], row: Any) -> None:
    usage = REPORTS["OverallSystemUsage"]
    details = {**usage["Details"], "CPU": {"algo-1": row}}
    reports = {**REPORTS, "OverallSystemUsage": {**usage, "Details": details}}
    assert main(["report", str(write(tmp_path, reports)), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["usage"]
    assert {row["resource"] for row in rows} == {"GPU", "I/O wait"}


def test_gpus_that_were_used_are_not_no_gpu(tmp_path: Path) -> None:
    assert main(["report", str(write(tmp_path)), "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "on 1 node with GPUs." in page
    assert "node with no GPU" not in page
