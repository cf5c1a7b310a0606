"""Real training processes for tests: a script in a process of its own, and the ledgers that it leaves."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepscope.exporter.ledgers.reader import LedgerReader, LedgerTotals, StepRecord, open_ledgers

from tests.support.waiting import SECONDS, wait_until

EXPORTER = str(Path(__file__).parents[2] / "exporter")
# What the scripts start with: `say` tells the test that a point is reached, `hold` waits for the test.
PREAMBLE = """\
import os, sys, time
import stepscope
def say(text="ready"):
    os.write(1, f"{text}\\n".encode())  # print() raises if a signal's handler also prints
def hold():
    say()
    sys.stdin.readline()
"""


@dataclass(frozen=True)
class Finished:
    """A training process that has ended, and what its ledger held then."""

    output: str
    errors: str
    totals: LedgerTotals
    steps: list[StepRecord]
    lost: int


@contextmanager
def training(
    script: str,
    directory: Path,
    environment: dict[str, str] | None = None,
    launcher: tuple[str, ...] = (),
    file: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Runs a script as a training process; killed, if need be, when the block ends.

    `file` is where to write the script first: spawned workers import it again.
    """
    text = PREAMBLE + textwrap.dedent(script)
    arguments = [sys.executable, "-W", "error", "-c", text]
    if file is not None:
        file.write_text(text)
        arguments = [sys.executable, "-W", "error", str(file)]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("STEPSCOPE", "SLURM", "OMPI"))}
    process = subprocess.Popen(
        [*launcher, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **inherited,
            "PYTHONPATH": EXPORTER,
            "STEPSCOPE_LEDGER_DIR": str(directory),
            **(environment or {}),
        },
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)


def wait_for_line(process: subprocess.Popen[str], line: str = "ready") -> None:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if said != line:
        process.kill()
        raise AssertionError(f"said {said!r}, stderr: {process.stderr and process.stderr.read()}")


def wait_until_held(process: subprocess.Popen[str]) -> None:
    """Waits until a process is held. It still runs when it has said so: on a busy machine, for a while."""
    wait_for_line(process)
    reads_stdin = ["0", "0x0"], ["63", "0x0"]  # read(0, ...), on x86-64 and on ARM
    call = Path(f"/proc/{process.pid}/syscall")
    wait_until(lambda: call.read_text().split()[:2] in reads_stdin, "reading")


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def only_ledger(directory: Path) -> LedgerReader:
    (path,) = open_ledgers(directory)
    return LedgerReader(path)


def run_to_end(
    script: str, directory: Path, environment: dict[str, str] | None = None, file: Path | None = None
) -> Finished:
    """Runs a script, which must end with status 0 and leave exactly one ledger, and reads that."""
    with training(script, directory, environment, file=file) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    with only_ledger(directory) as reader:
        assert not reader.alive()
        steps, lost = reader.new_steps()
        return Finished(output, errors, reader.totals(), steps, lost)
