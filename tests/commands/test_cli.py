"""The command line as a whole: what a mistyped word says, and what it exits with."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stepscope.commands.cli import main
from stepscope.commands.crosscheck import moment
from stepscope.runs.prometheus.address import Address
from stepscope.runs.recording.files import RunFile

from tests.support.processes import ran
from tests.support.waiting import SECONDS


def stepscope(*words: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", "stepscope", *words])


@pytest.mark.parametrize("words", [["nonsense"], ["--nonsense"], ["run", "--nonsense"]])
def test_a_wrong_word_gets_one_line_that_names_it_and_status_2(words: list[str]) -> None:
    result = stepscope(*words)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("stepscope: ")
    assert "--help" in result.stderr
    assert all(word in result.stderr for word in words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rnu", "argument COMMAND: invalid choice: 'rnu'; did you mean run? See `stepscope --help`"),
        (
            "run --nmae x -- true",
            "unrecognized arguments: --nmae; did you mean --name? See `stepscope run --help`",
        ),
        (
            "exporter --web.listn-address=:1",
            "unrecognized arguments: --web.listn-address=:1; did you mean --web.listen-address? "
            "See `stepscope exporter --help`",
        ),
        (
            "report --format jsno .",
            "argument --format: invalid choice: 'jsno'; did you mean json? See `stepscope report --help`",
        ),
        ("demo cpu-botleneck", "scenario 'cpu-botleneck' does not exist; did you mean cpu-bottleneck?"),
        (
            "report --set cpubottleneck.threshold=1 .",
            "--set cpubottleneck.threshold=1: there is no rule 'cpubottleneck'; did you mean CPUBottleneck?",
        ),
        (
            "report --set CPUBottleneck.treshold=1 .",
            "--set CPUBottleneck.treshold=1: CPUBottleneck has no parameter 'treshold'; "
            "did you mean threshold?",
        ),
        ("run -- pyhton train.py", "command not found: pyhton; did you mean python?"),
    ],
)
def test_a_mistyped_word_gets_the_one_that_was_probably_meant(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "python").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"stepscope: {said}\n"
    assert os.listdir(tmp_path) == ["python"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "list -n 0",
            "argument --number/-n: '0' must be a whole number above 0; see `stepscope list --help`",
        ),
        (
            "usage --prometheus http://x --days 10000",
            "argument --days: '10000' is not a number of days: give 1 to 9999, as in 30; "
            "see `stepscope usage --help`",
        ),
        (
            "usage --prometheus http://x --end 1e300",
            "argument --end: '1e300' must be a time such as 2026-11-20T12:00:00Z, or seconds since 1970; "
            "see `stepscope usage --help`",
        ),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"stepscope: {said}\n"


def test_without_a_command_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert alone == capsys.readouterr().out


def test_help_shows_every_command_and_examples() -> None:
    result = stepscope("--help")
    assert result.returncode == 0
    for word in ("run", "exporter", "report", "examples:"):
        assert word in result.stdout


def test_an_error_of_the_system_that_nobody_expected_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/data/run.json")

    monkeypatch.setattr("stepscope.commands.report.open_sources", no_descriptor)
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "stepscope: /data/run.json: Too many open files\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_trains_and_is_recorded_whatever_streams_the_caller_closed(
    tmp_path: Path, closed: str
) -> None:
    words = [sys.executable, "-m", "stepscope", "run", "--out", "run", "--listen", "127.0.0.1:0", "--"]
    line = [*words, "sh", "-c", "echo > trained"]
    shell = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *line], cwd=tmp_path, timeout=SECONDS)
    assert shell.returncode == 0
    assert (tmp_path / "trained").exists()
    assert (tmp_path / "run/report.html").exists()


def test_a_closed_stdout_costs_only_what_would_be_printed(tmp_path: Path) -> None:
    (tmp_path / "resnet").mkdir()
    RunFile(name="resnet").write(tmp_path / "resnet")
    words = [sys.executable, "-m", "stepscope", "list", str(tmp_path)]
    shell = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE, timeout=SECONDS)
    assert (shell.returncode, shell.stderr) == (0, b"")


def test_a_day_in_digits_is_no_second_of_1970() -> None:
    assert moment("20261120") == moment("2026-11-20T00:00:00Z")
    assert moment("1700000000") == 1_700_000_000_000
    days = Address.parse("prometheus+http://host?run=a&start=20261120&end=2026-11-21")
    assert days.end is not None
    assert days.start == days.end - 86_400
