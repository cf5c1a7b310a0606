"""Fork, full directories, foreign files, switched off: training goes on and the ledger stays right."""

import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.training import layout

from tests.support.environment import unobserved
from tests.support.processes import ran
from tests.support.training_script import (
    EXPORTER,
    go_on,
    only_ledger,
    run_to_end,
    training,
    wait_for_line,
)
from tests.support.waiting import SECONDS, wait_until

STEPS = """
for batch in stepscope.watch([1, 2, 3]):
    with stepscope.step("train"), stepscope.component("forward"): pass
    with stepscope.fetch: pass
    stepscope.begin_step(); stepscope.mark("forward"); stepscope.end_step()
    stepscope.record_step("train", 1.0, 2.0)
say("trained")
"""


def run_without_ledger(directory: Path, launcher: tuple[str, ...] = ()) -> str:
    """Trains where no ledger can be made; gives back what was said on stderr."""
    with training(STEPS, directory, launcher=launcher) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (0, "trained\n"), errors
    return errors


def test_a_directory_that_cannot_be_made_gives_one_warning_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    errors = run_without_ledger(tmp_path / "file" / "ledgers")
    assert errors == (
        f"stepscope: no ledger in {tmp_path}/file/ledgers (Not a directory): training continues unrecorded\n"
    )


@pytest.mark.skipif(
    os.getuid() == 0 and shutil.which("setpriv") is None,
    reason="root may write anywhere, and setpriv is missing",
)
def test_a_read_only_directory_gives_one_warning_and_training_goes_on(ledgers: Path) -> None:
    ledgers.mkdir(mode=0o555)
    ledgers.parent.chmod(0o755)
    drop = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.getuid() == 0 else ()
    errors = run_without_ledger(ledgers, launcher=drop)
    reason = f"no ledger in {ledgers} (Permission denied)"
    assert errors == f"stepscope: {reason}: training continues unrecorded\n"
    assert list(ledgers.iterdir()) == []


def test_no_room_for_the_ledger_gives_one_warning_and_leaves_nothing_behind(ledgers: Path) -> None:
    limit = ("sh", "-c", 'ulimit -f 100; exec "$@"', "sh")  # blocks of 512 or 1024 bytes: less than a ledger
    errors = run_without_ledger(ledgers, launcher=limit)
    assert errors == f"stepscope: no ledger in {ledgers} (File too large): training continues unrecorded\n"
    assert list(ledgers.iterdir()) == []


def test_a_full_file_system_gives_one_warning_and_training_goes_on(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", full], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        errors = run_without_ledger(full / "ledgers")
        assert "(No space left on device): training continues unrecorded" in errors
        assert errors.count("\n") == 1
    finally:
        subprocess.run(["umount", full], check=True)


def test_a_symbolic_link_in_place_of_the_default_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "stepscope").symlink_to(tmp_path / "elsewhere")
    code = """
import stepscope
from stepscope.training import session
session.ledger_directory = lambda: PLACE
stepscope.start()
""".replace("PLACE", repr(str(tmp_path / "stepscope")))
    environment = unobserved()
    ended = ran([sys.executable, "-c", code], env={**environment, "PYTHONPATH": EXPORTER}, check=True)
    assert "training continues unrecorded" in ended.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_shared_directory_and_the_ledgers_are_open_to_the_exporter(ledgers: Path) -> None:
    old = os.umask(0o077)
    try:
        run_to_end(STEPS, ledgers)
    finally:
        os.umask(old)
    assert ledgers.stat().st_mode & 0o7777 == 0o1777
    (path,) = open_ledgers(ledgers)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_private_directory_that_the_user_chose_stays_private(ledgers: Path) -> None:
    ledgers.mkdir(0o700)
    run_to_end(STEPS, ledgers)
    assert ledgers.stat().st_mode & 0o7777 == 0o700


def test_a_forked_child_never_writes_its_parents_steps(ledgers: Path) -> None:
    run = run_to_end(
        """
        stepscope.begin_step("train")
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                stepscope.mark("forward"); stepscope.end_step()
                for _ in stepscope.watch([1, 2]):
                    with stepscope.step("eval"), stepscope.component("gc"): pass
                stepscope.record_step("predict", 1.0, 2.0)
                stepscope.finish()
                os._exit(0)
            children.append(pid)
        for pid in children: assert os.waitpid(pid, 0)[1] == 0
        stepscope.mark("backward")
        stepscope.end_step()
        """,
        ledgers,
    )
    assert run.totals.steps == {"train": 1}
    assert run.totals.component_seconds["gc"] == 0.0
    assert run.totals.component_seconds["forward"] == 0.0
    assert run.totals.component_seconds["backward"] > 0.0
    assert run.totals.loaders == ()
    assert run.totals.end is not None


def test_a_forked_child_that_outlives_its_parent_keeps_no_ledger_alive(ledgers: Path) -> None:
    script = """
    stepscope.start()
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    say(pid)
    sys.stdin.readline()
    """
    with training(script, ledgers) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            with only_ledger(ledgers) as reader:
                assert reader.alive()
                process.kill()
                process.wait()
                wait_until(lambda: not reader.alive())
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("joins", ["stepscope.start()", "start_as(1, 2)"])
def test_a_forked_child_that_starts_a_run_or_becomes_a_rank_gets_a_ledger_of_its_own(
    ledgers: Path, joins: str
) -> None:
    script = f"""
    from stepscope.training.session import start_as
    os.environ["STEPSCOPE_LAUNCH"] = "one"
    with stepscope.step("train"): pass
    pid = os.fork()
    if pid == 0:
        {joins}
        for _ in range(5):
            with stepscope.step("eval"): pass
        stepscope.finish()
        start_as(2, 3)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with stepscope.step("train"): pass
    """
    with training(script, ledgers) as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert errors == ""
    found = {}
    for path in open_ledgers(ledgers):
        with LedgerReader(path) as reader:
            steps = reader.totals().steps
            found[next(iter(steps))] = reader.header.rank, steps
    rank = 1 if joins == "start_as(1, 2)" else 0
    assert found == {"train": (0, {"train": 2}), "eval": (rank, {"eval": 5})}


def test_after_finish_nothing_is_recorded_until_another_start(ledgers: Path) -> None:
    script = """
    stepscope.start(run="first")
    with stepscope.step(): pass
    stepscope.finish()
    with stepscope.step(): pass
    stepscope.start(run="second")
    for _ in range(3):
        with stepscope.step(): pass
    """
    with training(script, ledgers) as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert errors == ""
    found = {}
    for path in open_ledgers(ledgers):
        with LedgerReader(path) as reader:
            found[reader.header.name] = reader.totals().steps_recorded
    assert found == {"first": 1, "second": 3}


def test_of_a_script_that_closes_all_descriptors_no_file_is_closed(ledgers: Path, tmp_path: Path) -> None:
    script = f"""
    import threading
    fetched, closed = threading.Event(), threading.Event()
    def fetches():
        with stepscope.fetch: pass
        fetched.set()
        closed.wait()
    thread = threading.Thread(target=fetches)
    thread.start()
    with stepscope.step("train"): pass
    fetched.wait()
    os.closerange(3, 2000)
    files = [open("{tmp_path}/" + str(number), "w") for number in range(20)]
    closed.set()
    thread.join()
    stepscope.finish()
    for file in files: file.close()
    stepscope.start()
    with stepscope.step("train"): pass
    os.closerange(3, 2000)
    """
    with training(script, ledgers) as process:
        assert process.communicate(timeout=SECONDS) == ("", "")
    assert process.returncode == 0


def test_of_a_script_that_closes_all_descriptors_no_file_gets_a_stack(ledgers: Path, tmp_path: Path) -> None:
    script = f"""
    with stepscope.step("train"): pass
    os.closerange(3, 2000)
    files = [open("{tmp_path}/" + str(number), "w") for number in range(20)]
    say("closed")
    sys.stdin.readline()
    while len(os.listdir("/proc/self/task")) > 1: time.sleep(0.01)  # until nobody answers any more
    os.kill(os.getpid(), 40)  # as `stepscope stacks` asks a process that does not answer
    for file in files: file.close()
    """
    with training(script, ledgers, environment={"STEPSCOPE_STACKS": "1"}) as process:
        wait_for_line(process, "closed")
        (requests,) = ledgers.glob("*.request")

        def ask() -> None:
            with open(os.open(requests, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0) as fifo:
                wait_until(lambda: not fifo.write(b"?"))

        with pytest.raises(OSError, match=r"Broken pipe|No such device"):  # nobody reads it any more
            ask()
        assert process.communicate("\n", timeout=SECONDS) == ("", "")
        assert [path.read_text() for path in tmp_path.iterdir() if path.is_file()] == [""] * 20


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a process left in its ledger."""
    folder = tmp_path_factory.mktemp("left")
    assert run_to_end(STEPS, folder).totals.steps == {"train": 9}
    (path,) = open_ledgers(folder)
    return path.read_bytes()


@pytest.fixture
def recorded(left: bytes, ledgers: Path) -> Path:
    ledgers.mkdir()
    path = ledgers / "train.ledger"
    path.write_bytes(left)
    return path


def read_all(path: Path) -> None:
    with LedgerReader(path) as reader:
        reader.totals()
        reader.new_steps()


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"GARBAGE!", "not a ledger of Stepscope"),
        (16, struct.pack("<q", 12345), f"corrupt ledger: {layout.FILE_BYTES} bytes long, and says 12345"),
        (layout.COUNTERS_AT, struct.pack("<d", float("nan")), "corrupt ledger"),
        (layout.RING_AT + 8 * 128 + 24, struct.pack("<d", 77.0), "corrupt ledger"),
    ],
)
def test_a_foreign_newer_or_corrupt_ledger_is_one_clear_error(
    recorded: Path, offset: int, data: bytes, message: str
) -> None:
    content = bytearray(recorded.read_bytes())
    content[offset : offset + len(data)] = data
    recorded.write_bytes(content)
    with pytest.raises(LedgerError, match=message) as caught:
        read_all(recorded)
    assert str(recorded) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 100, layout.HEADER_BYTES, layout.FILE_BYTES - 1])
def test_a_ledger_cut_short_is_corrupt(recorded: Path, size: int) -> None:
    os.truncate(recorded, size)
    with pytest.raises(LedgerError, match="corrupt ledger"):
        LedgerReader(recorded)


def test_a_ledger_cut_short_while_open_is_corrupt_and_kills_nobody(recorded: Path) -> None:
    with LedgerReader(recorded) as reader:
        os.truncate(recorded, 5000)
        with pytest.raises(LedgerError, match="cut off"):
            reader.totals()


def test_only_plain_files_are_taken_for_ledgers(recorded: Path) -> None:
    folder = recorded.parent
    (folder / "link.ledger").symlink_to(recorded)
    (folder / "folder.ledger").mkdir()
    os.mkfifo(folder / "pipe.ledger")
    assert list(open_ledgers(folder)) == [recorded]
    with pytest.raises(LedgerError, match="not a plain file"):
        LedgerReader(folder / "link.ledger")
    with pytest.raises(LedgerError, match="not a plain file"):
        LedgerReader(folder / "pipe.ledger")
    assert list(open_ledgers(folder / "missing")) == []


@pytest.mark.parametrize("word", ["off", "OFF", "0", "false", "no"])
def test_switched_off_everything_works_and_nothing_is_written(word: str, ledgers: Path) -> None:
    script = (
        STEPS
        + """
assert stepscope.watch(loader := [1]) is loader
def f(): pass
for decorate in (stepscope.step("train"), stepscope.component("forward"), stepscope.fetch):
    assert decorate(f) is f
stepscope.start(run="x"); stepscope.finish()
assert "mmap" not in sys.modules
"""
    )
    with training(script, ledgers, {"STEPSCOPE": word}) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output, errors) == (0, "trained\n", "")
    assert not ledgers.exists()


def test_importing_stepscope_imports_nothing_but_the_standard_library() -> None:
    code = """
import sys
import stepscope
foreign = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(name for name in foreign if not name.startswith(("_", "site", "usercustom"))))
costly = ("typing", "re", "dataclasses", "inspect", "numpy", "contextlib")
print([name for name in costly if name in sys.modules])
"""
    output = ran([sys.executable, "-S", "-c", code], env={"PYTHONPATH": EXPORTER}, check=True).stdout
    assert output == "['stepscope']\n[]\n"


def test_closed_stderr_does_not_break_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    script = "sys.stderr.close()\n" + STEPS
    with training(script, tmp_path / "file" / "ledgers") as process:
        output, _ = process.communicate(timeout=SECONDS)
    assert output == "trained\n"


def test_modules_that_can_no_longer_be_imported_do_not_break_training(ledgers: Path) -> None:
    """As in a process that trains while another version is installed in its environment."""
    script = """
    for module in ("training.windows", "training.last_exception", "common.errors"):
        sys.modules[f"stepscope.{module}"] = None
    for _ in range(3):
        with stepscope.step("train"), stepscope.component("foward"): pass
    sys.last_value = ValueError()
    stepscope.finish()
    say("trained")
    """
    finished = run_to_end(script, ledgers, {"STEPSCOPE_PROFILE": "1:1"})
    assert finished.output == "trained\n"
    component, windows = finished.errors.splitlines()
    assert component.startswith("stepscope: unknown component 'foward'")
    assert windows.startswith("stepscope: profile windows are off: ModuleNotFoundError")
    assert finished.totals.steps == {"train": 3}


def test_a_script_without_standard_streams_gets_no_file_in_their_place(ledgers: Path) -> None:
    """Otherwise a script that opens its streams later would end the lock which shows that it lives."""
    script = """
    with stepscope.step("train"): pass
    os._exit(sum(os.path.lexists(f"/proc/self/fd/{number}") for number in range(3)))
    """
    with training(script, ledgers, launcher=("sh", "-c", '"$@" <&- >&- 2>&-', "sh")) as process:
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    with only_ledger(ledgers) as reader:
        assert reader.totals().steps == {"train": 1}


def test_a_run_can_be_watched_from_before_its_first_step(ledgers: Path) -> None:
    with training("stepscope.start(run='early')\nhold()\nhold()", ledgers) as process:
        wait_for_line(process)
        with only_ledger(ledgers) as reader:
            assert reader.header.name == "early"
            assert reader.totals().steps_recorded == 0
            assert reader.totals().phase_seconds == {}
            assert reader.new_steps() == ([], 0)
        go_on(process)
        wait_for_line(process)
