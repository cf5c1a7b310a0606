"""The text of lines, which is read when a run ends: from which files, and what is never read."""

import os
import time
from pathlib import Path

import pytest
from stepscope.commands.run.ending import MOST_BYTES, MOST_CHARACTERS, MOST_FILES, source_lines

SCRIPT = "import time\n\nwhile True:\n\ttime.sleep( 1)  # slow\n"


@pytest.fixture
def began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """When the run begins, in a working directory with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return time.time() + 1


def test_a_line_has_its_text_without_indentation(began: float) -> None:
    found = source_lines(["train.py:4", "train.py:3"], (), began)
    assert found == {"train.py:4": "time.sleep( 1) # slow", "train.py:3": "while True:"}


@pytest.mark.parametrize(
    "place", ["train.py:2", "train.py:9", "train.py:0", "train.py:x", "", "gone.py:1", ".:1"]
)
def test_a_place_without_a_line_has_no_text(began: float, place: str) -> None:
    assert source_lines([place], (), began) == {}


def test_a_file_that_changed_since_the_run_began_is_not_the_one_that_ran(
    tmp_path: Path, began: float
) -> None:
    os.utime(tmp_path / "train.py", (began + 1, began + 1))
    assert source_lines(["train.py:3"], (), began) == {}


def test_a_script_elsewhere_is_known_by_the_command(tmp_path: Path, began: float) -> None:
    elsewhere = tmp_path / "jobs" / "nightly" / "fit.py"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text("fit()\n")
    assert source_lines(["nightly/fit.py:1"], ("python", str(elsewhere)), began + 9) == {
        "nightly/fit.py:1": "fit()"
    }
    assert source_lines(["nightly/fit.py:1"], ("python", "other.py"), began + 9) == {}
    assert source_lines([f"../{tmp_path.name}/train.py:1"], (), began + 9) == {}


def test_no_file_stops_the_end_of_a_run_or_breaks_a_terminal(tmp_path: Path, began: float) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"x\n" * (MOST_BYTES // 2 + 1))
    (tmp_path / "escape.py").write_bytes(b"a\x1b[2J = '\xff' \x00\n")
    (tmp_path / "long.py").write_text("x" * 500)
    found = source_lines(["pipe.py:1", "large.py:1", "escape.py:1", "long.py:1"], (), began + 9)
    assert found == {"escape.py:1": "a [2J = '\ufffd'", "long.py:1": "x" * (MOST_CHARACTERS - 1) + "…"}
    many = [f"file{number}.py:1" for number in range(MOST_FILES)]
    assert source_lines([*many, "train.py:1"], (), began) == {}
