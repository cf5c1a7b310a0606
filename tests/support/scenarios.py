"""The demo's scenarios, each written at once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.runs.open import open_source

from tests.support.as_debugger import write_as_debugger
from tests.support.world import world


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
    """Writes each scenario when it is first asked for, once per tree."""

    def __init__(self) -> None:
        self.written = cache(_written)


def _written(name: str) -> WrittenScenario:
    made = world(f"recording-{name}", lambda folder: _write(name, folder))
    return WrittenScenario(made / "recording", made / "debugger")


def _write(name: str, folder: Path) -> None:
    recording = folder / "recording"
    command = [sys.executable, "-m", "stepscope", "demo", name, f"--write-recording={recording}"]
    subprocess.run(command, check=True)
    write_as_debugger(recording, folder / "debugger")
