"""Recordings above the limits are removed: only finished ones, and only what Stepscope wrote."""

import fcntl
import os
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from stepscope.commands.run.command import parse_size
from stepscope.commands.run.old_recordings import ABANDONED_SECONDS, remove_old_recordings
from stepscope.exporter.sampling.sample import Sample
from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.observing import RUN
from tests.support.processes import ran

NOW = 1_790_000_000.0
DAY = 86400.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "stepscope-runs"


def recording(root: Path, name: str, days: float, ended: bool = True) -> Path:
    """Records a run that ended so many days ago."""
    directory = root / name
    end = NOW - days * DAY
    directory.mkdir(parents=True)
    RunFile(name, start=end - 60, end=end if ended else None).write(directory)
    writer = RecordingWriter(directory, "node", 0.5, name)
    writer.sample(Sample(time=end))
    writer.close()
    (directory / "profiler-reports").mkdir()
    for report in ("report.html", "report.json", "profiler-reports/StepOutlier.json"):
        (directory / report).write_text("x" * 1000)
    for path in directory.rglob("*"):
        os.utime(path, (end, end))
    return directory


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def remove(root: Path, max_age: float | None = None, max_size: int | None = None) -> list[str]:
    return list(remove_old_recordings(root, NOW, max_age, max_size))


def test_without_a_limit_nothing_is_removed(root: Path) -> None:
    recording(root, "old", days=1000)
    assert remove(root) == []
    assert names(root) == {"old"}


def test_a_recording_above_the_age_is_gone_with_its_directory(root: Path) -> None:
    recording(root, "old", days=31)
    recording(root, "new", days=29)
    (line,) = remove(root, max_age=30 * DAY)
    assert "old" in line
    assert "--recording.max-age" in line
    assert names(root) == {"new"}
    assert list((root / "new" / "node").glob("samples-*.parquet"))


def test_above_the_size_the_oldest_go_first(root: Path) -> None:
    for days in (3, 1, 2):
        recording(root, f"run-{days}", days)
    room = size(root / "run-1") + size(root / "run-2")
    assert remove(root, max_size=room) != []
    assert names(root) == {"run-1", "run-2"}
    assert remove(root, max_size=room) == []
    remove(root, max_size=0)
    assert names(root) == set()


@pytest.mark.parametrize("held", [".lock", "node/.lock"])
def test_a_recording_that_is_written_is_never_removed(root: Path, held: str) -> None:
    directory = recording(root, "running", days=100)
    descriptor = os.open(directory / held, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert remove(root, max_age=DAY, max_size=0) == []
    os.close(descriptor)
    assert len(remove(root, max_age=DAY)) == 1


def test_a_run_without_an_end_counts_as_running_for_a_day_after_its_last_change(root: Path) -> None:
    recording(root, "killed", days=0.9 * ABANDONED_SECONDS / DAY, ended=False)
    assert remove(root, max_size=0) == []
    recording(root, "long-killed", days=1.1 * ABANDONED_SECONDS / DAY, ended=False)
    assert len(remove(root, max_size=0)) == 1
    assert names(root) == {"killed"}


def test_the_files_of_others_stay(root: Path, tmp_path: Path) -> None:
    directory = recording(root, "with-checkpoint", days=2)
    (directory / "node" / "mine.txt").write_text("kept")
    (directory / "model.pt").write_text("kept")
    elsewhere = recording(tmp_path / "elsewhere", "other", days=2)
    (root / "link").symlink_to(elsewhere)
    (root / "notes").mkdir()
    remove(root, max_age=DAY)
    assert names(root) == {"with-checkpoint", "link", "notes"}
    assert sorted(path.name for path in directory.rglob("*") if path.is_file()) == ["mine.txt", "model.pt"]
    assert (elsewhere / "run.json").exists()


def test_a_recording_that_cannot_be_read_is_left_alone(root: Path) -> None:
    directory = recording(root, "odd", days=100)
    (directory / "run.json").write_text("{")
    assert remove(root, max_age=DAY, max_size=0) == []


def test_sizes_are_powers_of_1024_as_in_prometheus() -> None:
    assert [parse_size(text) for text in ("7B", "1KB", "50GB")] == [7, 1024, 50 * 1024**3]
    for text in ("", "50", "GB", "-1GB", "1.5GB", "50gb"):
        with pytest.raises(ArgumentTypeError, match="not a size"):
            parse_size(text)


def test_stepscope_run_removes_old_recordings_and_says_which(tmp_path: Path) -> None:
    old = recording(tmp_path / "stepscope-runs", "old", days=0)
    words = ["--listen=127.0.0.1:0", "--recording.max-size=0B", "--name=new", "--", "true"]
    done = ran([*RUN, *words], cwd=tmp_path)
    assert done.returncode == 0
    assert f"removed {old}, because of --recording.max-size" in done.stderr
    assert not old.exists()
    assert len(names(tmp_path / "stepscope-runs") - {"index.html"}) == 1  # its own
