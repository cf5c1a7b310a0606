"""Every signal at random moments of `stepscope run`, to it alone or to its process group.

The table in docs/run.md says what each signal does; this trial reads it there.
"""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from random import Random

import psutil
from stepscope.common.signals import PASSED_ON, name_of

from benchmarks.page import DOCS
from tests.support.observing import RUN
from trials import Attempt, trial
from trials.exporters import numbers_per_process
from trials.interrupted_run import can_be_reported

STATUS = 5  # of a command that no signal ended
SCRIPT = """
import os, time, stepscope
print(os.getpid(), os.environ["STEPSCOPE_LEDGER_DIR"], flush=True)
for _ in range(60):
    with stepscope.step("train"):
        time.sleep(0.01)
print("done", flush=True)
raise SystemExit({status})  # of {directory}
"""
AT_ONCE = 3  # runs: they mostly wait
LONGEST = 600.0  # seconds that a stage of a run may take on a busy machine
REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)


class Stage(IntEnum):
    """How far `stepscope run` has come."""

    PYTHON = 0  # it has not begun: signals do what they do to any Python
    BEFORE = 1  # it prepares
    RUNNING = 2  # the command has printed its first line
    AFTER = 3  # the command has ended
    GONE = 4


@dataclass(frozen=True)
class Shot:
    """One signal, and when and where it is sent."""

    number: int
    stage: Stage
    share: float  # of the stage's usual length
    to_group: bool


def documented() -> dict[str, tuple[str, str, str]]:
    """Returns what docs/run.md says of each signal: before the command, while it runs, and afterwards."""
    rows = re.findall(
        r"^\| (`SIG.*?) \| (.*) \| (.*) \| (.*) \|$", (DOCS / "run.md").read_text(), re.MULTILINE
    )
    return {
        name: (before, during, after)
        for names, before, during, after in rows
        for name in re.findall(r"SIG\w+", names)
    }


@trial(
    "A signal at any moment of `stepscope run` does to exit status, report and command what is documented.",
    count=200,
    short=8,
    of="signals",
)
def signal_storm(attempt: Attempt) -> str:
    table = documented()
    numbers = [int(signal.Signals[name]) for name in table]
    lengths = _usual_lengths(attempt.folder / "usual")
    shots = [_shot(attempt.random, numbers) for _ in range(attempt.count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        performed = [
            pool.submit(_perform, attempt.folder / f"run-{number:05}", shot, lengths, table)
            for number, shot in enumerate(shots)
        ]
        try:
            seen = Counter(performed[number].result() for number in attempt.rounds())
        finally:
            pool.shutdown(cancel_futures=True)
    kinds, grouped = len({shot.number for shot in shots}), sum(shot.to_group for shot in shots)
    effects = ", ".join(f"{count} x *{effect}*" for effect, count in sorted(seen.items()))
    return f"{attempt.count} signals of {kinds} kinds, {grouped} to the group: {effects}"


def _shot(random: Random, numbers: list[int]) -> Shot:
    number = random.choice(numbers)
    if number == signal.SIGRTMIN:
        number = random.choice(REAL_TIME)
    (stage,) = random.choices([*Stage][: Stage.GONE], weights=(1, 3, 2, 4))
    return Shot(number, stage, random.random(), random.random() < 0.5)


class _Run:
    """A `stepscope run` that leads its own process group, in the session of the trial."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._output, self._errors = directory.with_suffix(".stdout"), directory.with_suffix(".stderr")
        script = SCRIPT.format(status=STATUS, directory=directory)
        words = [*RUN, "--interval=100ms", "--listen=127.0.0.1:0", f"--out={directory}", "--", sys.executable]
        flags = os.O_WRONLY | os.O_CREAT
        outputs = [(os.POSIX_SPAWN_OPEN, 1, str(self._output), flags, 0o600)]
        outputs += [(os.POSIX_SPAWN_OPEN, 2, str(self._errors), flags, 0o600)]
        words += ["-c", script]
        # Without what the trial ignores, as under nohup.
        self.pid = os.posix_spawn(
            words[0], words, os.environ, file_actions=outputs, setpgroup=0, setsigdef=PASSED_ON, setsigmask=()
        )
        self._stage = Stage.PYTHON
        self._code: int | None = None

    @property
    def said(self) -> str:
        return self._errors.read_text()

    @property
    def printed(self) -> list[str]:
        return self._output.read_text().splitlines() if self._output.exists() else []

    @property
    def status(self) -> int:
        """Returns its exit status as a shell shows it, once it is gone."""
        assert self._code is not None
        return self._code if self._code >= 0 else 128 - self._code

    def stage(self) -> Stage:
        """Returns how far it has come, which never goes back."""
        self._stage = max(self._stage, self._look())
        return self._stage

    def until(self, stage: Stage) -> None:
        """Waits until it has come that far."""
        deadline = time.monotonic() + LONGEST
        while self.stage() < stage:
            assert time.monotonic() < deadline, f"it stays in {self._stage.name}: {self.said}"
            time.sleep(0.005)

    def send(self, number: int, to_group: bool) -> None:
        """Sends a signal, unless it is gone."""
        if self.stage() < Stage.GONE:
            os.kill(-self.pid if to_group else self.pid, number)

    def ledgers(self) -> set[str]:
        """Returns its ledger directories, while it has them."""
        try:
            files = [os.readlink(each) for each in Path(f"/proc/{self.pid}/fd").iterdir()]
        except OSError:
            files = []
        told = {line.split()[1] for line in self.printed if "/" in line}
        return told | {os.path.dirname(file) for file in files if "/stepscope-run-" in file}

    def processes(self) -> list[psutil.Process]:
        """Returns what still runs of it."""
        return [each for each in psutil.process_iter() if self._is_mine(each)]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return (
                str(self.directory) in " ".join(process.cmdline())
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def _look(self) -> Stage:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        if self._code is not None:
            return Stage.GONE
        if self.printed:
            return Stage.RUNNING if _runs(int(self.printed[0].split()[0])) else Stage.AFTER
        blocked = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{self.pid}/status").read_text())
        assert blocked is not None
        return Stage.BEFORE if int(blocked[1], 16) >> (signal.SIGTERM - 1) & 1 else Stage.PYTHON


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _usual_lengths(directory: Path) -> list[float]:
    """Returns how long each stage of an undisturbed run takes here, in seconds."""
    run, times = _Run(directory), [time.monotonic()]
    for stage in [*Stage][1:]:
        run.until(stage)
        times.append(time.monotonic())
    assert run.status == STATUS, run.said
    return [after - before for before, after in pairwise(times)]


def _perform(
    directory: Path, shot: Shot, lengths: list[float], table: dict[str, tuple[str, str, str]]
) -> str:
    """Sends the signal, checks its effect, and returns that."""
    run = _Run(directory)
    try:
        run.until(shot.stage)
        time.sleep(shot.share * lengths[shot.stage])
        before, ledgers = run.stage(), run.ledgers()
        run.send(shot.number, shot.to_group)
        after = run.stage()
        ledgers |= run.ledgers()
        if shot.number == signal.SIGTSTP:
            time.sleep(0.1)
            run.send(signal.SIGCONT, shot.to_group)
        run.until(Stage.GONE)
        left = run.processes()
    finally:
        for process in run.processes():
            process.kill()
    name = name_of(shot.number) if shot.number not in REAL_TIME else "SIGRTMIN"
    stages = {*range(before, after + 1), *({Stage.RUNNING} if after == Stage.BEFORE else ())}
    effects = [effect for stage, effect in enumerate(table[name], Stage.BEFORE) if stage in stages]
    if shot.to_group and Stage.RUNNING in stages:  # Python ignores SIGPIPE, but not from its first moment
        effects.append("goes to the command")
    of_python = name not in ("SIGCHLD", "SIGWINCH", "SIGTSTP", "SIGCONT")
    if before == Stage.PYTHON:
        effects += [table[name][0], *(["ends Python"] if of_python else [])]
    if after == Stage.GONE:
        effects.append("nothing")
    where = (
        f"{name_of(shot.number)} to {'the group' if shot.to_group else 'it'}, {before.name} to {after.name}"
    )
    found = [effect for effect in dict.fromkeys(effects) if _has(run, effect, shot.number)]
    assert found, f"{where}: status {run.status}, not {' or '.join(effects)}: {run.said[-900:]}"
    assert not left, f"{where}: processes are left: {left}"
    assert not [each for each in ledgers if os.path.exists(each)], f"{where}: ledgers are left: {run.said}"
    assert not [*directory.rglob("*.unfinished")], f"{where}: unfinished files are left"
    _check_recording(run, where)
    return found[0]


def _has(run: _Run, effect: str, number: int) -> bool:
    """Returns whether the run came out as a signal with this effect lets it."""
    reported = (run.directory / "report.json").exists()
    # A Python that is interrupted while it imports `site` has status 1.
    ended = run.status == 128 + number or (number == signal.SIGINT and run.status == 1)
    if effect in ("ends Stepscope", "ends Python"):
        return ended and not run.directory.exists()
    if effect == "goes to the command":
        too_late = run.status == STATUS and "done" in run.printed
        return (ended or too_late) and reported
    if effect == "skips the report":
        return run.status == STATUS and (reported or "make the report with `stepscope report" in run.said)
    assert effect in ("nothing", "pauses Stepscope"), effect
    return run.status == STATUS and reported


def _check_recording(run: _Run, where: str) -> None:
    """Checks that what is recorded can be read, and says how the command ended."""
    if not (run.directory / "run.json").exists():
        return
    ending = json.loads((run.directory / "run.json").read_text())
    assert ending["exit_status"] == run.status, f"{where}: {ending}"
    sampled = any(run.directory.glob("*/samples-*"))
    steps = sum(map(len, numbers_per_process(run.directory).values())) if sampled else 0
    if not (run.directory / "report.json").exists():
        assert can_be_reported(run.directory), f"{where}: no report can be made"
        return
    report = json.loads((run.directory / "report.json").read_text())
    assert sum(row["count"] for row in report["steps"]) == steps, f"{where}: {steps} steps are recorded"
