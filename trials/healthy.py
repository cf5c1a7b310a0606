"""A healthy run and its exporter, next to which a trial puts trouble."""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from pathlib import Path

from trials import Attempt
from trials.commands import SECONDS, Commands
from trials.counters import Counters
from trials.exporters import flags
from trials.trainers import RUN, Trainers

STEPS = f'stepscope_step_duration_seconds_count{{run="{RUN}",rank="0",phase="train"}}'
TICKS = "stepscope_sampler_ticks_total"
MEBIBYTE = 2**20
SETTLED = 4  # checks in which memory does not rise

_MAY_BE_ODD = re.compile(r"stepscope_run_gauge\b")  # of the training script, which may publish NaN


class HealthyRun:
    """A live run that takes a step every 5 ms, and the exporter that counts it.

    `check` says that neither has noticed anything. The end of the context says that no step was lost.
    """

    def __init__(self, attempt: Attempt, *more_flags: object, open_files: int = 0) -> None:
        (attempt.folder / "ledgers").mkdir(exist_ok=True)
        self.ledgers = attempt.folder / "ledgers"
        self.counters = Counters()
        address = f"--web.listen-address=127.0.0.1:{self.counters.port}"
        self._words = ["exporter", *flags(attempt.folder, address, *more_flags)]
        self._open_files = open_files
        self._commands = Commands(attempt.folder)
        self._trainers = Trainers(self.ledgers, attempt.folder)
        self._memory: list[float] = []  # MiB, at every check
        self._counted = 0.0

    def __enter__(self) -> "HealthyRun":
        self._commands.__enter__()
        self._trainers.__enter__()
        self.exporter = self._commands.run(*self._words, open_files=self._open_files)
        self.trainer = self._trainers.train(step_seconds=0.005)
        self._wait_until(lambda samples: samples.get(STEPS, 0.0) > 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.trainer.stop()
                self.counters.wait_for(STEPS, self.trainer.finished)
                self.exporter.stop()
        finally:
            self._trainers.__exit__()
            self._commands.__exit__()

    def check(self, ticks: int = 2) -> dict[str, float]:
        """Waits for that many ticks and returns a scrape. Fails if the run's counters do not rise."""
        samples = self._wait_until(lambda samples: TICKS in samples)
        due = samples[TICKS] + ticks
        samples = self._wait_until(
            lambda samples: samples.get(TICKS, 0.0) >= due and samples.get(STEPS, 0.0) > self._counted
        )
        self._counted = samples[STEPS]
        odd = [
            series for series, value in samples.items() if not (isfinite(value) or _MAY_BE_ODD.match(series))
        ]
        assert not odd, f"not finite: {odd[:3]}"
        self._memory.append(samples["process_resident_memory_bytes"] / MEBIBYTE)
        return samples

    def settle(self) -> None:
        """Waits until memory has stopped to rise: what was there before has been read."""
        self._memory.clear()
        while len(self._memory) < SETTLED or self._memory[-1] > self._memory[-SETTLED]:
            self.check()
        self._memory.clear()

    def usage(self) -> str:
        """Returns descriptors and memory in words. Fails if a removed file stays open, or memory grows."""
        end = self._wait_until(lambda _: not self._has_removed_files_open(), "removed files stay open")
        half = len(self._memory) // 2
        first, second = max(self._memory[:half]), max(self._memory[half:])
        assert second - first <= 4, f"memory grew by {second - first:.1f} MiB"
        return (
            f"{end['process_open_fds']:.0f} descriptors at the end, none of a removed file; "
            f"{second:.1f} MiB in the second half of the time after {first:.1f}"
        )

    def _has_removed_files_open(self) -> bool:
        for descriptor in Path(f"/proc/{self.exporter.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                if os.readlink(descriptor).endswith(" (deleted)"):
                    return True
        return False

    def _wait_until(
        self, condition: Callable[[dict[str, float]], bool], otherwise: str = "the run is not counted"
    ) -> dict[str, float]:
        deadline = time.monotonic() + SECONDS
        while not condition(samples := self.counters.scrape()):
            assert self.exporter.is_alive(), f"the exporter ended: {self.exporter.log.read_text()[-500:]}"
            assert time.monotonic() < deadline, f"{otherwise}: {self.exporter.log.read_text()[-500:]}"
            time.sleep(0.01)
        return samples
