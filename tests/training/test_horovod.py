"""Unmodified scripts of Horovod. Its package is a stub: no release builds with its own settings."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, LedgerTotals, open_ledgers
from stepscope.runs.model import COMPONENTS

from tests.support.framework_scripts import SCRIPTS, run_script
from tests.support.training_script import EXPORTER

STUB = SCRIPTS / "horovod_stub"


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


LATE = 0.005  # what the stub sleeps in a collective


def hooked(folder: Path, script: str, **variables: str) -> tuple[str, dict[str, LedgerTotals]]:
    """Runs a script with hooks and without, which must not change it. Returns its runs by their names."""
    launched = {"STEPSCOPE_INSTRUMENT": "1", "STEPSCOPE_LAUNCH": "this", **variables}
    ended = run_script(folder, script, PYTHONPATH=f"{STARTUP}:{EXPORTER}:{STUB}", **launched)
    plain = run_script(folder, script, PYTHONPATH=f"{EXPORTER}:{STUB}", **variables, STEPSCOPE="off")
    assert ended.stdout == plain.stdout
    found = {}
    for path in open_ledgers(folder):
        with LedgerReader(path) as reader:
            reader.new_steps()
            assert (reader.header.rank, reader.header.world_size) == (1, 2)
            found[reader.header.name] = reader.totals()
    return ended.stderr, found


@needs("torch")
def test_waits_for_peers_are_communication_and_the_parameters_are_as_without_hooks(tmp_path: Path) -> None:
    errors, runs = hooked(tmp_path, "horovod_loop")
    [totals] = runs.values()
    assert errors == ""
    assert totals.steps == {"train": 20}
    inside = dict(zip(COMPONENTS, totals.inside["train"], strict=True))
    collectives = 20 * 2 + 19 + 1  # of two gradients, of all losses but the last, and a join
    assert inside["communication"] >= collectives * LATE
    assert 0 < inside["optimizer"] < inside["communication"]  # which does not include these waits


@needs("tensorflow", "keras")
def test_gradients_and_variables_of_tensorflow_are_communication_outside_of_other_graphs(
    tmp_path: Path,
) -> None:
    errors, runs = hooked(tmp_path, "horovod_tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    assert "stepscope: " not in errors
    in_graph, eager, fit = (runs.pop(name) for name in ("horovod_tensorflow", "eager", "fit"))
    assert runs == {}
    for totals in (in_graph, eager, fit):
        assert totals.steps == {"train": 20}
    waits = [each.inside["train"][COMPONENTS.index("communication")] for each in (in_graph, eager)]
    assert waits[0] < 20 * 2 * LATE <= waits[1] + 2 * LATE, "the first call of a graph compiles it"
