"""kill -9 of training processes: what they finished is counted and recorded, and nothing else is."""

from pathlib import Path

from tests.support.exporter_process import ExporterProcess
from trials import Attempt, trial
from trials.exporters import flags, numbers_per_process
from trials.trainers import RUN, Trainer, Trainers

RANKS = 8  # every rank is killed and started again many times
KEEPER = RANKS  # the rank that lives all the time, so that the run continues
STEPS = 8000  # fewer than a ledger's ring holds, so the exporter may be late and must not miss one
# (seconds per step, seconds until the kill at most): the first kind of process does nothing but record, so
# that kills hit the code that writes the ledger.
KINDS = ((0.0, 0.015), (2e-4, 0.04))


@trial(
    "Every step that a training process finished before `kill -9` is counted and recorded once.",
    count=200,
    short=6,
    of="kills",
)
def killed_trainer(attempt: Attempt) -> str:
    recording = attempt.folder / "recording"
    ledgers = attempt.folder / "ledgers"
    flags_ = flags(attempt.folder, "--ledger-retention=200ms", f"--recording.dir={recording}")
    finished = inside = unborn = 0
    killed: list[tuple[int, Trainer]] = []
    with ExporterProcess(*flags_) as exporter, Trainers(ledgers, attempt.folder) as trainers:
        keeper = trainers.train(rank=KEEPER, step_seconds=0.01)
        counted = [0.0] * RANKS
        for number in attempt.rounds():
            rank = number % RANKS
            step_seconds, life = KINDS[number // RANKS % len(KINDS)]
            trainer = trainers.train(rank, step_seconds, STEPS)
            attempt.sleep(life)
            trainer.kill()
            killed.append((rank, trainer))
            after = _counted_after_two_ticks(exporter, rank)
            gained = after - counted[rank]
            assert trainer.finished <= gained <= trainer.begun, (
                f"kill {number + 1}: {trainer.finished} steps finished, {trainer.begun} begun, "
                f"{gained:.0f} counted"
            )
            counted[rank] = after
            finished += trainer.finished
            inside += gained > trainer.finished
            unborn += trainer.begun <= 1
        keeper.stop()
        exporter.stop()
    _everything_is_recorded_once(recording, [*killed, (KEEPER, keeper)])
    return (
        f"{finished:,} steps of killed processes: 0 lost, 0 counted twice, in metrics and recording; "
        f"{inside} kills hit a step that was already counted, {unborn} came before the first step"
    )


def _counted_after_two_ticks(exporter: ExporterProcess, rank: int) -> float:
    """Returns the steps counted for a rank once its last process was read after its death."""
    ticks = exporter.scrape().value("stepscope_sampler_ticks_total")
    exporter.wait_for(lambda: exporter.scrape().value("stepscope_sampler_ticks_total") >= ticks + 2)
    name = "stepscope_step_duration_seconds_count"
    labels = {"run": RUN, "rank": str(rank), "phase": "train"}
    return exporter.scrape().samples.get((name, frozenset(labels.items())), 0.0)


def _everything_is_recorded_once(recording: Path, trainers: list[tuple[int, Trainer]]) -> None:
    recorded = numbers_per_process(recording)
    for rank, trainer in trainers:
        numbers = recorded.pop((rank, trainer.pid), [])
        assert numbers == list(range(len(numbers))), f"rank {rank} has steps missing or twice: {numbers}"
        assert trainer.finished <= len(numbers) <= trainer.begun, (
            f"rank {rank}: {trainer.finished} steps finished, {trainer.begun} begun, {len(numbers)} recorded"
        )
    assert not recorded, f"the recording has processes that never were: {list(recorded)}"
