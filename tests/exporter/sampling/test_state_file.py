"""The state file: always the newest whole state, whatever happened to the writer or to the file."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from stepscope.exporter.sampling.state_file import StateFile, StateFileError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.samples"


def written(path: Path, *states: bytes) -> None:
    file = StateFile(path)
    for state in states:
        file.write(state)
    file.close()


def test_the_last_state_written_is_read(path: Path) -> None:
    for count in range(1, 6):
        written(path, *(b"state %d" % number for number in range(count)))
        assert StateFile(path).read() == b"state %d" % (count - 1)


def test_a_writer_that_comes_after_another_goes_on(path: Path) -> None:
    written(path, b"first")
    for number in range(5):
        file = StateFile(path)
        file.read()
        file.write(b"state %d" % number)
        file.close()
        assert StateFile(path).read() == b"state %d" % number


def test_a_state_that_outgrows_its_slot_gets_a_new_file(path: Path) -> None:
    written(path, b"small", b"x" * 100_000)
    assert StateFile(path).read() == b"x" * 100_000
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("states", [2, 3])
def test_a_write_that_was_cut_off_at_any_byte_leaves_the_state_before(path: Path, states: int) -> None:
    written(path, *([b"before"] * (states - 1)))
    before = path.read_bytes()
    written(path, *([b"before"] * (states - 1)), b"after!")
    after = path.read_bytes()
    changed = [place for place in range(len(after)) if after[place] != before[place]]
    assert changed
    for place in changed[:-1]:
        path.write_bytes(after[: place + 1] + before[place + 1 :])
        assert StateFile(path).read() == b"before"
    path.write_bytes(after)
    assert StateFile(path).read() == b"after!"


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"x" * 10_000])
def test_a_foreign_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StateFileError, match="not a state file"):
        StateFile(path).read()


def of_version_9(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8] + b"\x09" + path.read_bytes()[9:])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (of_version_9, "version 9"),
        (partial(os.truncate, length=20), "corrupt"),
        (partial(os.truncate, length=1 << 40), "too large"),  # sparse: it would fill the memory
    ],
)
def test_a_newer_a_cut_and_a_huge_file_are_refused(
    path: Path, spoil: Callable[[Path], object], why: str
) -> None:
    written(path, b"state")
    spoil(path)
    with pytest.raises(StateFileError, match=why):
        StateFile(path).read()


def test_a_link_a_fifo_and_a_directory_are_no_state(path: Path) -> None:
    real = path.with_name("real")
    written(real, b"state")
    makes: tuple[Callable[[Path], object], ...] = (lambda link: link.symlink_to(real), os.mkfifo, Path.mkdir)
    for number, make in enumerate(makes):
        path = real.with_name(str(number))
        make(path)
        with pytest.raises(StateFileError, match="not a plain file"):
            StateFile(path).read()


def test_a_file_of_another_user_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, b"state")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(StateFileError, match="of this user"):
        StateFile(path).read()


def test_a_write_that_is_cut_short_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StateFile(path)
    file.write(b"first")
    monkeypatch.setattr(os, "pwrite", lambda _, content, __: len(content) - 1)
    with pytest.raises(OSError, match="No space left"):
        file.write(b"second")
    file.close()
    assert StateFile(path).read() == b"first"
