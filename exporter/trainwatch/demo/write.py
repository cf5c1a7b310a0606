"""Writes a simulated run to disk: as a recording, as Debugger's output, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trainwatch import __version__
from trainwatch.demo.debugger import DebuggerWriter
from trainwatch.demo.node import INTERVAL
from trainwatch.demo.scenario import Scenario
from trainwatch.errors import UserError
from trainwatch.exporter.exporter import Exporter
from trainwatch.runs.recording.run_file import RunFile

ENDED_BY_SIGTERM = 143
CATCH_UP_TICKS = 50  # well below what the recording's queue holds


def check_new(directory: Path) -> None:
    """Raises UserError where there is something already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: exists already; give a directory that is new or empty")


@dataclass
class Written:
    """What a run is written to besides being served."""

    recording: Path | None = None
    debugger: DebuggerWriter | None = None
    run: RunFile | None = None

    @classmethod
    def begin(
        cls,
        scenario: Scenario,
        seed: int,
        run: str,
        start: float,
        recording: Path | None,
        debugger: Path | None,
    ) -> Written:
        """Raises UserError where a directory is not new or cannot be written."""
        for directory in filter(None, (recording, debugger)):
            check_new(directory)
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{directory}: {error.strerror}; choose another directory") from None
        written = cls(recording, DebuggerWriter(debugger, scenario, start) if debugger else None)
        if recording:
            written.run = RunFile(
                name=run,
                start=start,
                command=f"trainwatch demo {scenario.name} --seed {seed}  (simulated, nothing was measured)",
                interval=INTERVAL,
                versions={"trainwatch": __version__, "simulated": f"{scenario.name}, seed {seed}"},
            )
            written.run.write(recording)
        return written

    def end(self, moment: float, well: bool) -> None:
        """Completes what was written, behind the exporter. A run that goes on is ended by a signal."""
        if self.recording and self.run:
            status = 0 if well else ENDED_BY_SIGTERM
            replace(self.run, end=moment, exit_status=status).write(self.recording)
        if self.debugger:
            self.debugger.close()


def run_at_once(
    exporter: Exporter, ticks: int, advance: Callable[[float], None], progress: Callable[[int], None]
) -> None:
    """Takes so many samples one after the other; `advance` lets simulated time pass between two."""
    for tick in range(ticks):
        if tick:
            advance(INTERVAL)
        exporter.tick()
        if tick % CATCH_UP_TICKS == 0:
            exporter.catch_up()
        progress(tick + 1)
