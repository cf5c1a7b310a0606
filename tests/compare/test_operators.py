"""Operators of the profile windows of two runs, before and after a change."""

import json
from pathlib import Path

import pytest
from stepscope.commands.cli import main

from tests.support.profile_windows import recording_with_windows, with_python_window


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two recordings; index_put_ of B's rank 0 takes as long as that of rank 1: 300 instead of 50 ms."""
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, slow in ((a, (0.05, 0.3)), (b, (0.3, 0.3))):
        folder.mkdir()
        recording_with_windows(folder, slow)
    return a, b


def compared(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["compare", str(a), str(b)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_what_changed_per_step_is_in_every_form(
    both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = compared(*both, capsys)
    sentence = (
        "aten::index_put_, called from train.py:9: +125 ms per step of self time in profile windows, "
        "175 ms in A and 300 ms in B."
    )
    assert sentence in said
    assert "aten::index_put_ CPU train.py:9 175 ms 300 ms +125 ms" in said
    assert main(["compare", *map(str, both), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "+125 ms" in page
    capsys.readouterr()
    assert main(["compare", *map(str, both), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["operators"]
    assert found == {
        "device": "cpu",
        "operator": "aten::index_put_",
        "place": "train.py:9",
        "a": pytest.approx(0.175),
        "b": pytest.approx(0.3),
        "difference": pytest.approx(0.125),
    }


def test_only_what_both_runs_recorded_is_compared(
    both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = both
    with_python_window(b, 0, [["load, data.py:14", 6, 1.5, 1.2]])
    assert "load, data.py:14" not in compared(a, b, capsys)
    with_python_window(a, 0, [["load, data.py:14", 6, 1.5, 0.2]])
    assert "load, data.py:14: +500 ms per step" in compared(a, b, capsys)
    for trace in a.glob("profiles/*.gz"):
        trace.unlink()
    assert "OPERATORS" not in compared(a, b, capsys)
