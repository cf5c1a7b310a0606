"""Ctrl-C at random moments of `stepscope run`: before, during and after the training, once or twice."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.observing import Observed
from trials import Attempt, trial

SCRIPT = """
import os, time, stepscope
print(os.environ["STEPSCOPE_LEDGER_DIR"], flush=True)
for _ in range(50):
    with stepscope.step("train"):
        time.sleep(0.01)
"""
LONGEST = 6.0  # seconds until Ctrl-C: a whole run takes about 3 on an idle machine


@trial(
    "After Ctrl-C at any moment no process, ledger or unfinished file remains, and recordings can be read.",
    count=40,
    short=3,
    of="runs",
)
def interrupted_run(attempt: Attempt) -> str:
    trained = reported = 0
    for number in attempt.rounds():
        directory = attempt.folder / f"run-{number}"
        with Observed(directory, SCRIPT) as run:
            attempt.sleep(LONGEST)
            run.send(signal.SIGINT)
            if number % 2:
                attempt.sleep(0.5)
                run.send(signal.SIGINT)
            status = run.status()
            assert status in (0, 1, 130, -signal.SIGINT), f"status {status}: {run.said}"
            assert not run.exporters(), f"an exporter remains: {run.said}"
            if run.printed:
                trained += 1
                assert not Path(run.printed.split()[0]).exists(), f"a ledger directory is left: {run.said}"
        left = [path.name for path in directory.rglob("*.unfinished")]
        assert not left, f"unfinished files are left: {left}"
        if (directory / "run.json").exists():
            reported += can_be_reported(directory)
    return (
        f"{attempt.count} interrupted, {trained} of them after the training began; "
        f"{reported} recordings, each with a report"
    )


def can_be_reported(directory: Path) -> bool:
    """Returns whether `stepscope report` makes a report, otherwise it must say in one line why not."""
    words = [sys.executable, "-m", "stepscope", "report", str(directory), "--out", f"{directory}-report"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 or (done.returncode == 2 and len(lines) == 1), done.stderr
    return done.returncode == 0
