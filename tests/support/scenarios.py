"""The demo's scenarios, each written at once, and only once in a test session."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from trainwatch.evaluation.analysis import Analysis
from trainwatch.evaluation.engine import evaluate
from trainwatch.runs.open import open_source

from tests.support.as_debugger import write_as_debugger

SECONDS = 170  # how long a busy machine may take to write a run


@dataclass(frozen=True)
class WrittenScenario:
    """A scenario's recording and its Debugger output (do not change them), and their analyses."""

    recording_directory: Path
    debugger_directory: Path

    @cached_property
    def recording(self) -> Analysis:
        return evaluate(open_source(self.recording_directory))

    @cached_property
    def debugger(self) -> Analysis:
        return evaluate(open_source(self.debugger_directory))


class WrittenScenarios:
    """Writes each scenario when it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.written = cache(self._write)

    def _write(self, name: str) -> WrittenScenario:
        recording, debugger = self._directory / name / "recording", self._directory / name / "debugger"
        flags = ["--write-recording", str(recording)]
        subprocess.run(
            [sys.executable, "-m", "trainwatch", "demo", name, *flags], check=True, timeout=SECONDS
        )
        write_as_debugger(recording, debugger)
        return WrittenScenario(recording, debugger)
