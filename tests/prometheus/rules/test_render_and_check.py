"""`stepscope rules`: what it writes, what it refuses, and how it sees what was edited."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from stepscope.commands.cli import main
from stepscope.prometheus.rules.files import META, RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.promql import Scraping

from tests.support.servers import DEBIAN

ROOT = Path(__file__).parents[3]


def text_of(directory: Path) -> str:
    return (directory / "stepscope.yml").read_text()


def without_header(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_committed_rules_are_what_is_rendered_now(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["rules", "check", str(ROOT / "rules")])
    assert (status, capsys.readouterr().err) == (0, ""), "run `stepscope rules render`"


def test_rendering_twice_gives_the_same_text() -> None:
    assert render(Options()) == render(Options())


def test_what_is_rendered_is_checked_with_the_options_it_was_rendered_with(tmp_path: Path) -> None:
    words = [
        "--scrape-interval=30s",
        "--set",
        "CPUBottleneck.cpu_threshold=80",
        "--grafana-url=https://g/x y",
    ]
    assert main(["rules", "render", "--out", str(tmp_path), *words]) == 0
    assert 'cause_above="0.8"' in text_of(tmp_path)
    assert main(["rules", "check", str(tmp_path)]) == 0


def test_a_file_of_parameters_sets_what_its_words_would_and_words_go_before_it(tmp_path: Path) -> None:
    file = tmp_path / "parameters.yaml"
    file.write_text("CPUBottleneck:\n  cpu_threshold: 80\n  threshold: 40\nStepOutlier:\n  mode: null\n")
    by_file, by_words = tmp_path / "by-file", tmp_path / "by-words"
    last = ["--set", "CPUBottleneck.threshold=30"]
    words = ["--set", "CPUBottleneck.cpu_threshold=80", "--set", "StepOutlier.mode=none", *last]
    assert main(["rules", "render", "--out", str(by_file), "--parameters", str(file), *last]) == 0
    assert main(["rules", "render", "--out", str(by_words), *words]) == 0
    assert without_header(text_of(by_file)) == without_header(text_of(by_words))
    assert main(["rules", "check", str(by_file)]) == 0


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("stepscope.yml", "starved:ratio > 0.5", "starved:ratio > 0.4"),
        ("stepscope.yml", "severity: warning", "severity: critical"),
        ("stepscope-meta.yml", "for: 2m", "for: 20m"),
        ("optional/dcgm-and-node-exporter.yml", "run: unknown", "run: x"),
    ],
)
def test_an_edit_by_hand_makes_the_check_fail_and_name_file_and_line(
    name: str,
    old: str,
    new: str,
    rendered: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = Path(shutil.copytree(rendered(), tmp_path / "rules"))
    path = directory / name
    lines = path.read_text().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if old in line)
    lines[number] = lines[number].replace(old, new)
    path.write_text("".join(lines))
    assert main(["rules", "check", str(directory)]) == 1
    assert f"{path}:{number + 1}: is not what `stepscope rules render" in capsys.readouterr().err


def test_a_missing_file_makes_the_check_fail(
    rendered: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = Path(shutil.copytree(rendered(), tmp_path / "rules"))
    (directory / "stepscope-meta.yml").unlink()
    assert main(["rules", "check", str(directory)]) == 1
    assert "stepscope-meta.yml: is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", [None, "groups: []\n", "#   rm -rf /\n", "#   stepscope rules render --what 3\n"]
)
def test_files_that_cannot_be_checked_get_one_line_and_status_2(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "stepscope.yml").write_text(text)
    assert main(["rules", "check", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / "stepscope.yml") in error


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("CPUBottleneck.gpu_threshold=55", "50 or 60"),
        ("CPUBottleneck.cpu_threshold=99", "80 or 90"),
        ("IOBottleneck.io_threshold=12", "10 or 20"),
        ("LowGPUUtilization.threshold_p95=75", "74 or 76"),
        ("LowGPUUtilization.threshold_p5=0", "2 or 4"),
        ("BatchSize.gpu_memory_threshold_p95=69", "68 or 70"),
    ],
)
def test_a_threshold_that_the_exporter_has_no_bound_for_is_refused_with_the_nearest(
    word: str, nearest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "render", "--out", str(tmp_path / "out"), "--set", word]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--set {word} is not available in Prometheus" in error
    assert f"use {nearest}" in error
    assert not (tmp_path / "out").exists()


def test_a_setting_appears_in_expressions_parameters_and_annotations_alike(
    rendered: Callable[..., Path],
) -> None:
    groups = yaml.safe_load(
        text_of(rendered("CPUBottleneck.cpu_threshold=80", "CPUBottleneck.threshold=33.3"))
    )
    by_name = {group["name"]: group["rules"] for group in groups["groups"]}
    _, record, finding, lost, status, alert, info, distance, *parameters = by_name["stepscope-CPUBottleneck"]
    assert 'cause_above="0.8"' in record["expr"]
    assert "> 0.333 and" in finding["expr"]
    assert finding["record"] == "stepscope:rule_finding"
    assert (lost["record"], lost["expr"]) == ("stepscope:rule_lost_ratio", alert["expr"])
    assert distance["labels"] == {"rule": "CPUBottleneck", "topic": "data loading"}
    assert alert["expr"] == 'stepscope:rule_finding{rule="CPUBottleneck"}'
    assert alert["expr"] in status["expr"]
    assert "above 80 %" in alert["annotations"]["description"]
    assert "(fires above 33.3 %)" in alert["annotations"]["description"]
    values = {rule["labels"]["parameter"]: rule["expr"] for rule in parameters}
    assert info["record"] == "stepscope:rule_info"
    assert "threshold 33.3 %" in info["labels"]["parameters"]
    assert values == {
        "threshold": "vector(33.3)",
        "cpu_threshold": "vector(80)",
        "gpu_threshold": "vector(10)",
        "patience": "vector(1000)",
        "live_window": "vector(15)",
    }


def test_a_bound_at_100_percent_is_found_under_both_of_its_names(rendered: Callable[..., Path]) -> None:
    assert 'le=~"1|1.0"' in text_of(rendered("LowGPUUtilization.threshold_p95=100"))


def test_each_parameter_of_the_rules_of_silence_is_rendered() -> None:
    rendered_by = {
        "ExporterDown.minutes=4": "for: 4m\n",
        "ExporterDown.idle_minutes=31": "for: 31m\n",
        "ExporterMissing.minutes=32": "for: 32m\n",
        "GPULost.minutes=8": "for: 8m\n",
        "GPULost.gone_minutes=20": "stepscope_gpu_up offset 20m unless",
        "CollectorFailing.minutes=6": "for: 6m\n",
        "SamplesMissed.threshold=7": "[5m])) > 0.07\n",
        "LimitReached.minutes=7": "for: 7m\n",
        "ScrapeIntervalDiffers.factor=3": "count_over_time(up[10m]) < 5)",
        "RunFailed.minutes=90": "keep_firing_for: 1h30m\n",
    }
    usual, changed = render(Options())[META], render(Options((*rendered_by,)))[META]
    assert [text for text in rendered_by.values() if text in usual or text not in changed] == []


@pytest.mark.parametrize("interval", ["1s", "7s", "15s", "30s", "1m", "2m"])
def test_windows_are_whole_scrapes_at_any_interval(interval: str, tmp_path: Path) -> None:
    out = str(tmp_path)
    assert main(["rules", "render", "--out", out, "--scrape-interval", interval]) == 0
    window = {"1s": "4m10s", "7s": "4m12s", "15s": "4m15s", "30s": "4m30s", "1m": "5m", "2m": "6m"}[interval]
    assert f"offset {window})" in text_of(tmp_path)


def test_hangs_are_looked_for_every_30_s_however_seldom_nodes_are_scraped() -> None:
    groups = yaml.safe_load(render(Options(scraping=Scraping(60), only=("CollectiveHang",)))[RULES])["groups"]
    assert [group["interval"] for group in groups] == ["30s"]


def test_a_directory_that_cannot_be_written_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["rules", "render", "--out", str(tmp_path / "file")]) == 2
    assert "give another --out" in capsys.readouterr().err


@pytest.mark.parametrize("path", [None, DEBIAN], ids=["newer", "Debian's"])
def test_promtool_takes_every_file(rendered: Callable[..., Path], tmp_path: Path, path: str | None) -> None:
    promtool = shutil.which("promtool", path=path) or pytest.skip("needs Debian's prometheus package")
    assert main(["rules", "render", "--out", str(tmp_path), "--set", "StepOutlier.mode=train"]) == 0
    for directory in (rendered(), tmp_path):
        files = sorted(directory.rglob("*.yml"))
        assert len(files) == 4
        done = subprocess.run(
            [promtool, "check", "rules", "--lint=all", "--lint-fatal", *files],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
