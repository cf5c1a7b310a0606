"""Unmodified scripts of Horovod. Its package is a stub: the release does not build for this PyTorch."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.runs.model import COMPONENTS

from tests.support.framework_scripts import SCRIPTS, run_script

STUB = SCRIPTS / "horovod_stub"
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


def train(folder: Path, path: str, **variables: str) -> str:
    ended = run_script(folder, "horovod_loop", PYTHONPATH=path, **variables)
    assert ended.stderr == ""
    return ended.stdout


def test_waits_for_peers_are_communication_and_the_parameters_are_as_without_hooks(tmp_path: Path) -> None:
    hooked = train(tmp_path, f"{STARTUP}:{STUB}", STEPSCOPE_INSTRUMENT="1", STEPSCOPE_LAUNCH="this")
    assert hooked == train(tmp_path, str(STUB))
    [path] = open_ledgers(tmp_path)
    with LedgerReader(path) as reader:
        reader.new_steps()
        assert (reader.header.rank, reader.header.world_size) == (1, 2)
        totals = reader.totals()
    assert totals.steps == {"train": 20}
    inside = dict(zip(COMPONENTS, totals.inside["train"], strict=True))
    assert inside["communication"] >= 20 * 2 * 0.005  # what the stub sleeps for two gradients
    assert 0 < inside["optimizer"] < inside["communication"]  # which does not include these waits
