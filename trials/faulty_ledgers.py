"""Faulty ledgers next to a healthy run: they cost their own metrics, and nothing else."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from trials import Attempt, trial
from trials.healthy import HealthyRun
from trials.ledgers import FAULTS, template, write

BATCH = 20  # ledgers at once


@trial(
    "Whatever a ledger holds costs that ledger's metrics only: the run next to it is counted, nothing leaks.",
    count=4000,
    short=100,
    of="faulty ledgers",
)
def faulty_ledgers(attempt: Attempt) -> str:
    refused: dict[str, float] = {}
    with HealthyRun(attempt, "--ledger-retention=100ms") as healthy:
        genuine = template(attempt.folder)
        for done in range(0, attempt.count, BATCH):
            attempt.progress(done)
            paths, held = _new_ledgers(attempt, healthy.ledgers, genuine)
            if attempt.random.random() < 0.5:
                healthy.check()  # they are open, and mapped, when they change
            for path in paths:
                with suppress(FileNotFoundError):  # the exporter may have removed a dead one
                    attempt.random.choice(list(FAULTS.values()))(path, attempt.random)
            samples = healthy.check()
            refused = {series: n for series, n in samples.items() if "ledgers_refused_total" in series}
            for descriptor in held:
                os.close(descriptor)
            for path in paths:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
                    missing_ok=True
                )
        usage = healthy.usage()
    steps = healthy.trainer.finished
    return f"{sum(refused.values()):,.0f} refused, no step lost of {steps:,} of the healthy run; {usage}"


def _new_ledgers(attempt: Attempt, directory: Path, genuine: bytes) -> tuple[list[Path], list[int]]:
    """Writes a batch of genuine ledgers. Every second one is live: its descriptor is returned, too."""
    paths, held = [], []
    for number in range(BATCH):
        path = directory / f"fuzz-{number}.{attempt.random.getrandbits(32):08x}.ledger"
        held.append(write(path, genuine, f"fuzz-{number}", live=bool(number % 2)))
        paths.append(path)
    return paths, [descriptor for descriptor in held if descriptor is not None]
