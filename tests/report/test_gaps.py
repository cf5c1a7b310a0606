"""What is missing from a run is shown first, on every surface, from one list."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stepscope import analysis
from stepscope.commands.cli import main
from stepscope.common.status import Status
from stepscope.common.words import share
from stepscope.evaluation.account import AFTER, BEFORE, Account, Key, Leaf
from stepscope.report.html import render_html
from stepscope.report.sentences import gaps
from stepscope.report.verdict import verdict
from stepscope.runs.model import Gap
from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.writer import RecordingWriter

from tests.support import analysis as made
from tests.support.recording import START, header, sample, step, the_part, totals

TICKS = 360  # three minutes


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    writer = RecordingWriter(directory, "n1", 0.5, "resnet")
    for tick in range(TICKS):
        writer.sample(sample(tick))
        writer.steps(header(), [step(tick)])
        writer.ranks([(header(), totals(tick + 1), True)], now=START + tick * 0.5)
        writer.catch_up()
    writer.close()
    RunFile("resnet", START, START + TICKS / 2, "python train.py", 0).write(directory)
    return directory


@pytest.fixture
def damaged(recording: Path) -> Path:
    the_part(recording / "n1", "samples", 2).write_bytes(b"")
    return recording


def name(recording: Path) -> str:
    return the_part(recording / "n1", "samples", 2).name


def sentence(recording: Path) -> str:
    return (
        "120 samples of n1 are missing between 2023-11-14 22:14:59 UTC and 2023-11-14 22:16:00 UTC: "
        f"`n1/{name(recording)}` was left out: its checksum does not match."
    )


def test_the_report_begins_with_the_gap_in_every_format(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(damaged)]) == 0
    out, error = capsys.readouterr()
    assert error.splitlines()[:2] == [
        "stepscope: This run is incomplete. The figures exclude what is missing:",
        f"stepscope: {sentence(damaged)}",
    ]
    assert out.strip().endswith("report.html")
    page = (damaged / "report.html").read_text()
    assert page.index("This run is incomplete.") < page.index('class="lead"')
    assert f"<code>n1/{name(damaged)}</code> was left out" in page
    document = json.loads((damaged / "report.json").read_text())
    assert list(document)[:3] == ["schema_version", "run", "gaps"]
    assert document["gaps"] == [
        {
            "what": "samples",
            "reason": f"`n1/{name(damaged)}` was left out: its checksum does not match",
            "node": "n1",
            "start": START + 59.5,
            "end": START + 120,
            "count": 120,
        }
    ]
    assert document["measurement"]["samples_missed"] == 120
    assert main(["report", str(damaged), "--format", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "**This run is incomplete. The figures exclude what is missing:**"
    assert lines[4].startswith("- 120 samples of n1 are missing")


def test_a_comparison_names_the_gaps_of_both_runs(
    damaged: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["compare", str(damaged), str(damaged)]) == 0
    text = capsys.readouterr().out
    assert main(["compare", str(damaged), str(damaged), "--out", str(tmp_path / "c.json")]) == 0
    assert "A is incomplete: its figures exclude what is missing, which is listed below." in text
    assert f"B: {sentence(damaged)}" in text
    document = json.loads((tmp_path / "c.json").read_text())
    assert [gap["count"] for gap in document["b"]["gaps"]] == [120]


@pytest.mark.parametrize("command", [["report"], ["crosscheck", "--recording"]])
def test_the_name_of_a_node_in_a_gap_does_not_control_the_terminal(
    damaged: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (damaged / "n1").rename(damaged / "n\x1b[31m1")
    assert main([*command, str(damaged)]) in (0, 1)
    printed = "".join(capsys.readouterr())
    assert "120 samples of n1 are missing between 2023-11-14 22:14:59 UTC and" in printed
    assert "\x1b" not in printed


def test_a_notebook_gets_the_gaps_as_a_table(damaged: Path) -> None:
    run = analysis.open(damaged)
    (row,) = run.gaps().to_pylist()
    assert (row["what"], row["node"], row["count"]) == ("samples", "n1", 120)
    assert row["end"].timestamp() == START + 120


def test_an_intact_recording_says_nothing_of_the_kind(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recording)]) == 0
    assert "stepscope:" not in capsys.readouterr().err
    page = (recording / "report.html").read_text()
    assert "incomplete" not in page.partition("<body")[2]


def test_each_kind_of_gap_has_its_sentence() -> None:
    end = START + 60
    assert gaps([]) == []
    assert gaps(
        [
            Gap("run", "`run.json` was left out"),
            Gap("samples", "late", "n1", START, end, 1),
            Gap("steps", "damaged", "n1", None, end),
            Gap("ranks", "damaged", "n2", START),
        ]
    )[1:] == [
        "The run’s command, start, end and exit status are missing: `run.json` was left out.",
        "1 sample of n1 is missing between 2023-11-14 22:14:00 UTC and 2023-11-14 22:15:00 UTC: late.",
        "Steps of n1 are missing before 2023-11-14 22:15:00 UTC: damaged.",
        "Totals of ranks of n2 are missing after 2023-11-14 22:14:00 UTC: damaged.",
    ]


@pytest.mark.parametrize(
    ("missing", "status"),
    [
        (59, Status.HEALTHY),
        (60, Status.HEALTHY),
        (61, Status.NOT_ENOUGH_DATA),
        (1200, Status.NOT_ENOUGH_DATA),
    ],
)
def test_a_run_with_more_than_5_percent_of_its_samples_missing_is_not_called_healthy(
    missing: int, status: Status
) -> None:
    silent = Gap("samples", "the exporter did not run", "n1", START, None, missing)
    run = made.nothing_found()
    run = replace(run, nodes=["n1"], start=START, end=START + 600, interval=0.5, gaps=[silent])
    said = verdict(run)
    assert said.status is status
    if status is Status.NOT_ENOUGH_DATA:
        assert (
            said.sentence
            == f"Not enough data: {share(missing / 1200, 1.0)} of the run’s samples are missing."
        )
        assert said.details[0].startswith("What was recorded looks healthy: ")
    many_nodes = replace(run, nodes=["n1", "n2"])
    assert verdict(many_nodes).status is (Status.HEALTHY if missing <= 120 else Status.NOT_ENOUGH_DATA)


def test_steps_that_only_the_totals_include_do_not_make_a_healthy_run_unknown() -> None:
    late = Gap("steps", "their records were not read in time", "n1", START, None, 5000)
    assert verdict(replace(made.nothing_found(), gaps=[late])).status is Status.HEALTHY


def test_many_gaps_are_cut_short_and_names_in_them_are_no_markup() -> None:
    many = [Gap("samples", f"`<b>{number}` is missing", "n1", count=number) for number in range(2, 30)]
    said = gaps(many)
    assert (len(said), said[-1]) == (12, "18 more are in report.json.")
    page = render_html(made.slow_loader(gaps=many))
    assert "<code>&lt;b&gt;2</code> is missing" in page


@pytest.mark.parametrize(("trained", "status"), [(0.11, Status.HEALTHY), (0.09, Status.NOT_ENOUGH_DATA)])
def test_a_run_that_hardly_trains_is_not_called_healthy(trained: float, status: Status) -> None:
    parts = {Key(BEFORE): 0.6, Key("train", "forward"): trained, Key(AFTER): 0.4 - trained}
    leaves = tuple(Leaf(key, part, {0: 40 * part}) for key, part in parts.items())
    run = replace(made.nothing_found(), start=START, end=START + 40, account=Account(40.0, 1, leaves))
    said = verdict(run)
    assert said.status is status
    assert ("91 % of the run is before its first step or after its last" in said.sentence) == (
        status is Status.NOT_ENOUGH_DATA
    )
