"""A data set that is drawn once for all tests of the examples, and the example under `stepscope run`."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from examples.images.data import prepare_dataset
from tests.support.processes import ran

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_images.py"


@dataclass(frozen=True)
class Observed:
    """A run of the example: its folder, and what `stepscope run` said."""

    folder: Path
    said: str


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `--data` takes: a folder with the data set of the examples, at its full size."""
    folder = tmp_path_factory.mktemp("data")
    prepare_dataset(folder)
    return folder


@pytest.fixture(scope="session")
def observed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Observed]:
    """Runs the example with two loader workers, slow in some way, at most once for the same words."""

    @cache
    def run(way: str, steps: int, batch: int = 64) -> Observed:
        folder = tmp_path_factory.mktemp(way) / "run"
        stepscope = [sys.executable, "-m", "stepscope", "run", "--out", str(folder)]
        example = [sys.executable, str(EXAMPLE), "--data", str(data), "--slow", way, "--workers", "2"]
        example += ["--steps", str(steps), "--batch", str(batch)]
        result = ran(
            [*stepscope, "--listen", "127.0.0.1:0", "--", *example], env={**os.environ, "NO_COLOR": "1"}
        )
        assert result.returncode == 0, result.stderr
        return Observed(folder, result.stdout + result.stderr)

    return run
