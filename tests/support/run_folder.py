"""A folder of runs, as `stepscope run` leaves it."""

from dataclasses import replace
from pathlib import Path

from stepscope.report.write import write_report
from stepscope.runs.recording.files import RunFile

from tests.support import analysis as made

START = 1_795_000_000.0


def recorded(folder: Path, directory: str, begun: float, *, end: bool = True, exit_status: int = 0) -> Path:
    """A run of "train" of which nothing but its run.json was written."""
    path = folder / directory
    path.mkdir(parents=True)
    ended = START + begun + 600 if end else None
    status = exit_status if end else None
    RunFile("train", start=START + begun, end=ended, exit_status=status, run=directory).write(path)
    return path


def reported(
    folder: Path, directory: str, begun: float, *, step: float = 0.5, price: float | None = None
) -> Path:
    """A run of "train" with its report, in which every training step took `step` seconds."""
    path = recorded(folder, directory, begun)
    analysis = made.slow_loader()
    seconds = (analysis.end or 0.0) - (analysis.start or 0.0)
    analysis = replace(
        analysis,
        name="train",
        run=directory,
        start=START + begun,
        end=START + begun + seconds,
        steps=[replace(row, mean=step) for row in analysis.steps],
    )
    write_report(analysis, path, price)
    return path
