"""Where a run records: its own directory, and no file of anybody else."""

import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from stepscope.commands.run.ledger_directory import PREFIX, ledger_directory
from stepscope.commands.run.plan import recording_directory
from stepscope.common.errors import UserError
from stepscope.common.users import user_name
from stepscope.common.whole_file import write_whole
from stepscope.report.run_list import is_recording

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(given: Path | None, name: str = "train") -> str:
    with pytest.raises(UserError) as refused, recording_directory(given, name):
        pass
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "name", ["../../etc", "..", "/etc/passwd", ".hidden", "-rf", "a\0b", "\n", "n" * 5000, "\u96ea" * 5000]
)
def test_no_name_leads_out_of_the_folder_of_runs(folder: Path, name: str) -> None:
    with recording_directory(None, name) as directory:
        assert directory.parent == folder / "stepscope-runs"
        assert directory.is_dir()
        assert directory.name[0] not in ".-"


def test_git_ignores_a_new_folder_of_runs_and_an_old_one_stays_as_it_is(folder: Path) -> None:
    with recording_directory(None, "train"):
        assert (folder / "stepscope-runs" / ".gitignore").read_text() == "*\n"
    (folder / "stepscope-runs" / ".gitignore").unlink()
    with recording_directory(None, "train"):
        assert not (folder / "stepscope-runs" / ".gitignore").exists()


def test_runs_that_start_in_the_same_second_get_different_directories() -> None:
    made: list[Path] = []

    def record() -> None:
        with recording_directory(None, "train") as directory:
            made.append(directory)

    threads = [threading.Thread(target=record) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 20


def test_a_directory_in_which_a_run_records_is_refused_to_another(folder: Path) -> None:
    with recording_directory(folder / "run", "train"):
        assert "another run records in" in refusal(folder / "run")
    with recording_directory(folder / "run", "train"):
        pass


def test_a_link_below_the_folder_of_runs_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "-now")
    (folder / "stepscope-runs").mkdir()
    (folder / "stepscope-runs" / "train-now").symlink_to(folder / "precious")
    (folder / "precious").mkdir()
    with recording_directory(None, "train") as directory:
        assert directory == folder / "stepscope-runs" / "train-now-2"
    assert list((folder / "precious").iterdir()) == []


@pytest.mark.usefixtures("no_umask")
def test_nothing_recorded_is_writable_by_others_even_without_a_umask(folder: Path) -> None:
    with recording_directory(None, "train") as directory:
        write_whole(directory / "run.json", "{}")
        assert permissions(directory) == 0o755
        assert permissions(directory.parent) == 0o775
        assert permissions(directory / "run.json") == 0o644
    with recording_directory(folder / "a" / "b", "train") as directory:
        assert [permissions(directory), permissions(directory.parent)] == [0o755, 0o755]


def test_a_directory_that_every_user_can_write_to_is_refused(folder: Path) -> None:
    (folder / "public").mkdir()
    (folder / "public").chmod(0o1777)
    assert refusal(folder / "public") == (
        f"every user can write to {folder}/public: use a directory inside, --out {folder}/public/RUN"
    )
    with recording_directory(folder / "public" / "run", "train") as directory:
        assert permissions(directory) & 0o022 == 0
    (folder / "stepscope-runs").mkdir()
    (folder / "stepscope-runs").chmod(0o777)
    assert refusal(None) == (
        "every user can rename what is in stepscope-runs: run `chmod o-w stepscope-runs`, or add --out"
    )


@needs_root
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_folder_of_runs_that_another_user_planted_is_refused(folder: Path, kind: str) -> None:
    runs = folder / "stepscope-runs"
    if kind == "folder":
        runs.mkdir()
        runs.chmod(0o1777)
    else:
        (folder / "elsewhere").mkdir()
        runs.symlink_to("elsewhere")
    os.chown(runs, 65534, 65534, follow_symlinks=False)
    assert refusal(None) == (
        f"stepscope-runs was made by user {user_name(65534)} for every user: choose another with --out"
    )


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that other users can reach."""
    with TemporaryDirectory(prefix="stepscope-test-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def as_another_user(act: Callable[[], int]) -> int:
    """Returns what `act` returns in a process of another user."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresuid(65534, 65534, 65534)
        os._exit(act())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@needs_root
def test_a_lock_of_another_user_neither_stops_a_run_nor_passes_for_one(reachable: Path) -> None:
    """Everybody who can open a file or a directory can lock it."""

    def lock(name: str) -> int:
        try:
            fcntl.flock(os.open(reachable / "run" / name, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except PermissionError:
            return 13
        return 0

    with recording_directory(reachable / "run", "train") as directory:
        assert is_recording(directory)
        assert as_another_user(lambda: lock(".")) == 0
        assert as_another_user(lambda: lock(".lock")) == 13
    held = os.open(directory, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert not is_recording(directory)
    with recording_directory(directory, "train"):
        pass
    os.close(held)


@needs_root
def test_a_run_of_another_user_is_in_progress_as_long_as_it_writes(reachable: Path) -> None:
    with recording_directory(reachable / "run", "train") as directory:
        assert as_another_user(lambda: is_recording(directory)) == 1
        os.utime(directory / ".lock", (0.0, 0.0))
        assert as_another_user(lambda: is_recording(directory)) == 0


def test_a_write_does_not_follow_a_link_in_place_of_the_unfinished_file(folder: Path) -> None:
    (folder / "precious").write_text("precious")
    (folder / f".report.html.{os.getpid()}.unfinished").symlink_to("precious")
    write_whole(folder / "report.html", "report")
    assert (folder / "precious").read_text() == "precious"
    assert (folder / "report.html").read_text() == "report"


def test_a_ledger_directory_is_never_taken_for_dead_while_its_run_makes_it(folder: Path) -> None:
    lost: list[Path] = []

    def observe() -> None:
        for _ in range(50):
            with ledger_directory(folder) as directory:
                if not directory.exists():
                    lost.append(directory)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []


def test_a_ledger_directory_without_a_lock_is_removed_once_no_run_can_be_making_it(folder: Path) -> None:
    killed, new = folder / f"{PREFIX}killed", folder / f"{PREFIX}new"
    for directory in (killed, new):
        directory.mkdir()
        (directory / ".observed.new").touch()
    os.utime(killed, (0.0, 0.0))
    with ledger_directory(folder):
        assert not killed.exists()
        assert new.exists()


@needs_root
def test_ledger_directories_of_other_users_are_left_alone(folder: Path) -> None:
    theirs = folder / f"{PREFIX}theirs"
    theirs.mkdir()
    (theirs / ".observed").symlink_to("/dev/null")
    os.chown(theirs, 65534, 65534)
    ours = folder / f"{PREFIX}ours"
    ours.mkdir()
    (ours / ".observed").touch()
    with ledger_directory(folder):
        assert theirs.exists()
        assert not ours.exists(), "of an observer that was killed"
