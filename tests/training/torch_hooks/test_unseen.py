"""Nothing that a script does with PyTorch shows that there are hooks: graphs, files, copies, inspection."""

import os
import sys
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers

from tests.support.environment import unobserved
from tests.support.processes import ran
from tests.support.pytorch import needs_torch
from tests.support.smallest import smallest
from tests.support.torch_script import EXPORTER
from tests.support.waiting import SECONDS

pytestmark = [needs_torch, pytest.mark.timeout(2 * SECONDS)]

USES = Path(__file__).parents[2] / "support" / "torch_uses.py"
# Puts hooks into a process that has imported Dynamo before, as a spawned rank may have.
LATE = """
import runpy, sys, torch, torch._dynamo
from stepscope.training.frameworks import torch_hooks
torch_hooks.install()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# The functions of classes that hooks replace; docs/hooks.md lists them. Python looks up those with
# underscores in the class, a skipped `GradScaler.step` calls nothing else, and `Work` accepts no attribute.
REPLACED = {
    "DataLoader.__iter__",
    "GradScaler.step",
    "Module.__call__",
    "Work.wait",
    "_BaseDataLoaderIter.__next__",
    "_MultiProcessingDataLoaderIter._shutdown_workers",
}


Facts = tuple[dict[str, str], set[str]]


def facts(folder: Path, *arguments: str, **environment: str) -> Facts:
    """Runs the uses of PyTorch. Returns what they show, and the functions of ours in the classes of torch."""
    clean = unobserved()
    ended = ran(
        [sys.executable, *arguments],
        env={
            **clean,
            "STEPSCOPE_LEDGER_DIR": str(folder / "ledgers"),
            "PYTHONPATH": f"{STARTUP}{os.pathsep}{EXPORTER}",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )
    assert ended.returncode == 0, ended.stderr
    assert "stepscope:" not in ended.stderr
    *lines, ours = ended.stdout.splitlines()
    parts = [line.split(": ", 2) for line in lines]
    return {f"{when}: {use}": fact for when, use, fact in parts}, set(ours.split()[1:])


# The second process loads the model that the first one saved.
SOME = ("explained_by_dynamo", "compiled_module", "a_whole_module_that_another_process_saved")
# A few of each kind.
FEW = (
    *SOME,
    *("graph_of_nested_modules", "traced_by_torchscript", "quantized_eagerly", "functional_call"),
    *("hooks_of_the_user", "checkpointed_activations", "own_calls_and_subclasses", "distributed_models"),
    *("copies", "whole_modules_in_files", "optimizers_and_schedulers", "steps_that_a_scaler_skips"),
    *("loaders", "signatures_and_sources", "names_of_all_classes_of_torch", "errors_of_a_model"),
    *("modules_in_stacks_of_the_profiler", "functions_in_pickles"),
)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], set[str], Path]:
    """The facts and functions under hooks that Dynamo precedes, and the model that this process saved."""
    folder = tmp_path_factory.mktemp("late")
    return *facts(folder, "-c", LATE, str(USES), str(folder / "whole.pt"), *SOME), folder / "whole.pt"


@pytest.fixture(scope="module")
def few(late: tuple[dict[str, str], set[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Without hooks."""
    return facts(tmp_path_factory.mktemp("few"), str(USES), str(late[2]), *FEW)


@pytest.mark.parametrize("names", smallest([FEW, ()], {0}), ids=["few", "all"])
def test_no_use_of_pytorch_shows_the_hooks(tmp_path: Path, names: tuple[str, ...], few: Facts) -> None:
    bare, none = few if names else facts(tmp_path, str(USES), str(tmp_path / "bare.pt"))
    words = str(USES), str(tmp_path / "hooked.pt"), *names
    hooked, ours = facts(tmp_path, *words, STEPSCOPE_INSTRUMENT="1")
    assert len(bare) >= (len(names) or 50)
    assert {use for use in bare if hooked.get(use) != bare[use]} == set()
    assert hooked.keys() == bare.keys()
    assert {name for name in ours if not name.startswith("ProcessGroup.")} == REPLACED
    assert none == set()
    (path,) = open_ledgers(tmp_path / "ledgers")
    with LedgerReader(path) as reader:
        totals = reader.totals()
    assert totals.steps["train"] > 20
    for component in ("data_wait", "forward", "backward", "optimizer", "communication"):
        assert totals.component_seconds[component] > 0.0


def test_dynamo_that_was_imported_before_the_hooks_makes_the_same_guards_and_graphs(
    late: tuple[dict[str, str], set[str], Path], few: Facts
) -> None:
    found, ours, _ = late
    assert len(found) == len(SOME)
    assert found == {use: few[0].get(use) for use in found}
    assert ours >= REPLACED
