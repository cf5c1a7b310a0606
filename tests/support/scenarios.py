"""The demo's scenarios: each is written once per tree, and evaluated once."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
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
    """A scenario's recording, its Debugger output, and their analyses. Do not change them."""

    name: str

    @cached_property
    def recording_directory(self) -> Path:
        return self._world("recording", self._record) / "recording"

    @cached_property
    def debugger_directory(self) -> Path:
        recording = self.recording_directory
        return self._world("debugger", lambda out: write_as_debugger(recording, out)) / "debugger"

    @cached_property
    def recording(self) -> Analysis:
        return self._analysis("recording", self.recording_directory)

    @cached_property
    def debugger(self) -> Analysis:
        return self._analysis("debugger", self.debugger_directory)

    def _record(self, out: Path) -> None:
        command = [sys.executable, "-m", "stepscope", "demo", self.name, f"--write-recording={out}"]
        written = subprocess.run(command, capture_output=True, text=True, check=False)
        assert written.returncode == 0, written.stderr

    def _analysis(self, kind: str, directory: Path) -> Analysis:
        def write(out: Path) -> None:
            out.write_bytes(pickle.dumps(evaluate(open_source(directory))))

        found = pickle.loads((self._world(f"{kind}-analysis", write) / f"{kind}-analysis").read_bytes())
        assert isinstance(found, Analysis)
        return found

    def _world(self, kind: str, write: Callable[[Path], object]) -> Path:
        return world(f"{kind}-{self.name}", lambda folder: write(folder / kind))


class WrittenScenarios:
    """Writes each scenario when it is first asked for, once per tree."""

    def __init__(self) -> None:
        self.written = cache(WrittenScenario)
