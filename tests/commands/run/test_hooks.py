"""Runs without steps: the report and the terminal say why none were seen, and what to do."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import stepscope_startup
from stepscope.commands.run.hooks import STARTUP, WARN_AFTER, HookedProcesses, command_environment
from stepscope.training.launch import Launch

from tests.support.observing import RUN
from tests.support.processes import ran
from tests.support.small_torch import environment_of
from tests.support.waiting import wait_until

SLEEP = "import time; time.sleep(100)"


def environment(folder: Path, **given: str) -> dict[str, str]:
    return command_environment({**given, "PATH": os.environ["PATH"]}, Launch("train", "key"), folder)


def test_the_command_gets_our_folder_before_the_users_own(tmp_path: Path) -> None:
    assert environment(tmp_path)["PYTHONPATH"] == str(STARTUP), "no empty entry, which is the current folder"
    assert environment(tmp_path, PYTHONPATH="/a:/b")["PYTHONPATH"] == f"{STARTUP}:/a:/b"
    assert set(os.listdir(STARTUP)) - {"__pycache__"} == {"sitecustomize.py"}, "it shadows nothing else"


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(tmp_path, STEPSCOPE_LINES="0")["STEPSCOPE_LINES"] == "0"
    assert environment(tmp_path)["STEPSCOPE_LINES"] == "1"
    monkeypatch.setenv("STEPSCOPE", "off")
    assert environment(tmp_path).keys().isdisjoint({"STEPSCOPE_INSTRUMENT", "STEPSCOPE_LINES", "PYTHONPATH"})


class Case:
    """A command, and what is seen of it."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.folder = folder
        self.hooked = HookedProcesses(folder, clock=lambda: self.now)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, **environment_more: str) -> None:
        self.process = subprocess.Popen(
            words, env={**environment(self.folder), **environment_more}, stderr=subprocess.DEVNULL
        )

    def look(self) -> str:
        assert self.process is not None
        self.now += 1000.0
        return self.hooked.look(self.process.pid)

    def until(self, text: str) -> None:
        def said() -> bool:
            self.look()
            return text in self.hooked.why_no_steps()

        wait_until(said, f"{text!r} in {self.hooked.why_no_steps()!r}")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    case.end()


def test_a_python_without_the_environment_is_named_once_with_ways_to_pass_it_on_and_not_too_early(
    case: Case,
) -> None:
    case.start("env", "-i", sys.executable, "-c", SLEEP, "--token", "hf_abcdefghijklmnopQRSTUVWX")
    warnings: list[str] = []

    def warned() -> bool:
        warnings.append(case.look())
        return bool(warnings[-1])

    wait_until(warned, "a warning")
    assert "strips it" in warnings[-1]
    assert case.look() == ""
    why = case.hooked.why_no_steps()
    assert "ran without the environment of `stepscope run`, because its launcher strips it." in why
    assert why.startswith(f"`{sys.executable} -c ")
    assert "`srun --export=ALL`" in why
    assert "hf_abc" not in why
    early = HookedProcesses(case.folder, clock=lambda: case.now)
    case.now += WARN_AFTER
    assert case.process is not None
    assert early.look(case.process.pid) == ""
    case.now += 1
    assert "strips it" in early.look(case.process.pid)


def test_a_python_that_is_being_started_is_looked_at_again(tmp_path: Path) -> None:
    hooked = HookedProcesses(tmp_path / "ledgers")
    process = tmp_path / "1"
    process.mkdir()
    (process / "exe").symlink_to("/usr/bin/python3.11")
    for name in ("cmdline", "environ"):
        (process / name).touch()
    assert not hooked._is_python(process)
    (process / "cmdline").write_text("python3\0train.py\0")
    assert hooked._is_python(process)
    assert "strips it" in hooked.why_no_steps()


def test_a_python_that_gave_itself_a_title_did_not_lose_its_environment(tmp_path: Path) -> None:
    hooked = HookedProcesses(tmp_path / "ledgers")
    process = tmp_path / "1"
    process.mkdir()
    (process / "exe").symlink_to("/usr/bin/python3.11")
    (process / "cmdline").write_text("ray::IDLE\0\0\0")
    (process / "environ").write_bytes(bytes(64))
    assert hooked._is_python(process)
    assert "strips it" not in hooked.why_no_steps()


def test_a_helper_without_the_environment_is_not_all_that_is_said_of_a_training_that_the_hooks_saw(
    tmp_path: Path,
) -> None:
    hooked = HookedProcesses(tmp_path)
    (tmp_path / stepscope_startup.WORDS / "keras").touch()
    hooked._stripped = "python -S helper.py"
    why = hooked.why_no_steps()
    assert why.index("Keras was imported, but no optimizer") < why.index("`python -S helper.py` ran without")


def test_no_warning_once_there_is_a_ledger(case: Case) -> None:
    (case.folder / "train.0.ledger").touch()
    case.start("env", "-i", sys.executable, "-c", SLEEP)
    case.until("strips it")
    assert case.look() == ""


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_a_python_that_ignores_the_path_needs_the_hooks_installed(case: Case, flag: str) -> None:
    """In the environment of the tests, the hooks are not installed."""
    python = getattr(sys, "_base_executable", sys.executable)
    case.start(python, flag, "-c", SLEEP)
    case.until(f"`stepscope hooks install --python {python}`")


def test_a_script_without_pytorch_is_told_so(case: Case) -> None:
    case.start(sys.executable, "-c", SLEEP)
    case.until("No Python process imported PyTorch")


def test_pytorch_without_an_optimizer_is_told_so(case: Case) -> None:
    path = environment_of(case.folder)
    case.start(sys.executable, "-c", f"import torch; {SLEEP}", PYTHONPATH=f"{STARTUP}:{path}")
    case.until("PyTorch was imported, but no optimizer of it made a step.")


def test_hooks_that_failed_say_how(case: Case) -> None:
    (case.folder / "torch.py").touch()
    (case.folder / "stepscope.py").touch()
    case.start(sys.executable, "-c", f"import torch; {SLEEP}", PYTHONPATH=f"{STARTUP}:{case.folder}")
    case.until("The hooks failed: torch is not hooked: ModuleNotFoundError: ")


def test_a_command_that_is_no_python_is_told_where_else_it_may_be(case: Case) -> None:
    case.start("sleep", "100")
    case.until("No Python process was seen below the command.")


def test_hooks_that_are_switched_off_say_so(tmp_path: Path) -> None:
    assert "switched off" in HookedProcesses(tmp_path, switched_off=True).why_no_steps()


@pytest.mark.parametrize("version", ["3.10", "3.8", "2.7"])
def test_a_python_that_is_too_old_runs_its_script_and_is_named(tmp_path: Path, version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {version} here")
    hooked = HookedProcesses(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("own = 1")
    printed = ran(
        [python, "-c", "import sitecustomize; print(sitecustomize.own)"],
        env=environment(tmp_path, PYTHONPATH=str(tmp_path), PYTHONDONTWRITEBYTECODE="1"),
        check=True,
    )
    assert (printed.stdout, printed.stderr) == ("1\n", "")
    assert f"Python {version} is too old for the hooks" in hooked.why_no_steps()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["link", "folder"])
def test_words_are_not_left_where_another_user_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, old: bool
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    ledgers, elsewhere = tmp_path / "ledgers", tmp_path / "elsewhere"
    ledgers.mkdir()
    elsewhere.mkdir()
    planted = ledgers / stepscope_startup.WORDS
    planted.symlink_to(elsewhere) if kind == "link" else planted.mkdir()
    os.chown(planted, 65534, 65534, follow_symlinks=False)
    monkeypatch.setenv(stepscope_startup.LEDGERS, str(ledgers))
    if old:
        code = STARTUP.joinpath("sitecustomize.py").read_text().partition("\ndel sys.modules")[0]
        monkeypatch.setattr(sys, "version_info", (3, 8))
        exec(code, {"__file__": str(STARTUP / "sitecustomize.py")})
    else:
        stepscope_startup.leave_word("torch")
    assert [*elsewhere.iterdir(), *planted.iterdir()] == []


@pytest.mark.parametrize("word", ["failed", "old"])
def test_a_word_that_is_no_file_is_not_waited_for(tmp_path: Path, word: str) -> None:
    hooked = HookedProcesses(tmp_path)
    os.mkfifo(tmp_path / stepscope_startup.WORDS / word)
    assert hooked.why_no_steps().startswith("No Python process was seen below the command.")


def test_terminal_and_report_say_loudly_that_no_steps_were_seen(tmp_path: Path) -> None:
    command = ["env", "-i", sys.executable, "-c", "import time; time.sleep(2)"]
    ended = ran(
        [*RUN, "--interval", "100ms", "--listen", "127.0.0.1:0", "--out", tmp_path / "run", "--", *command],
        check=True,
    )
    said = "Not enough data: no steps were seen, so only the machine was judged."
    assert f"? {said}\n  `{sys.executable} -c " in ended.stderr
    assert said in (tmp_path / "run" / "report.html").read_text()
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert "its launcher strips it" in report["run"]["no_steps"]
    (stalled,) = (rule for rule in report["rules"] if rule["rule"] == "TrainingStalled")
    assert stalled["finding"] == f"No step was recorded. {report['run']['no_steps']}"


def test_why_no_lines_were_sampled_is_said_after_the_command_and_not_in_its_output(tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -f 8; exec "$@"', "sh")  # too few blocks for a file of line samples
    script = """
import os, sys, time
while not os.path.exists(os.environ["STEPSCOPE_LEDGER_DIR"] + "/startup/no_lines"): time.sleep(0.01)
print("out")
print("last words", file=sys.stderr)
"""
    flags = ("--interval", "100ms", "--listen", "127.0.0.1:0", "--out", tmp_path / "run")
    ended = ran([*RUN, *flags, "--", *limited, sys.executable, "-c", script], check=True)
    assert ended.stdout == "out\n"
    before, _, after = ended.stderr.partition("last words\n")
    assert "no line samples" not in before
    assert re.search(r"no line samples of process \d+: .*File too large", after)
