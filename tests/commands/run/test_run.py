"""`stepscope run` beside real commands: what they see, what comes out, and what is left."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from stepscope.rules.parts.registry import FOLDERS
from stepscope.training.layout import RUN_BYTES

from tests.support.commands import stepscope
from tests.support.observing import RUN, Observed
from tests.support.processes import ran
from tests.support.recording import Seen
from tests.support.smallest import smallest
from tests.support.terminal import Terminal, on_terminal
from tests.support.waiting import SECONDS, wait_until

Refused = Callable[[list[str], Path], str]
Telling = tuple[subprocess.CompletedProcess[str], Path]

STEPS = """
import sys, time, stepscope
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100000):
    with stepscope.step("train"):
        with stepscope.component("forward"):
            time.sleep(0.005)
    print("step", number, flush=True)
"""


def run_file(directory: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads((directory / "run.json").read_text())
    return values


# What comes out of the command comes out of us.


TELLING = """
import os, signal, sys
print(sys.stdin.read().upper(), end='')
print('to stderr', file=sys.stderr)
print(sys.argv[1:])
print(os.environ["STEPSCOPE_RUN"])
print(os.environ["STEPSCOPE_PROFILE"])
print(os.path.isdir(os.environ["STEPSCOPE_LEDGER_DIR"]))
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
raise SystemExit(7)
"""
AS_OURS = ["--name", "a", "--", "--out", "b"]
WITH_SECRETS = ["--token", "hunter2", "--db=postgres://me:hunter2@db/x", "--lr=3e-4"]


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Telling:
    """A command that has input, words like ours, secrets and a status; and the directory of its run."""
    folder = tmp_path_factory.mktemp("telling")
    own = [*RUN, "--listen", "127.0.0.1:0", "--out", "run", "--name", "resnet", "--profile", "4:7"]
    ended = ran(
        [*own, "--", sys.executable, "-c", TELLING, *AS_OURS, *WITH_SECRETS],
        input="words\n",
        cwd=folder,
        env={**os.environ, "SOME_PASSWORD": "hunter2", "STATE_DIRECTORY": str(folder / "state")},
    )
    return ended, folder / "run"


def test_the_exit_status_is_the_commands(telling: Telling) -> None:
    ended, directory = telling
    assert (ended.returncode, run_file(directory)["exit_status"]) == (7, 7)


def test_input_and_output_are_the_commands_own_and_it_finds_its_run_and_an_empty_signal_mask(
    telling: Telling,
) -> None:
    ended, _ = telling
    words = [*AS_OURS, *WITH_SECRETS]
    assert ended.stdout == f"WORDS\n{words}\nresnet\n4:7\nTrue\nset()\n", "not a byte of ours"
    assert "to stderr\n" in ended.stderr


def test_everything_behind_the_first_two_dashes_is_the_command_and_no_secret_is_stored_or_printed(
    telling: Telling,
) -> None:
    ended, directory = telling
    assert "hunter2" not in ended.stderr
    assert str(run_file(directory)["command"]).endswith(
        "--name a -- --out b --token *** '--db=postgres://***@db/x' --lr=3e-4"
    )
    written = [path for path in directory.rglob("*") if path.is_file()]
    assert {"run.json", "report.html", "report.json"} <= {path.name for path in written}
    assert [path for path in written if b"hunter2" in path.read_bytes()] == []


@pytest.fixture(scope="module")
def ended_well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A run of a script that knows nothing of us: told to store no command line, and to sample no lines."""
    folder = tmp_path_factory.mktemp("ended")
    script = "import os, time; print(os.environ['STEPSCOPE_LEDGER_DIR']); time.sleep(2)"
    state = {"STATE_DIRECTORY": str(folder / "state")}
    with Observed(folder / "run", script, "--no-command-line", "--no-lines", **state) as observed:
        assert observed.status() == 0
        yield observed


def test_without_a_command_line_none_is_stored(ended_well: Observed) -> None:
    assert run_file(ended_well.directory)["command"] == ""
    assert sys.executable not in (ended_well.directory / "report.json").read_text()


# Mistakes are said in one line, before anything is started.


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Refused:
    def line(arguments: list[str], cwd: Path) -> str:
        """Returns the one line that these arguments of `stepscope run` give."""
        monkeypatch.chdir(cwd)
        ended = stepscope("run", *arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count("\n") == 1, ended.stderr
        return ended.stderr

    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "no command given: put it after --, as in `stepscope run -- python train.py`"),
        (["--"], "no command given"),
        (["--", "no-such-command"], "command not found: no-such-command; check its name"),
        (["--", "./no-such-command"], "command not found: ./no-such-command"),
        (["--", "plain.txt"], "plain.txt cannot be executed: run `chmod +x plain.txt`"),
        (["--", "train.sh"], "train.sh is not on PATH: use `./train.sh`"),
        (["--", "bare.py", "a b"], "no program: use `stepscope run -- python bare.py 'a b'`"),
        (["--", "./bare.py"], "./bare.py is a Python script and no program: use `stepscope run"),
        (["--", "./no_line.py"], "./no_line.py is a Python script and no program: use `stepscope run"),
        (["--", "./plain.txt"], "./plain.txt cannot be executed: run `chmod +x ./plain.txt`"),
        (["--colour", "--", "true"], "unrecognized arguments: --colour"),
        (["--token=hunter2", "--", "true"], "unrecognized arguments: --token=***"),
        (["--", "API_KEY=hunter2", "python"], "command not found: API_KEY=***; check its name"),
        (["--name", "a\nb", "--", "true"], r"--name 'a\nb': must have only printable characters"),
        (["--name", "n" * 5000, "--", "true"], f"--name: must be shorter than {RUN_BYTES} bytes, not 5000"),
        (["--interval", "fast", "--", "true"], "'fast' is not a duration such as 500ms"),
        (["--interval", "0s", "--", "true"], "must be more than 0"),
        (["--listen", "nowhere", "--", "true"], "must be [HOST]:PORT"),
        (["--set", "CPUBottleneck.colour=1", "--", "true"], "--set CPUBottleneck.colour=1"),
        (["--out", "plain.txt", "--", "true"], "plain.txt is not a directory: choose another with --out"),
        (
            ["--out", "plain.txt/run", "--", "true"],
            "plain.txt/run: Not a directory; choose another directory",
        ),
        (["--out", "/proc/run", "--", "true"], "cannot write to /proc/run"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_mistake_gives_one_line_and_status_2(
    tmp_path: Path, refused: Refused, arguments: list[str], line: str
) -> None:
    files = ["bare.py", "no_line.py", "plain.txt", "train.sh"]
    for name in files:
        (tmp_path / name).write_text("")
    for name in files[1::2]:
        (tmp_path / name).chmod(0o755)
    assert line in refused(arguments, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == files, "nothing half-written"


@pytest.mark.parametrize("out", smallest([(), ("--out", "run")], {0}))
def test_a_command_that_never_started_leaves_no_folder(tmp_path: Path, out: tuple[str, ...]) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    ended = ran([*RUN, "--listen", "127.0.0.1:0", *out, "--", "./train.sh"], cwd=tmp_path)
    assert ended.returncode == 2
    assert "cannot run ./train.sh: No such file or directory" in ended.stderr
    assert list(tmp_path.iterdir()) == [script]


def test_a_directory_that_holds_a_recording_is_refused(ended_well: Observed, refused: Refused) -> None:
    before = run_file(ended_well.directory)
    line = refused(["--out", "run", "--", "true"], ended_well.directory.parent)
    assert "run already has a recording: choose another directory with --out" in line
    assert run_file(ended_well.directory) == before


def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path, refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(["--listen", address, "--out", "run", "--", "touch", "started"], tmp_path)
    assert f"cannot listen on {address}: address already in use" in line
    assert "choose another with --listen" in line
    assert list(tmp_path.iterdir()) == []


# Port 9870 may be taken, or be given back, by another program at any moment: the test has a port of its own.
USUAL_PORT = """
import sys
from stepscope.commands.run import listener
listener.DEFAULT_ADDRESS = sys.argv.pop(1)
from stepscope.commands.cli import main
sys.exit(main())
"""


def test_the_usual_port_taken_gives_a_free_one_and_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", USUAL_PORT, f"127.0.0.1:{port}", "run"]
        ended = ran([*command, "--", sys.executable, "-c", ""], cwd=tmp_path)
    assert ended.returncode == 0
    assert f"stepscope: port {port} is taken; serving on 127.0.0.1:" in ended.stderr
    (directory,) = (path for path in (tmp_path / "stepscope-runs").iterdir() if path.is_dir())
    assert (directory / "run.json").exists(), "and without --out it has a directory of its own"


# What is left when something is killed.


def test_an_exporter_that_is_killed_comes_back_and_no_step_is_lost(tmp_path: Path) -> None:
    with Observed(tmp_path / "run", STEPS, "--name", "resnet") as observed:
        observed.until_printed("step 20\n")
        observed.until_samples(5)
        assert 'stepscope_step_duration_seconds_count{run="resnet-' in fetch(observed.address, "metrics")
        counted = samples_total(observed.address)
        first = observed.exporter()
        first.kill()
        before = len(Seen(observed.directory).read().ticks())
        assert before >= counted, "every sample that was counted is recorded"
        observed.until_said(
            "the exporter was killed by signal 9; it is restarted and the recording continues"
        )
        wait_until(lambda: [it for it in observed.exporters() if it.pid != first.pid], "another exporter")
        observed.until_samples(before + 5)
        assert samples_total(observed.address) > counted, "the counters go on where they were"
        observed.send(signal.SIGTERM)
        assert observed.status() == 128 + signal.SIGTERM
        assert observed.said.count("is restarted") == 1
        run = json.loads((observed.directory / "run.json").read_text())
        assert run["stopped_by"] == Path("/proc/self/comm").read_text().strip()
        steps = observed.printed.count("\n")
    seen = Seen(tmp_path / "run").read()
    assert seen.numbers()[:steps] == list(range(steps))
    assert len(seen.numbers()) in (steps, steps + 1), "the one that was cut off may have ended unprinted"
    (rank,) = seen.source.facts.ranks
    assert rank.steps["train"] == len(seen.numbers())
    assert (rank.records_lost, rank.killed) == (0, True)
    assert (tmp_path / "run" / "report.html").exists()


def test_steps_that_no_exporter_lived_to_see_are_recorded(tmp_path: Path) -> None:
    script = "import os, time\nwhile not os.path.exists('suspended'): time.sleep(0.01)\n" + STEPS
    with Observed(tmp_path / "run", script.replace("100000", "30")) as observed:
        observed.until_samples(1)
        exporter = observed.exporter()
        exporter.suspend()  # it neither samples nor ends: the hardest to live with
        (tmp_path / "suspended").touch()
        observed.until_printed("step 29\n")
        exporter.kill()
        assert observed.status() == 0
    seen = Seen(tmp_path / "run").read()
    assert seen.numbers() == list(range(30))
    assert seen.source.facts.ranks[0].end is not None


def test_a_training_process_that_is_killed_leaves_its_steps_and_a_report(tmp_path: Path) -> None:
    with Observed(tmp_path / "run", STEPS, "--name", "resnet", "--price", "3600") as observed:
        observed.until_printed("step 30\n")
        observed.training().kill()
        assert observed.status() == 128 + signal.SIGKILL
        steps = observed.printed.count("\n")
        assert f"report       {tmp_path}/run/report.html" in observed.said
    seen = Seen(tmp_path / "run").read()
    assert len(seen.numbers()) in (steps, steps + 1)
    assert seen.source.facts.ranks[0].killed
    assert seen.source.facts.exit_status == 128 + signal.SIGKILL
    assert (tmp_path / "run" / "report.html").exists()
    assert list((tmp_path / "run" / "profiler-reports").glob("*.json")) != []
    document = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert document["cost"]["amount"] == pytest.approx(document["run"]["seconds"])  # a dollar a second


def test_kill_9_of_us_ends_the_exporter_and_leaves_a_recording_and_memory_that_goes_with_the_next_run(
    tmp_path: Path,
) -> None:
    tell = "import os; print(os.environ['STEPSCOPE_LEDGER_DIR'], flush=True)\n"
    with (
        Observed(tmp_path / "run", tell + STEPS) as observed,
        Observed(tmp_path / "second", f"{tell}import signal; signal.pause()") as second,
    ):
        observed.until_printed("step 30\n")
        observed.until_samples(5)
        wait_until(lambda: second.printed, "the directory of its ledgers")
        of_killed, of_second = (Path(each.printed.split()[0]) for each in (observed, second))
        training, exporter = observed.training(), observed.exporter()
        observed.send(signal.SIGKILL)
        wait_until(lambda: not exporter.is_running() or not observed.exporters(), "the exporter's end")
        assert training.is_running(), "the training goes on"
        training.kill()
        assert observed.status() == -signal.SIGKILL
        # What is left may already be gone with the next run of another test: they share the machine's memory.
        with Observed(tmp_path / "third", "") as third:
            assert third.status() == 0
        assert not of_killed.exists()
        assert of_second.exists(), "its observer lives"
    assert list((tmp_path / "run").glob("*/*.journal")) == [], "the exporter ended in good order"
    seen = Seen(tmp_path / "run").read()
    assert len(seen.ticks()) >= 5
    assert seen.numbers()[:30] == list(range(30))
    reported = stepscope("report", tmp_path / "run", "--out", tmp_path / "run")
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "run" / "report.html").exists()


def test_nothing_stays_behind_in_memory_and_no_process(ended_well: Observed) -> None:
    assert not Path(ended_well.printed.strip()).exists()
    assert ended_well.exporters() == []
    assert not (ended_well.directory.parent / "state").exists()  # that of the node's own exporter


# What a full disk or a failing report leaves.

UNTIL_TOLD = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


def test_a_full_disk_ends_the_recording_and_neither_the_training_nor_its_status(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, hard))  # inherited by all that we start
    try:
        with Observed(tmp_path / "run", f"{UNTIL_TOLD}raise SystemExit(5)") as observed:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            observed.until_said("stopped: File too large")
            (tmp_path / "go").touch()
            assert observed.status() == 5
            assert observed.said.count("stopped: File too large") == 1
            assert "no report was written (" in observed.said
            assert f"make the report with `stepscope report {tmp_path / 'run'}`" in observed.said
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(Seen(tmp_path / "run").read().ticks()) > 3


# Loaded by `stepscope run` as a rule. With a terminal, and with its page open in a browser, it starts none.
NO_THREADS = """
import sys, threading
from stepscope.commands.run.exporter_process import ExporterProcess
from stepscope.commands.run.status_line import LastRow
def start(self):
    raise RuntimeError("can't start new thread")
if sys.argv[1] == "run":
    threading.Thread.start = start
    ExporterProcess.is_watched = LastRow.is_possible = lambda *_: True
"""


def test_where_no_thread_can_be_started_the_command_is_observed_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "no_threads.py").write_text(NO_THREADS)
    folders = {FOLDERS: str(tmp_path / "rules")}
    with Observed(
        tmp_path / "run", "raise SystemExit(5)", "--set", "CPUBottleneck.threshold=50", **folders
    ) as observed:
        assert observed.status() == 5, observed.said
        assert "the live report is stale: RuntimeError: can't start new thread" in observed.said
    assert (tmp_path / "run" / "report.json").exists()


def test_a_part_that_is_spoilt_is_left_out_and_the_exception_that_ends_the_command_is_in_the_verdict(
    tmp_path: Path,
) -> None:
    sampled = (
        "while not any(name.endswith('.lines') for name in os.listdir(os.environ['STEPSCOPE_LEDGER_DIR'])): "
        "time.sleep(0.01)\n"
    )
    with Observed(tmp_path / "run", f"{UNTIL_TOLD}{sampled}{{}}['dog']") as observed:
        observed.until_samples(2)
        (node,) = (path for path in observed.directory.iterdir() if path.is_dir())
        (node / "steps-000009.00000000.parquet").write_bytes(b"no part")
        (tmp_path / "go").touch()
        assert observed.status() == 1
        assert "This run is incomplete. The figures exclude what is missing:" in observed.said
        assert "steps-000009.00000000.parquet` was left out: its checksum does not match" in observed.said
        assert "✕ Failed: KeyError: 'dog', <string>:4" in observed.said
        assert f"report       {tmp_path}/run/report.html" in observed.said
        assert list(node.rglob("lines.json")) != [], "lines are recorded unless they are switched off"
    exception = {"type": "KeyError", "message": "'dog'", "place": "<string>:4", "rank": ""}
    assert run_file(tmp_path / "run")["exception"] == exception


# What is said.


def test_a_script_that_knows_nothing_of_us_is_told_how_to_add_steps(ended_well: Observed) -> None:
    lines = ended_well.said.splitlines()
    at = lines.index("? Not enough data: no steps were seen, so only the machine was judged.")
    assert "stepscope.step(" in lines[at + 1]
    assert f"report       {ended_well.directory}/report.html" in lines
    assert re.fullmatch(r"=+ \? not enough data in .*, exit status 0 =+", lines[-1])
    assert "\033" not in ended_well.said, "no colours but on a terminal"
    assert "your browser" not in ended_well.said, "nobody waits for a page that no browser shows"
    assert (ended_well.directory / "report.html").exists()
    assert list(ended_well.directory.rglob("lines.json")) == [], "--no-lines"


def samples_total(address: str) -> float:
    """The exporter's counter of samples of the run called resnet."""
    found = re.search(
        r'^stepscope_samples_total\{run="resnet-[0-9a-f]{8}"\} (\S+)$',
        fetch(address, "metrics"),
        re.MULTILINE,
    )
    assert found is not None
    return float(found[1])


def fetch(address: str, page: str) -> str:
    with urllib.request.urlopen(f"http://{address}/{page}", timeout=SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def test_a_finding_is_said_once_while_the_command_runs(tmp_path: Path) -> None:
    script = """
import time, stepscope
for number in range(300):
    with stepscope.step("train"), stepscope.component("data_wait"):
        time.sleep(0.02)
print("trained", flush=True)
time.sleep(100)
"""
    flags = ("--live-interval", "1s", "--scan-interval", "1s", "--set", "DataStarved.patience=10")
    with Observed(tmp_path / "run", script, *flags) as observed:
        observed.until_said("stepscope: ▲ DataStarved: ")
        observed.until_printed("trained")
        before = observed.said.count("DataStarved: ")
        assert before == 1
        psutil.Process(observed.training().pid).terminate()
        assert observed.status() == 128 + signal.SIGTERM
        assert "■ Stopped by SIGTERM at" in observed.said


# On a terminal.


def test_ctrl_c_reaches_the_command_once_and_who_presses_it_stops_the_run_which_has_not_failed(
    tmp_path: Path,
) -> None:
    script = """
import signal, time
count = 0
def interrupted(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupted)
print("ready", flush=True)
while not count:
    time.sleep(0.1)
time.sleep(1)
print("interrupts:", count, flush=True)
raise SystemExit(9)
"""
    terminal = Terminal(on_terminal(tmp_path, script), tmp_path)
    terminal.until_shown("ready")
    terminal.type("\x03")
    assert terminal.status() == 9, terminal.shown
    assert "interrupts: 1" in terminal.shown
    assert (tmp_path / "run" / "report.html").exists()
    run = run_file(tmp_path / "run")
    assert (run["stopped_by"], run["exception"]) == ("terminal", {})
    document = json.loads((tmp_path / "run" / "report.json").read_text())
    assert document["verdict"]["status"] == "stopped"
    assert document["verdict"]["sentences"][0].startswith("Stopped by you (Ctrl-C) at ")
    assert document["run"]["ending"]["failed"] is False


# The whole job must stand before somebody types: a process that was woken to be stopped, and had no core yet,
# still takes a line that comes first.
SHELL = """
import os, psutil, signal, subprocess, sys, termios, time
def stands(group):
    try:
        all_of_it = [it for it in psutil.process_iter() if os.getpgid(it.pid) == group]
        return all(it.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) for it in all_of_it)
    except (OSError, psutil.Error):  # some process has just ended
        return False
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, job.pid)
_, status = os.waitpid(job.pid, os.WUNTRACED)
assert os.WIFSTOPPED(status), status
while not stands(job.pid):
    time.sleep(0.01)
os.tcsetpgrp(0, os.getpgrp())
print("[1]+ Stopped", flush=True)
assert sys.stdin.readline().strip() == "fg"
os.tcsetpgrp(0, job.pid)
os.killpg(job.pid, signal.SIGCONT)
sys.exit(job.wait())
"""


def test_the_command_has_the_terminal_and_ctrl_z_stops_it_and_us_and_fg_goes_on(tmp_path: Path) -> None:
    script = """
import os
print([os.isatty(n) for n in range(3)], "ready", flush=True)
print("got", input("name? ").upper(), flush=True)
raise SystemExit(8)
"""
    terminal = Terminal([sys.executable, "-c", SHELL, *on_terminal(tmp_path, script)], tmp_path)
    terminal.until_shown("name? ")
    assert "[True, True, True] ready" in terminal.shown
    terminal.type("\x1a")
    terminal.until_shown("Stopped")
    terminal.type("fg\n")
    terminal.type("anna\n")
    assert terminal.status() == 8, terminal.shown
    assert "got ANNA" in terminal.shown
    assert "\033[" in terminal.shown, "colours on a terminal"
    assert (tmp_path / "run" / "report.html").exists()
