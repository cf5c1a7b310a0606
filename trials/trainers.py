"""Training processes for trials, each with its own count of the steps that it took.

A trainer writes how many steps it began and finished into a file that Stepscope does not know. A trial
compares that with what Stepscope says, after it has killed the trainer.
"""

import mmap
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import stepscope
from stepscope.training.launch import Launch

from trials.forks import Forks, end

_COUNTS = Struct("@QQ")  # steps begun, steps finished


@dataclass(frozen=True)
class Trainer:
    """A training process. It trains until it is killed or has finished its steps, then it waits."""

    pid: int
    counts: Path

    @property
    def begun(self) -> int:
        """Returns how many steps it has begun; a step may be finished and not yet counted as such."""
        return int(_COUNTS.unpack(self.counts.read_bytes())[0])

    @property
    def finished(self) -> int:
        """Returns how many steps it knows that it finished."""
        return int(_COUNTS.unpack(self.counts.read_bytes())[1])

    def kill(self) -> None:
        """Kills it with SIGKILL and waits until its locks are released."""
        end(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Lets it finish its step and end its run cleanly, and waits for that."""
        end(self.pid, signal.SIGTERM)


LAUNCH = "one launch"
RUN = Launch("trial", LAUNCH).run


class Trainers(Forks):
    """Starts trainers of one run, which has its ledgers in `ledgers`. The context's end ends them all."""

    def __init__(self, ledgers: Path, folder: Path) -> None:
        super().__init__(__name__)
        self._environment = {
            "STEPSCOPE_RUN": "trial",
            "STEPSCOPE_LAUNCH": LAUNCH,
            "STEPSCOPE_LEDGER_DIR": str(ledgers),
        }
        self._folder = folder
        self._number = 0

    def __enter__(self) -> "Trainers":
        super().__enter__()
        return self

    def train(
        self, rank: int = 0, step_seconds: float = 0.0, steps: int = 10**9, **environment: str
    ) -> Trainer:
        """Starts a trainer. It takes `steps` steps of `step_seconds`, or as fast as it can if that is 0."""
        self._number += 1
        counts = new_counts(self._folder / f"counts-{self._number}")
        pid = self.start(
            {**self._environment, "RANK": str(rank), **environment}, str(counts), step_seconds, steps
        )
        return Trainer(pid, counts)


def new_counts(path: Path) -> Path:
    """Makes the file in which a trainer counts."""
    path.write_bytes(_COUNTS.pack(0, 0))
    return path


def forked(environment: Mapping[str, str], counts: str, step_seconds: float, steps: int) -> None:
    """Trains until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    os.environ.update(environment)
    with open(counts, "r+b") as file:
        count = memoryview(mmap.mmap(file.fileno(), _COUNTS.size)).cast("Q")
    step = 0
    while not stopping:
        if step == steps:
            time.sleep(0.02)
            continue
        step += 1
        count[0] = step
        stepscope.begin_step()
        stepscope.mark("forward")
        if step_seconds:
            time.sleep(step_seconds)
        stepscope.end_step()
        count[1] = step
    stepscope.finish()
