"""Two ranks of mpi4py on MPICH. Without these packages the tests are skipped."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.runs.model import COMPONENTS

from tests.support.framework_scripts import SCRIPTS, run_python

MPIEXEC = Path(sys.executable).with_name("mpiexec")
TWO_RANKS = [MPIEXEC, "-n", "2", sys.executable, SCRIPTS / "mpi_loop.py"]
REPLACED_BY = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="mpi4py or MPICH is not installed"
)


def train(folder: Path, *words: str, **variables: str) -> str:
    ended = run_python(folder, "-c", REPLACED_BY, *map(str, TWO_RANKS), *words, **variables)
    assert ended.stderr == ""
    return ended.stdout


def test_a_late_rank_is_named_and_values_errors_and_types_are_as_without_hooks(tmp_path: Path) -> None:
    bare = train(tmp_path, STEPSCOPE="off")
    command = ["-m", "stepscope", "run", "--out", str(tmp_path / "out"), "--"]
    assert run_python(tmp_path, *command, *map(str, TWO_RANKS)).stdout.startswith(bare)
    straggler = json.loads((tmp_path / "out" / "profiler-reports" / "Straggler.json").read_text())
    assert "rank 1 on " in straggler["finding"].lower()
    assert [bool(rank["triggered"]) for rank in straggler["Details"]["ranks"]] == [False, True]


def test_a_script_that_initializes_mpi_itself_is_timed_from_then_on(tmp_path: Path) -> None:
    hooked = {"STEPSCOPE_INSTRUMENT": "1", "STEPSCOPE_LAUNCH": "this", "PYTHONPATH": str(STARTUP)}
    assert train(tmp_path, "itself", **hooked) == train(tmp_path, "itself", STEPSCOPE="off")
    waited = {}
    for path in open_ledgers(tmp_path):
        with LedgerReader(path) as reader:
            reader.new_steps()
            inside = dict(zip(COMPONENTS, reader.totals().inside["train"], strict=True))
            assert reader.header.world_size == 2
            waited[reader.header.rank] = inside["communication"]
    assert waited[0] > 150 * 0.01  # half of what its peer is late
    assert waited[1] > 0
