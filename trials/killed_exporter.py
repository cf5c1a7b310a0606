"""kill -9 of the exporter: counters of the live run never fall, and the recording has every step once."""

import time

from trials import Attempt, trial
from trials.commands import Commands
from trials.counters import Counters
from trials.exporters import flags, numbers_per_process, recorded
from trials.trainers import RUN, Trainers

LIFE = 0.3  # seconds until the kill, at most: from the start, or from the first sample
STEP_SECONDS = 0.001  # the ledger's ring then holds 8 seconds, much more than a restart takes
STEPS = f'stepscope_step_duration_seconds_count{{run="{RUN}",rank="0",phase="train"}}'
SAMPLES = f'stepscope_samples_total{{run="{RUN}"}}'
TICKS = "stepscope_sampler_ticks_total"


@trial(
    "Over `kill -9` of the exporter, no counter of a live run falls, and every step is recorded once.",
    count=200,
    short=5,
    of="kills",
)
def killed_exporter(attempt: Attempt) -> str:
    recording = attempt.folder / "recording"
    counters = Counters()
    words = [
        *flags(attempt.folder, f"--recording.dir={recording}"),
        f"--web.listen-address=127.0.0.1:{counters.port}",
    ]
    early = 0
    with (
        Commands(attempt.folder) as commands,
        Trainers(attempt.folder / "ledgers", attempt.folder) as trainers,
    ):
        trainer = trainers.train(step_seconds=STEP_SECONDS)
        for number in attempt.rounds():
            exporter = commands.run("exporter", *words)
            if number % 2:  # otherwise the ring may run over before an exporter lives long enough to read it
                counters.wait_for(STEPS)
            scraped = counters.scrape_until(time.monotonic() + attempt.random.uniform(0.0, LIFE))
            assert exporter.is_alive(), exporter.log.read_text()
            exporter.kill()
            early += not scraped
            assert scraped.get(STEPS, 0.0) <= trainer.begun, "a step was counted twice"
        exporter = commands.run("exporter", *words)
        trainer.stop()
        latest = counters.wait_for(STEPS, trainer.finished)
        exporter.stop()
    (numbers,) = numbers_per_process(recording).values()
    missing = sorted(set(range(trainer.finished)) - set(numbers))
    assert not missing, (
        f"{len(missing)} of {trainer.finished} steps were not recorded, from step {missing[0]}"
    )
    assert len(numbers) == trainer.finished, f"{len(numbers) - trainer.finished} steps were recorded twice"
    times = [time for (time,) in recorded(recording, "samples", "time")]
    assert times == sorted(set(times)), "a sample was recorded twice"
    counted, idle = latest[SAMPLES], latest[TICKS]  # the last exporter's samples may come after the run's end
    assert -attempt.count - idle <= counted - len(times) <= attempt.count, (
        f"{counted:.0f} samples are counted, {len(times)} are recorded"
    )
    return (
        f"{trainer.finished:,} steps, all recorded once; {counters.scrapes} scrapes, no counter lower than "
        f"before; {counted:,.0f} samples counted, {len(times):,} recorded; {early} kills came before a sample"
    )
