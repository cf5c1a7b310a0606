"""The demo's scenarios: each is played once per tree, and evaluated once."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.runs.open import open_source

from tests.support.as_debugger import write_as_debugger
from tests.support.backfill import recording
from tests.support.world import EVALUATED, world


@dataclass(frozen=True)
class WrittenScenario:
    """A scenario's recording, its Debugger output, and their analyses. Do not change them."""

    name: str

    @cached_property
    def recording_directory(self) -> Path:
        return recording(self.name)

    @cached_property
    def debugger_directory(self) -> Path:
        source = self.recording_directory
        return self._world("debugger", lambda out: write_as_debugger(source, out)) / "debugger"

    @cached_property
    def recording(self) -> Analysis:
        return self._analysis("recording", self.recording_directory)

    @cached_property
    def debugger(self) -> Analysis:
        return self._analysis("debugger", self.debugger_directory)

    def _analysis(self, kind: str, directory: Path) -> Analysis:
        def write(out: Path) -> None:
            out.write_bytes(pickle.dumps(evaluate(open_source(directory))))

        found = pickle.loads((self._world(f"{kind}-analysis", write) / f"{kind}-analysis").read_bytes())
        assert isinstance(found, Analysis)
        return found

    def _world(self, kind: str, write: Callable[[Path], object]) -> Path:
        return world(f"{kind}-{self.name}", EVALUATED, lambda folder: write(folder / kind))


class WrittenScenarios:
    """Writes each scenario when it is first asked for, once per tree."""

    def __init__(self) -> None:
        self.written = cache(WrittenScenario)
