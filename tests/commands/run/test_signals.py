"""Signals to `stepscope run`: in none of its threads, and at no moment, can one end it unasked."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stepscope.common.signals import PASSED_ON
from stepscope.rules.parts.registry import FOLDERS

from tests.support.observing import Observed
from tests.support.processes import ran
from tests.support.smallest import smallest
from tests.support.waiting import SECONDS

OTHERS = sorted(PASSED_ON - {signal.SIGINT})

STARTS_WITH_SIGNAL = """
import os, signal, sys
number, handler = int(sys.argv[1]), getattr(signal, sys.argv[2])
signal.pthread_sigmask(signal.SIG_BLOCK, {number})
signal.signal(number, handler)  # it would drop a signal that waits
os.kill(os.getpid(), number)
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""

UNTIL_SIGNALLED = """
import signal, sys, time
def said(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGUSR2:
        sys.exit(40)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), said)
print("ready", flush=True)
while True:
    time.sleep(100)
"""

LOOKS_AT_THE_FIRST_MASK = """
import os, signal, sys
real = signal.pthread_sigmask
def look(*arguments):
    signal.pthread_sigmask = real
    print(len(os.listdir("/proc/self/task")), sorted({"numpy", "pyarrow"} & set(sys.modules)), flush=True)
    return real(*arguments)
signal.pthread_sigmask = look
sys.argv[1:] = ["run", "--help"]
from stepscope.commands.cli import main
main()
"""

# Loaded by `stepscope run` as a rule. It sends signals as the report begins and ends, and when Python ends.
SENDS_WHILE_THE_REPORT_IS_MADE = """
import atexit, os, sys
from stepscope.report import write
real = write.write_report
def send():
    for number in {numbers}:
        os.kill(os.getpid(), number)
def write_report(*arguments, **named):
    send()
    real(*arguments, **named)
    send()
if sys.argv[1] == "run":
    write.write_report = write_report
    atexit.register(send)
"""

# The same, killed as soon as its command has ended.
KILLED_AT_THE_END = """
import os, sys
from stepscope.commands.run.exporter_process import ExporterProcess
if sys.argv[1] == "run":
    ExporterProcess.publish = lambda *_: os.kill(os.getpid(), 9)
"""


def observed_with(rule: str, folder: Path) -> Observed:
    """Observes a command with exit status 5, with this code as a rule."""
    (folder / "rules").mkdir()
    (folder / "rules" / "sends.py").write_text(rule)
    loads_rules = ("--set", "CPUBottleneck.threshold=50")  # before the command starts
    return Observed(folder / "run", "raise SystemExit(5)", *loads_rules, **{FOLDERS: str(folder / "rules")})


def begun_with(number: int, handler: str, words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs `python WORDS`, for which this signal waits already before its first line."""
    command = [sys.executable, "-c", STARTS_WITH_SIGNAL, str(int(number)), handler, *words]
    return ran(command, cwd=cwd)


def blocked(pid: int, thread: str) -> set[int]:
    """Returns the signals that a thread blocks. One that has just ended takes none."""
    try:
        lines = Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return set(PASSED_ON)
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:"))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_the_signals_are_blocked_before_a_library_can_start_a_thread() -> None:
    ended = ran([sys.executable, "-c", LOOKS_AT_THE_FIRST_MASK], check=True)
    assert ended.stdout.splitlines()[0] == "1 []", "threads, and libraries that start some"


def test_signals_sent_to_us_are_passed_on_and_every_thread_of_ours_blocks_them(tmp_path: Path) -> None:
    names = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]
    with Observed(tmp_path / "run", UNTIL_SIGNALLED) as observed:
        observed.until_printed("ready\n")
        pid = observed.process.pid
        # The main thread reads its signals: while it waits for one, the kernel shows them as not blocked.
        threads = set(os.listdir(f"/proc/{pid}/task")) - {str(pid)}
        assert threads, "numpy's, for one"
        open_to = {thread: PASSED_ON - blocked(pid, thread) for thread in threads}
        assert set(open_to.values()) == {frozenset()}
        for name in names:
            observed.send(signal.Signals[name])
            observed.until_printed(f"{name}\n")
        assert observed.status() == 40
        assert observed.printed.split() == ["ready", *names]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["end"] is not None


def test_signals_while_the_report_is_made_change_neither_report_nor_status(tmp_path: Path) -> None:
    rule = SENDS_WHILE_THE_REPORT_IS_MADE.format(numbers=[*map(int, OTHERS)])
    with observed_with(rule, tmp_path) as observed:
        assert observed.status() == 5, observed.said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["run"]["ending"]["words"].startswith("The command ended with exit status 5")


def test_ctrl_c_skips_the_report_of_a_recording_that_is_complete(tmp_path: Path) -> None:
    with observed_with(SENDS_WHILE_THE_REPORT_IS_MADE.format(numbers=[2]), tmp_path) as observed:
        assert observed.status() == 5, observed.said
        assert "no report was written (interrupted)" in observed.said
        assert f"make the report with `stepscope report {tmp_path}/run`" in observed.said
    assert [*(tmp_path / "run").rglob("*.journal"), *(tmp_path / "run").rglob("report.json")] == []


def test_how_the_command_ended_is_recorded_before_anything_else(tmp_path: Path) -> None:
    with observed_with(KILLED_AT_THE_END, tmp_path) as observed:
        assert observed.status() == -signal.SIGKILL
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (told["exit_status"], told["ended"]) == (5, "exit status 5")


@pytest.mark.parametrize(
    "number", smallest([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN + 6], {0, 3})
)
def test_a_signal_before_the_command_is_started_ends_us_with_its_status_and_leaves_nothing(
    number: int, tmp_path: Path
) -> None:
    flags = ["--listen", "127.0.0.1:0", "--out", "run", "--", "touch", "started"]
    ended = begun_with(number, "SIG_DFL", ["-m", "stepscope", "run", *flags], tmp_path)
    assert (ended.returncode, ended.stderr) == (128 + number, "")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_nohup_ignores_does_not_keep_the_command_from_starting_and_sig40_may_end_it(
    tmp_path: Path,
) -> None:
    script = "import os; os.kill(os.getpid(), 40)"  # a signal of real time, which has no name
    flags = ["--listen", "127.0.0.1:0", "--out", "run", "--", sys.executable, "-c", script]
    ended = begun_with(signal.SIGHUP, "SIG_IGN", ["-m", "stepscope", "run", *flags], tmp_path)
    assert ended.returncode == 128 + 40, ended.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ended"] == "signal SIG40"
    assert (tmp_path / "run" / "report.json").exists()


@pytest.mark.parametrize("command", ["exporter", "actions", "demo"])
def test_a_server_that_is_stopped_during_its_start_ends_normally(command: str, tmp_path: Path) -> None:
    words = ["cpu-bottleneck"] if command == "demo" else [f"--ledger-dir={tmp_path}"]
    words = ["-m", "stepscope", command, "--web.listen-address=127.0.0.1:0", *words]
    ended = begun_with(signal.SIGTERM, "SIG_DFL", words, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "stopped" in ended.stderr.splitlines()[-1]


def test_sigterm_removes_what_a_command_has_not_finished(tmp_path: Path) -> None:
    begins = (
        "import os, signal, sys\n"
        "from stepscope.common.signals import take_signals\n"
        "from stepscope.common.whole_file import replacing\n"
        "from pathlib import Path\n"
        "take_signals('report')\n"
        "with replacing(Path('report.html')):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    ended = subprocess.run([sys.executable, "-c", begins], cwd=tmp_path, timeout=SECONDS, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
