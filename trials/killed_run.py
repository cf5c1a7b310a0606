"""kill -9 of `stepscope run`, of its exporter, or of both: a report can be made, and states gaps."""

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil

from trials import Attempt, trial
from trials.commands import SECONDS, Commands
from trials.exporters import numbers_per_process, recorded
from trials.trainers import Trainer, new_counts

INTERVAL = 0.02  # seconds between two samples
STEP_SECONDS = 0.001  # the ledger's ring then holds 8 seconds, more than a restart takes
TRAIN = f"import sys; from trials.trainers import forked; forked({{}}, sys.argv[1], {STEP_SECONDS}, 10**9)"


@trial(
    "After `kill -9` of `stepscope run`, its exporter, or both, a report has the steps and states the gaps.",
    count=200,
    short=3,
    of="kills",
)
def killed_run(attempt: Attempt) -> str:
    kinds = (_kill_exporter, _kill_run, _kill_both)
    steps = missed = unseen = 0
    with Commands(attempt.folder) as commands:
        for number in attempt.rounds():
            run = _Run(commands, attempt.folder / f"run-{number}")
            attempt.sleep(0.5)
            finished = kinds[number % len(kinds)](run, attempt.random.uniform(0.0, 1.5))
            recorded_steps, missed_samples = _check(run)
            steps += recorded_steps
            missed += missed_samples
            unseen = max(unseen, finished - recorded_steps)
            if kinds[number % len(kinds)] is not _kill_both:
                assert recorded_steps >= finished, f"{finished} steps finished, {recorded_steps} recorded"
    return (
        f"{attempt.count} reports, with {steps:,} steps, none missing or twice; {missed:,} samples "
        f"were missed and stated; when both were killed, at most the last {unseen} steps were not recorded"
    )


class _Run:
    """`stepscope run` and its trainer, which has begun its first step."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        folder.mkdir()
        self.commands = commands
        self.directory = folder / "recording"
        counts = new_counts(folder / "counts")
        flags = ["--interval=20ms", "--listen=127.0.0.1:0", "--live-interval=1h", f"--out={self.directory}"]
        self.command = commands.run("run", *flags, "--", sys.executable, "-c", TRAIN, str(counts))
        self.trainer = Trainer(0, counts)
        _wait(lambda: self.trainer.begun > 0, self.command.log.read_text)
        children = {
            "exit-with-parent" in str(child.cmdline()): child
            for child in psutil.Process(self.command.pid).children()
        }
        self.exporter, self.training = children[True], children[False]

    def report(self) -> None:
        """Makes the report from what is left."""
        report = self.commands.run("report", str(self.directory))
        assert report.status() == 0, report.log.read_text()


def _kill_exporter(run: _Run, seconds: float) -> int:
    """Returns how many steps the trainer finished: it ends before or after the exporter is there again."""
    run.exporter.kill()
    time.sleep(seconds)
    run.training.terminate()
    assert run.command.status() == 0, run.command.log.read_text()
    return run.trainer.finished


def _kill_run(run: _Run, _: float) -> int:
    """Returns how many steps were finished at the kill; the exporter records them, and ends."""
    finished = run.trainer.finished
    run.command.kill()
    _wait(lambda: _has_ended(run.exporter), run.command.log.read_text)
    run.training.kill()
    run.report()
    return finished


def _kill_both(run: _Run, _: float) -> int:
    """Returns how many steps were finished at the kill; nobody is left who could record the last of them."""
    finished = run.trainer.finished
    run.exporter.kill()
    run.command.kill()
    run.training.kill()
    run.report()
    return finished


def _check(run: _Run) -> tuple[int, int]:
    """Compares report and recording with what happened. Returns the recorded steps and the missed samples."""
    numbers = next(iter(numbers_per_process(run.directory).values()), [])  # none after an early double kill
    assert numbers == list(range(len(numbers))), "steps are missing in between, or are there twice"
    assert len(numbers) <= run.trainer.begun, f"{run.trainer.begun} steps were begun, {len(numbers)} recorded"
    report = json.loads((run.directory / "report.json").read_text())
    steps = sum(row["count"] for row in report["steps"])
    assert steps == len(numbers), f"the report has {steps} of {len(numbers)} steps"
    times = [time for (time,) in recorded(run.directory, "samples", "time")]
    gaps = [round((after - before) / INTERVAL) - 1 for before, after in pairwise(times)]
    missed = sum(max(0, gap) for gap in gaps)
    stated = report["measurement"]["samples_missed"]
    assert stated == missed, f"{missed} samples are missing, the report says {stated}"
    listed = sum(gap["count"] for gap in report["gaps"] if gap["what"] == "samples")
    assert listed == missed, f"{missed} samples are missing, the report's gaps list {listed}"
    return len(numbers), missed


def _has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def _wait(condition: Callable[[], bool], log: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, log()
        time.sleep(0.01)
