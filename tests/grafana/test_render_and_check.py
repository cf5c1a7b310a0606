"""`stepscope dashboards`: what it writes, what it refuses, and how it sees what was edited."""

from pathlib import Path

import pytest
from stepscope.commands.cli import main
from stepscope.commands.dashboards import render

COMMITTED = Path(__file__).parents[2] / "grafana" / "dashboards"
NAMES = ["cluster", "exporter", "histograms", "run", "steps", "system", "usage"]


def test_the_committed_dashboards_are_what_is_rendered_now(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["dashboards", "check", str(COMMITTED)])
    assert (status, capsys.readouterr().err) == (0, ""), "run `stepscope dashboards render`"


def test_there_are_seven_and_rendering_twice_gives_the_same_text(tmp_path: Path) -> None:
    assert main(["dashboards", "render", "--out", str(tmp_path / "new")]) == 0
    written = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert written == render()
    assert sorted(written) == [f"stepscope-{name}.json" for name in NAMES]
    assert main(["dashboards", "check", str(tmp_path / "new")]) == 0


def test_what_was_edited_is_missing_or_left_over_makes_the_check_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboards", "render", "--out", str(tmp_path)]) == 0
    (tmp_path / "stepscope-run.json").write_text("{}")
    (tmp_path / "stepscope-steps.json").unlink()
    (tmp_path / "stepscope-old.json").write_text("{}")
    (tmp_path / "mine.json").write_text("{}")  # of somebody else
    capsys.readouterr()
    assert main(["dashboards", "check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"stepscope: {tmp_path}/stepscope-run.json:1: is not what `stepscope dashboards render` writes",
        f"stepscope: {tmp_path}/stepscope-steps.json: is missing",
        f"stepscope: {tmp_path}/stepscope-old.json: is not a dashboard any more",
    ]


def test_a_directory_that_cannot_be_read_or_written_is_a_mistake_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["dashboards", "check", str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main(["dashboards", "render", "--out", str(tmp_path / "file")]) == 2
    assert "give another --out" in capsys.readouterr().err
