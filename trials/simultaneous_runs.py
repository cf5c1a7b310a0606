"""Many `stepscope run` at once, in one folder: each needs a port, a directory and room for its ledgers."""

import re
import subprocess
import sys
import time
from pathlib import Path

from tests.support.observing import RUN
from tests.support.servers import is_ready
from trials import Attempt, trial

SECONDS = 600.0  # for all of them to start: each imports numpy and pyarrow, twice
# Trains until the file `end` exists, or its run is killed: until then every run holds its port.
SCRIPT = """
import os, time, stepscope
run = os.getppid()
while not os.path.exists("end") and os.getppid() == run:
    with stepscope.step("train"):
        time.sleep(0.02)
"""


@trial(
    "Runs that start at the same moment all get their own port and directory, and print their address.",
    count=40,
    short=8,
    of="runs",
)
def simultaneous_runs(attempt: Attempt) -> str:
    (attempt.folder / "train.py").write_text(SCRIPT)
    logs = [attempt.folder / f"{number}.log" for number in range(attempt.count)]
    runs = [_start(log) for log in logs]
    begin = time.monotonic()
    try:
        addresses = [_address(log, run) for log, run in zip(logs, runs, strict=True)]
        started = time.monotonic() - begin
        assert len(set(addresses)) == attempt.count, f"an address was printed twice: {sorted(addresses)}"
        for address in addresses:
            _wait_until_ready(address)
        (attempt.folder / "end").touch()
        statuses = [run.wait(SECONDS) for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert set(statuses) == {0}, f"exit statuses {statuses}"
    directories = list((attempt.folder / "stepscope-runs").iterdir())
    reports = [each for each in directories if (each / "report.json").exists()]
    assert len(reports) == attempt.count, f"{len(directories)} directories, {len(reports)} with a report"
    return (
        f"{attempt.count} addresses, directories and reports, no two the same; "
        f"the last address was printed after {started:.0f} s"
    )


def _start(log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        words = [*RUN, "--", sys.executable, "train.py"]
        return subprocess.Popen(words, cwd=log.parent, stdin=subprocess.DEVNULL, stderr=output, stdout=output)


def _address(log: Path, run: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + SECONDS
    while (found := re.search(r"http://(\S+)/report \(live\)", log.read_text())) is None:
        assert run.poll() is None, f"a run ended with status {run.returncode}: {log.read_text()}"
        assert time.monotonic() < deadline, f"no address after {SECONDS:.0f} s: {log.read_text()}"
        time.sleep(0.1)
    return found[1]


def _wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_ready(f"http://{address}/-/ready"):
        assert time.monotonic() < deadline, f"{address} does not answer"
        time.sleep(0.1)
