"""Files of the report, and `stepscope report` around them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from stepscope.commands.cli import main
from stepscope.report.write import write_report
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.files import RunFile

from tests.support import analysis as made
from tests.support.commands import refusal, stepscope
from tests.support.waiting import SECONDS


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A run of which nothing but its start and end was recorded."""
    directory = tmp_path / "recording"
    directory.mkdir()
    run = RunFile(name="resnet", start=made.START, command="python train.py", interval=0.5, versions={})
    run.write(directory)
    return directory


def test_a_report_is_a_page_a_document_and_a_json_file_a_rule(tmp_path: Path) -> None:
    analysis = made.slow_loader()
    write_report(analysis, tmp_path / "new" / "report")
    assert files_below(tmp_path / "new" / "report") == [
        "profiler-reports/CPUBottleneck.json",
        "profiler-reports/Dataloader.json",
        "profiler-reports/IOBottleneck.json",
        "profiler-reports/LowGPUUtilization.json",
        "profiler-reports/OverallFrameworkMetrics.json",
        "profiler-reports/StepOutlier.json",
        "report.html",
        "report.json",
    ]
    rule = json.loads((tmp_path / "new/report/profiler-reports/CPUBottleneck.json").read_text())
    assert (rule["RuleTriggered"], rule["Violations"], rule["Datapoints"]) == (9, 1021, 1438)
    assert "cpu_threshold:90" in rule["RuleParameters"].splitlines()


def test_a_page_that_cannot_be_rendered_leaves_the_earlier_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(made.nothing_found(), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in files_below(tmp_path)}

    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("no page")

    monkeypatch.setattr("stepscope.report.write.render_html", fail)
    with pytest.raises(RuntimeError):
        write_report(made.slow_loader(), tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in files_below(tmp_path)} == before


def test_the_command_writes_the_report_and_prints_where(recording: Path, tmp_path: Path) -> None:
    result = stepscope("report", recording, "--out", tmp_path / "out")
    assert result.returncode == 0
    assert result.stderr.startswith("? Not enough data: no steps were seen")
    assert result.stdout == f"{tmp_path / 'out' / 'report.html'}\n"
    assert "resnet" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "profiler-reports" / "CPUBottleneck.json").is_file()


def test_without_out_the_report_is_written_into_the_recording_and_again_over_it(recording: Path) -> None:
    for words in ((), ("--set", "CPUBottleneck.cpu_threshold=80")):
        result = stepscope("report", recording, *words)
        assert result.returncode == 0
        assert result.stdout == f"{recording / 'report.html'}\n"
    rule = json.loads((recording / "profiler-reports" / "CPUBottleneck.json").read_text())
    assert "cpu_threshold:80" in rule["RuleParameters"].splitlines()


READ_ONLY = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-euc")
MOUNT = 'mount --bind -o ro "$1" "$1"; '


@pytest.mark.skipif(
    subprocess.run([*READ_ONLY, MOUNT, "sh", str(Path(__file__).parent)], capture_output=True).returncode
    != 0,
    reason="needs a mount namespace, to make a directory read-only for root too",
)
def test_without_out_the_report_of_a_read_only_recording_goes_to_a_new_directory(
    recording: Path, tmp_path: Path
) -> None:
    within = (*READ_ONLY, MOUNT + 'source=$1; shift; exec "$@" "$source"', "sh", str(recording))
    report = (sys.executable, "-m", "stepscope", "report")
    result = subprocess.run([*within, *report], capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    page = Path(result.stdout.strip())
    assert page.name == "report.html"
    assert page.is_file()
    assert page.parent.parent == tmp_path / "stepscope-runs"
    assert page.parent.name.startswith("resnet-2")
    line = result.stderr.splitlines()[0]
    assert f"{recording} is not a directory that can be written to" in line
    assert str(page.parent) in line
    assert files_below(recording) == ["run.json"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One trace in a file, so not a directory that a report could be written into."""
    file = tmp_path / "trace.json"
    call = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1e6, "dur": 5.0, "pid": 1, "tid": 1}
    file.write_text(json.dumps({"traceEvents": [call]}))
    return file


def test_without_out_each_report_of_a_file_goes_to_a_new_directory(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pages = [Path(stepscope("report", trace).stdout.strip()) for _ in range(2)]
    assert len(set(pages)) == 2
    assert all(page.is_file() and page.parent.parent == tmp_path / "stepscope-runs" for page in pages)


def test_without_out_the_report_of_a_url_goes_to_a_new_directory_and_its_password_nowhere(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepscope.commands.report.open_sources", lambda *_: RecordingDirectory(recording))
    monkeypatch.chdir(tmp_path)
    assert main(["report", "prometheus+http://reader:secret@prometheus:9090?run=resnet"]) == 0
    printed = capsys.readouterr()
    page = Path(printed.out.strip())
    assert page.is_file()
    assert page.parent.parent == tmp_path / "stepscope-runs"
    assert "prometheus+http://***@prometheus:9090?run=resnet is not a directory" in printed.err
    assert "secret" not in printed.err


def test_without_out_and_without_a_place_for_runs_one_line_asks_for_out(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stepscope-runs").write_text("")
    result = stepscope("report", trace)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "stepscope: stepscope-runs: is a file; give a directory with --out\n"


def test_the_document_of_a_report_has_the_price_that_was_given(recording: Path, tmp_path: Path) -> None:
    assert stepscope("report", recording, "--out", tmp_path, "--price", "14.688").returncode == 0
    document = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert document["run"]["name"] == "resnet"
    assert document["cost"] is None  # nobody knows how long it took
    assert document["predictions"] == []


@pytest.mark.parametrize(("form", "file"), [("json", "report.json"), ("markdown", "report.md")])
def test_what_is_printed_is_what_is_written(recording: Path, tmp_path: Path, form: str, file: str) -> None:
    printed = stepscope("report", recording, "--format", form)
    assert (printed.returncode, printed.stderr) == (0, "")
    written = stepscope("report", recording, "--format", form, "--out", tmp_path)
    assert (written.returncode, written.stdout) == (0, f"{tmp_path / file}\n")
    assert (tmp_path / file).read_text(encoding="utf-8") == printed.stdout
    assert (tmp_path / "report.json").is_file()
    assert not (tmp_path / "report.html").exists()


def test_parameters_that_were_set_are_in_the_report(recording: Path, tmp_path: Path) -> None:
    words = ["--set", "CPUBottleneck.cpu_threshold=80", "--scan-interval", "30s"]
    assert stepscope("report", recording, "--out", tmp_path, *words).returncode == 0
    rule = json.loads((tmp_path / "profiler-reports" / "CPUBottleneck.json").read_text())
    assert "cpu_threshold:80" in rule["RuleParameters"].splitlines()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere", "--out", "{out}"], "nowhere"),
        (["prometheus+http://127.0.0.1:1?run=a", "--out", "{out}"], "http://127.0.0.1:1"),
        (["{recording}", "--format", "pdf", "--out", "{out}"], "pdf"),
        (["{recording}", "--out", "{out}", "--price", "much"], "much"),
        (["{recording}", "--out", "{out}", "--price", "-1"], "-1"),
        (["{recording}", "--out", "{out}", "--price", "nan"], "nan"),
        (["{recording}", "--out", "{recording}/run.json"], "run.json"),
        (["{recording}", "--out", "{recording}/run.json/below"], "below"),
        (["{recording}", "--out", "{out}", "--set", "CPUBottleneck.nonsense=1"], "nonsense"),
        (["{recording}", "--out", "{out}", "--set", "CPUBottleneck.threshold=much"], "threshold"),
        (["{recording}", "--out", "{out}", "--scan-interval", "soon"], "soon"),
        (["{recording}", "--out", "{out}", "--scan-interval", "0s"], "0s"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it_and_nothing_is_written(
    recording: Path, tmp_path: Path, words: list[str], named: str
) -> None:
    out = tmp_path / "out"
    assert named in refusal("report", *(word.format(recording=recording, out=out) for word in words))
    assert not out.exists()
    assert files_below(recording) == ["run.json"]
