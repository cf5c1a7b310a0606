"""Tries to break what Stepscope promises, and reports what was seen: `make trials`, or `python -m trials`.

A trial is a function with `@trial` in any module of this package; trials/README.md has one row per trial:

    @trial("A promise, as one sentence.", count=200, short=3, of="kills")
    def killed_thing(attempt: Attempt) -> str:
        for _ in attempt.rounds():
            delay = attempt.random.uniform(0.0, 0.1)
            ...
            assert counted == finished, f"{counted} steps counted, {finished} finished"
        return "worst: ..."

The text that it returns is what was seen, with figures. A failed assertion, or any other exception, is a
broken promise. The short form takes seconds. It is a test of `make test`, or tests/test_trials.py names a
smaller case of the same promise.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random

PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Trial:
    """A promise, and the function that tries to break it `count` times: kills, files, seconds, ..."""

    name: str
    promise: str
    perform: "Callable[[Attempt], str]"
    count: int
    short: int
    of: str


class NotPossibleError(Exception):
    """A trial that cannot be tried here: what it needs."""


class Attempt:
    """One performance of a trial: its count, its random numbers, and its own folder."""

    def __init__(self, trial: Trial, count: int, seed: int, folder: Path) -> None:
        self.count = count
        self.seed = seed
        self.folder = folder
        self.random = Random(f"{trial.name} {seed}")
        self._trial = trial
        self._next_line = time.monotonic() + PROGRESS_SECONDS

    def rounds(self) -> Iterator[int]:
        """Yields 0, 1, ... up to the count, and prints progress."""
        for number in range(self.count):
            self.progress(number)
            yield number

    def sleep(self, longest: float) -> None:
        """Sleeps for a random time, up to `longest` seconds."""
        time.sleep(self.random.uniform(0.0, longest))

    def progress(self, done: float) -> None:
        """Prints how much is done, every few seconds."""
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PROGRESS_SECONDS
            print(f"{self._trial.name}: {done:,.0f} of {self.count:,} {self._trial.of}", file=sys.stderr)


_trials: dict[str, Trial] = {}


def trial(
    promise: str, *, count: int, short: int, of: str
) -> Callable[[Callable[[Attempt], str]], Callable[[Attempt], str]]:
    """Registers a trial under its function's name: `count` of the long form, `short` of the test's."""

    def register(perform: Callable[[Attempt], str]) -> Callable[[Attempt], str]:
        name = perform.__name__
        assert name not in _trials, f"two trials are called {name}"
        _trials[name] = Trial(name, promise, perform, count, short, of)
        return perform

    return register


def all_trials() -> dict[str, Trial]:
    """Returns every trial by name, in the order of the modules and of the functions in them."""
    for module in sorted(module.name for module in iter_modules(__path__) if module.name != "__main__"):
        import_module(f"{__name__}.{module}")
    return _trials
