"""kill -9 of a rank and of the exporter, in either order: the rank's counters never fall, and count once."""

import time

from trials import Attempt, trial
from trials.commands import Commands
from trials.counters import Counters
from trials.exporters import flags
from trials.trainers import RUN, Trainers

KEPT = f'stepscope_step_duration_seconds_count{{run="{RUN}",rank="0",phase="train"}}'
RESTARTED = f'stepscope_step_duration_seconds_count{{run="{RUN}",rank="1",phase="train"}}'
TICKS = "stepscope_sampler_ticks_total"


@trial(
    "When ranks and exporter are killed and restarted in any order, no counter falls, and steps count once.",
    count=200,
    short=6,
    of="kills",
)
def killed_both(attempt: Attempt) -> str:
    counters = Counters()
    address = f"--web.listen-address=127.0.0.1:{counters.port}"
    words = flags(attempt.folder, "--ledger-retention=50ms", address)  # dead ledgers are removed at once
    finished = begun = 0
    with (
        Commands(attempt.folder) as commands,
        Trainers(attempt.folder / "ledgers", attempt.folder) as trainers,
    ):
        trainers.train(rank=0, step_seconds=0.005)  # lives all the time, so that the run continues
        rank = trainers.train(rank=1, step_seconds=0.001)
        exporter = commands.run("exporter", *words)
        for _ in attempt.rounds():
            if attempt.random.random() < 0.5:
                counters.wait_for(RESTARTED)
            counters.scrape_until(time.monotonic() + attempt.random.uniform(0.0, 0.1))
            if attempt.random.random() < 0.5:
                rank.kill()
                finished, begun = finished + rank.finished, begun + rank.begun
                rank = trainers.train(rank=1, step_seconds=0.001)
            else:
                exporter.kill()
                exporter = commands.run("exporter", *words)
        rank.stop()
        finished, begun = finished + rank.finished, begun + rank.begun
        ticks = counters.wait_for(KEPT)[TICKS]
        while (latest := counters.scrape()).get(TICKS, 0.0) < ticks + 5:
            assert exporter.is_alive(), exporter.log.read_text()
    counted = latest[RESTARTED]
    assert finished <= counted <= begun, f"{finished} steps finished, {begun} begun, {counted:.0f} counted"
    return (
        f"{finished:,} steps finished, {begun - finished} cut off by a kill, {counted:,.0f} counted; "
        f"{counters.scrapes} scrapes, no counter lower than before"
    )
