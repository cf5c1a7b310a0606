"""A healthy run on a node full of other people's ledgers: corrupt ones, dead ones, and many."""

import os
import time

from trials import Attempt, trial
from trials.commands import SECONDS
from trials.healthy import HealthyRun
from trials.ledgers import FAULTS, infinite_wait, template, write

CORRUPT = 20
LONG = (1500, 512, "500ms")  # dead ledgers, open files, time between two samples
SHORT = (150, 64, "100ms")  # for a trial of some seconds


@trial(
    "A healthy run next to twenty corrupt ledgers, an infinite wait and 1,500 dead ledgers keeps counting, "
    "under a limit of 512 open files.",
    count=600,
    short=1,
    of="seconds",
)
def crowded_node(attempt: Attempt) -> str:
    dead, open_files, interval = LONG if attempt.count >= 60 else SHORT
    ledgers = attempt.folder / "ledgers"
    ledgers.mkdir()
    genuine = template(attempt.folder)
    for number in range(dead):
        write(ledgers / f"dead-{number}.ledger", genuine, f"dead-{number // 8}", rank=number % 8)
    for number, fault in zip(range(CORRUPT), FAULTS.values(), strict=True):
        path = ledgers / f"corrupt-{number}.ledger"
        write(path, genuine, f"corrupt-{number}")
        fault(path, attempt.random)
    infinite = ledgers / "infinite.ledger"
    held = write(infinite, genuine, "infinite", live=True)
    infinite_wait(infinite, attempt.random)
    with HealthyRun(attempt, f"--sample-interval={interval}", open_files=open_files) as healthy:
        healthy.settle()
        deadline = time.monotonic() + attempt.count
        while (left := deadline - time.monotonic()) > 0:
            attempt.progress(attempt.count - left)
            healthy.check()
        usage = healthy.usage()
    assert held is not None
    os.close(held)
    return f"{healthy.trainer.finished:,} steps, all counted, their counter always rose; {usage}"


@trial(
    "With 10,000 dead ledgers the exporter is ready within seconds, and removes them over time.",
    count=10_000,
    short=300,
    of="dead ledgers",
)
def dead_ledgers(attempt: Attempt) -> str:
    ledgers = attempt.folder / "ledgers"
    ledgers.mkdir()
    genuine = template(attempt.folder)
    for number in range(attempt.count):
        write(ledgers / f"dead-{number}.ledger", genuine, f"dead-{number // 8}", rank=number % 8)
    begin = time.monotonic()
    with HealthyRun(
        attempt, "--ledger-retention=1s", "--run-retention=1s", "--sample-interval=500ms"
    ) as healthy:
        ready = time.monotonic() - begin
        left = attempt.count
        deadline = begin + 10 * SECONDS
        while (left := len(list(ledgers.glob("dead-*")))) and time.monotonic() < deadline:
            attempt.progress(attempt.count - left)
            healthy.check()
        removed = time.monotonic() - begin
        assert not left, f"{left:,} of {attempt.count:,} dead ledgers are still there"
        healthy.check()
    return (
        f"a live run was counted after {ready:.1f} s, the last dead ledger was removed after {removed:.0f} s"
    )
