"""The exception that ends a process is kept, and what is printed of it stays as it is."""

import gc
import json
import re
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import stepscope_startup
from stepscope.commands.run.hooks import STARTUP, HookedProcesses
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.training import last_exception
from stepscope.training.last_exception import described

from tests.support.environment import unobserved
from tests.support.waiting import SECONDS

CLEAN = unobserved()


class Case:
    """A script, and what is kept of the exception that ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledgers = folder / "ledgers"
        self.ledgers.mkdir()
        self.hooked = HookedProcesses(self.ledgers)
        self.script = folder / "crash.py"
        self.ended: subprocess.CompletedProcess[str]

    def run(
        self, text: str, hooks: bool = True, launcher: Sequence[str] = (), **environment: str
    ) -> dict[str, str]:
        """Runs the script and returns what run.json would have."""
        self.script.write_text(text)
        more = {"STEPSCOPE_INSTRUMENT": "1", "STEPSCOPE_LEDGER_DIR": str(self.ledgers)} if hooks else {}
        path = {"PYTHONPATH": str(STARTUP)} if hooks else {}
        process = subprocess.Popen(
            [sys.executable, *launcher, "crash.py"],
            cwd=self.folder,
            env={**CLEAN, **path, **more, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        output, errors = process.communicate(timeout=SECONDS)
        self.ended = subprocess.CompletedProcess([], process.returncode, output, errors)
        return self.hooked.exceptions(process.pid)[0]

    def of_ledger(self) -> tuple[str, str] | None:
        (path,) = open_ledgers(self.ledgers)
        with LedgerReader(path) as reader:
            return reader.exception()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


NO_MARKS = """from contextlib import nullcontext

class stepscope:
    step = staticmethod(lambda phase: lambda function: function)
    component = staticmethod(lambda name: Both())

class Both(nullcontext):
    def __call__(self, function):
        return function
"""
CRASH = "def look(labels):\n    return labels['dog']\n\nlook({})\n"
KEPT = {"type": "KeyError", "message": "'dog'", "place": "crash.py:2", "rank": ""}
HOOK = "import sys\nsys.excepthook = lambda kind, error, trace: print('mine:', repr(error))\n"
CHAINED = """import sys
before = sys.excepthook
def hook(*words):
    before(*words)
    print('mine')
sys.excepthook = hook
"""


MARKED = """import stepscope

@stepscope.step("train")
def train():
    with stepscope.component("forward"):
        forward()

@stepscope.component("backward")
def forward():
    raise KeyError("dog")

try:
    train()
except KeyError as error:
    raise RuntimeError("no epoch") from error
"""


def test_python_prints_no_frame_of_ours_that_only_calls_on(case: Case) -> None:
    case.run(MARKED)
    of_ours = case.ended.stderr
    case.run(MARKED.replace("import stepscope", NO_MARKS))
    assert re.sub(r"line \d+", "line", of_ours) == re.sub(r"line \d+", "line", case.ended.stderr)
    assert of_ours.count("  File ") == 4
    case.run(MARKED, hooks=False)  # which shows what would be printed
    assert case.ended.stderr.count("  File ") == 6


def test_the_frame_in_which_a_call_of_ours_was_refused_is_printed(case: Case) -> None:
    case.run("import stepscope\nstepscope.gauge('n' * 100, 1.0)\n")
    assert "ValueError" in case.ended.stderr
    assert str(Path(last_exception.__file__).parent) in case.ended.stderr.splitlines()[-3]


@pytest.mark.parametrize("before", ["", HOOK, CHAINED], ids=["no hook", "a hook of its own", "a chain"])
def test_an_exception_is_kept_and_printed_as_without_hooks(case: Case, before: str) -> None:
    script = before + CRASH
    kept = case.run(script)
    ended = case.ended
    assert kept == {**KEPT, "place": f"crash.py:{before.count(chr(10)) + 2}"}
    case.run(script, hooks=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        case.ended.returncode,
        case.ended.stdout,
        case.ended.stderr,
    )
    assert ended.returncode == 1


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise KeyboardInterrupt", "sys.exit('no')"])
def test_an_exit_is_no_exception(case: Case, end: str) -> None:
    assert case.run(f"import sys\ntry:\n    {{}}['dog']\nexcept KeyError:\n    pass\n{end}\n") == {}


def test_an_error_of_syntax_has_its_line(case: Case) -> None:
    kept = case.run("a = 1\nb = = 2\n")
    assert (kept["type"], kept["message"]) == ("SyntaxError", "invalid syntax (crash.py, line 2)")
    assert kept["place"] == "crash.py:2"


def test_the_innermost_line_of_the_users_own_counts(case: Case) -> None:
    assert case.run("import json\njson.loads('[')\n")["place"] == "crash.py:2"


@pytest.mark.parametrize("full", ["rmdir", "chmod"])
def test_where_nothing_can_be_kept_the_exception_is_printed(case: Case, full: str) -> None:
    words = case.ledgers / stepscope_startup.WORDS
    words.rmdir()
    if full == "chmod":
        words.symlink_to(case.folder)  # another user may have put anything there
    assert case.run(CRASH) == {}
    assert case.ended.returncode == 1
    assert case.ended.stderr.endswith("KeyError: 'dog'\n")
    assert "stepscope" not in case.ended.stderr


CHILDREN = """import multiprocessing, sys
{look}
if __name__ == "__main__":
    process = multiprocessing.get_context("{method}").Process(target=look, args=({{}},))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_keeps_what_ends_it(case: Case, method: str) -> None:
    look = CRASH.partition("\n\n")[0]
    kept = case.run(CHILDREN.format(look=look, method=method))
    assert kept == {**KEPT, "place": "crash.py:3"}
    assert case.ended.stderr.startswith("Process ")
    assert "last_exception" not in case.ended.stderr


SPAWNED = """import torch.multiprocessing
def rank(number):
    {}["dog"]
if __name__ == "__main__":
    torch.multiprocessing.start_processes(rank, nprocs=1, start_method="fork")  # imports torch once
"""


def test_the_exception_of_a_rank_that_torch_starts_counts_before_its_parents(case: Case) -> None:
    kept = case.run(SPAWNED)
    assert kept == {**KEPT, "place": "crash.py:3"}
    assert "ProcessRaisedException" in case.ended.stderr


KILLED = """import os, signal, sys, time
def fail(*_):
    raise ConnectionResetError("by peer")
def rank(number):
    signal.signal(signal.SIGTERM, fail)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
BY_TORCH = """
if __name__ == "__main__":
    import torch.multiprocessing
    torch.multiprocessing.start_processes(rank, nprocs=2, start_method="fork")  # they import no torch
"""
BY_TORCHRUN = """
rank(int(os.environ["RANK"]))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.parametrize(
    ("start", "launcher"), [(BY_TORCH, ()), (BY_TORCHRUN, TORCHRUN)], ids=["torch", "torchrun"]
)
def test_a_rank_that_a_signal_killed_counts_before_those_that_failed_because_of_it(
    case: Case, start: str, launcher: tuple[str, ...]
) -> None:
    kept = case.run(KILLED + start, launcher=launcher)
    assert (kept["type"], kept["place"], kept["rank"]) == ("SIGKILL", "", "1")
    assert kept["message"].startswith("killed process ")


def test_a_launcher_that_fails_otherwise_keeps_nothing_of_its_own(case: Case) -> None:
    assert case.run("import sys; sys.exit(3)", launcher=TORCHRUN) == {}
    assert "ChildFailedError" in case.ended.stderr


WORKER = """from torch.utils.data import DataLoader
class Data:
    def __len__(self): return 2
    def __getitem__(self, index):
        return {}["dog"]
if __name__ == "__main__":
    list(DataLoader(Data(), num_workers=1))
"""


def test_an_exception_in_a_loaders_worker_is_that_of_its_traceback(case: Case) -> None:
    assert case.run(WORKER) == {**KEPT, "place": "crash.py:5", "rank": "0"}


STEP = "import stepscope\nwith stepscope.step('train'):\n    pass\n"


@pytest.mark.parametrize("before", ["", HOOK], ids=["no hook", "a hook of its own"])
def test_the_ledger_has_type_and_place_and_never_the_message(case: Case, before: str) -> None:
    kept = case.run(STEP + before + CRASH.replace("'dog'", "'secret'"))
    assert kept["rank"] == "0"
    assert case.of_ledger() == ("KeyError", kept["place"])
    assert case.hooked.all_raised()
    (path,) = open_ledgers(case.ledgers)
    assert b"secret" not in path.read_bytes()


def test_a_run_that_ends_well_has_no_exception_in_its_ledger(case: Case) -> None:
    assert case.run(STEP) == {}
    assert case.of_ledger() is None
    assert not case.hooked.all_raised()


def test_the_last_process_of_each_rank_tells_whether_exceptions_ended_the_training(
    case: Case,
) -> None:
    for rank, end in (("1", "raise KeyError"), ("0", "raise KeyError"), ("1", "pass")):
        case.run(STEP + end, RANK=rank, WORLD_SIZE="2")
        assert case.hooked.all_raised() == (end != "pass")


def leave(case: Case, number: int, rank: int | None, when: float, pid: int = 1, attempt: int = 0) -> None:
    known = {"type": f"E{number}", "message": "", "place": "", "rank": rank, "pid": pid, "killed": False}
    word = case.ledgers / stepscope_startup.WORDS / f"{stepscope_startup.EXCEPTION}-{number}"
    word.write_text(json.dumps({**known, "attempt": attempt, "time": when}))


def test_the_first_rank_of_the_last_attempt_counts(case: Case) -> None:
    leave(case, 1, None, 1.0)
    leave(case, 2, 0, 2.0)
    leave(case, 3, 1, 9.0, attempt=1)
    leave(case, 4, 0, 8.0, attempt=1)
    leave(case, 5, None, 3.0, pid=7)
    assert [known["type"] for known in case.hooked.exceptions(7)] == ["E4", "E2"]
    ended_by, restarted_after = case.hooked.exceptions(7, failed=False)
    assert (ended_by, restarted_after["type"]) == ({}, "E4")


def test_a_launchers_kill_of_the_remaining_ranks_is_no_cause() -> None:
    class ChildFailedError(Exception):
        def __init__(self, *failures: tuple[int, int, int]) -> None:
            self.failures = {
                rank: SimpleNamespace(timestamp=when, exitcode=status, pid=rank + 100)
                for rank, when, status in failures
            }

    killed = last_exception._killed
    assert killed(ChildFailedError((0, 5, 1), (1, 5, -15), (2, 6, -9))) is None
    assert killed(ChildFailedError((0, 5, 1), (1, 5, -11))) == ("SIGSEGV", "killed process 101", "", 1)
    assert killed(ChildFailedError((0, 5, -15), (1, 5, -15))) == ("SIGTERM", "killed process 100", "", 0)
    assert killed(KeyError("dog")) is None


def test_without_ranks_that_of_the_command_counts_and_otherwise_the_last_one(case: Case) -> None:
    leave(case, 1, None, 1.0)
    leave(case, 2, None, 2.0)
    assert case.hooked.exceptions(7)[0]["type"] == "E2"
    leave(case, 3, None, 0.5, pid=7)
    assert case.hooked.exceptions(7)[0]["type"] == "E3"


def test_what_is_cut_off_or_no_json_is_left_out(case: Case) -> None:
    words = case.ledgers / stepscope_startup.WORDS
    for number, text in enumerate(("", "{", "[]", '{"type": "E"}')):
        (words / f"{stepscope_startup.EXCEPTION}-{number}").write_text(text)
    assert case.hooked.exceptions(1)[0] == {}


def test_secrets_in_a_message_are_masked(case: Case) -> None:
    kept = case.run("raise OSError('no access to https://ann:hunter2@example.org/x')")
    assert "hunter2" not in kept["message"]
    assert kept["message"].startswith("no access to https://")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - of any kind
        return caught


class UnwritableError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("\n one\t two \nthree"), "one two"),
        (ValueError("a" * 1000), "a" * 199 + "…"),
        (ValueError("\x1b[31m"), "_[31m"),
        (ValueError(), ""),
        (UnwritableError(), ""),
    ],
)
def test_a_message_is_one_bounded_line(error: Exception, message: str) -> None:
    assert described(raised(error))[1] == message


def test_an_endless_recursion_has_its_place() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as raised:
        deeper()
    assert described(raised.value)[2].partition(":")[0].endswith("test_last_exception.py")


@pytest.fixture
def unkept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_exception, "_kept", 0)


@pytest.mark.usefixtures("unkept")
def test_no_traceback_is_kept_alive() -> None:
    class Tensor:
        pass

    def train() -> weakref.ref[Tensor]:
        tensor = Tensor()
        try:
            raise ValueError
        except ValueError as error:
            last_exception.note(error)
        return weakref.ref(tensor)

    alive = train()
    gc.collect()
    assert alive() is None
