"""Completes the recording of a simulated run with what is known about the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepscope import __version__
from stepscope.common.errors import UserError
from stepscope.demo.node import INTERVAL
from stepscope.demo.scenario import Scenario
from stepscope.exporter.ledgers.endings import FINISHED

ENDED_BY_SIGTERM = 143


class Written:
    """The recording of a run, if there is one. The exporter writes its samples.

    Raises UserError if the directory is not new or cannot be written.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        run: str,
        start: float,
        recording: Path | None,
    ) -> None:
        self._recording = recording
        if recording:
            _make_new(recording)
            from stepscope.runs.recording.files import RunFile  # numpy, only for recordings

            self._run = RunFile(
                name=run,
                start=start,
                command=f"stepscope demo {scenario.name} --seed {seed}  (simulated, nothing was measured)",
                interval=INTERVAL,
                versions={"stepscope": __version__, "simulated": f"{scenario.name}, seed {seed}"},
            )
            self._run.write(recording)

    def end(self, moment: float, well: bool) -> None:
        """Completes run.json after the exporter has closed. Unfinished runs get the status of SIGTERM."""
        if self._recording:
            status, ended = (0, FINISHED) if well else (ENDED_BY_SIGTERM, "signal SIGTERM")
            replace(self._run, end=moment, exit_status=status, ended=ended).write(self._recording)


def _make_new(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: already exists; choose a new or empty directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror}; choose another directory") from None
