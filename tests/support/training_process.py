"""A training process that uses the real API and does what a test tells it, line by line."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from stepscope.training.launch import Launch

from tests.support.environment import unobserved
from tests.support.waiting import SECONDS

# Reads Python, one repr a line, runs it and answers. With a clock of the test's own where it wants
# one: `clock.now` is what every clock of the process says, so that durations are exact.
PROGRAM = """
import sys, time
class Clock:
    now = 0.0
clock = Clock()
if len(sys.argv) > 1:
    clock.now = float(sys.argv[1])
    for name in ("perf_counter", "time", "monotonic"):
        setattr(time, name, lambda: clock.now)
    time.clock_gettime = lambda of: 0.0  # since boot: so the process has just begun
import stepscope
scope = {"clock": clock, "stepscope": stepscope}
print("ready", flush=True)
for line in sys.stdin:
    exec(eval(line), scope)
    print("done", flush=True)
"""


LAUNCH = "a launch of the tests"


def label(name: str) -> str:
    """Returns the label of the run of this name that LAUNCH launched."""
    return Launch(name, LAUNCH).run


RESNET = label("resnet")


class TrainingProcess:
    """All of a test are ranks of one launch, unless the test says otherwise.

    Leaving the context ends the process in good order, unless it was killed before.

    Without `ledgers` it writes its ledger where a script without any setting does. `sandbox` is put before
    its command.
    """

    def __init__(
        self,
        ledgers: Path | None,
        run: str = "resnet",
        rank: int = 0,
        clock: float | None = None,
        sandbox: Sequence[str] = (),
        launch: str = LAUNCH,
    ) -> None:
        environment = unobserved()
        environment |= {"STEPSCOPE_RUN": run, "STEPSCOPE_LAUNCH": launch}
        if ledgers is not None:
            environment["STEPSCOPE_LEDGER_DIR"] = str(ledgers)
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        words = [*sandbox, sys.executable, "-c", PROGRAM, *([] if clock is None else [str(clock)])]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._expect("ready")

    def __enter__(self) -> "TrainingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def do(self, code: str) -> None:
        """Runs Python in the process, where `stepscope` and `clock` are known, and waits for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{code!r}\n")
        self.process.stdin.flush()
        self._expect("done")

    def steps(self, *durations: float, phase: str = "train") -> None:
        """Takes steps that last exactly so many seconds of the process's own clock."""
        for duration in durations:
            self.do(f"stepscope.begin_step({phase!r}); clock.now += {duration!r}; stepscope.end_step()")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Closes its input, upon which it ends, and waits."""
        self.process.communicate(timeout=SECONDS)

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        assert answer == word, f"the training process answered {answer!r}"
