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
from tests.support.torch_script import EXPORTER, Trained, train
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


BATCHES = """
class Batch(dict):
    asked = False
    def __missing__(self, name):
        self.asked = True
        self[name] = None
    def __contains__(self, name):
        self.asked = True
        return super().__contains__(name)
    def values(self):
        self.asked = True
        return super().values()
class Model(Net):
    def forward(self, batch):
        return Batch(out=super().forward(batch["x"]))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def together(samples):
    return Batch(x=torch.stack([x for x, _ in samples]), y=torch.stack([y for _, y in samples]))
for batch in DataLoader(data, batch_size=4, collate_fn=together):  # hooks look after the 20th step
    out = model(batch)
    loss_of(out["out"], batch["y"]).backward(); optimizer.step(); optimizer.zero_grad()
    assert (list(batch), batch.asked, list(out), out.asked) == (["x", "y"], False, ["out"], False)
"""


LOADERS = """
import gc, multiprocessing, weakref
from torch.utils.data import Dataset
class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return data[i]
class Sealed(DataLoader):
    sealed = False
    def __setattr__(self, name, value):
        if self.sealed and name != "_iterator": raise AttributeError(f"{name} is sealed")
        super().__setattr__(name, value)
def train(loader):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
train(DataLoader(Numbers()))
gc.collect(); gc.disable()
for settings in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
    loader = DataLoader(Numbers(), **settings)
    alive = weakref.ref(loader), weakref.ref(loader.dataset)
    train(loader)
    for batch in loader:
        queue = getattr(loader._iterator, "_data_queue", None)
        alive += (weakref.ref(queue),) if queue is not None else ()
        break
    del loader, batch, queue
    print([each() is None for each in alive], len(multiprocessing.active_children()))
loader = Sealed(Numbers(), num_workers=1)
loader.sealed = True
train(loader)
"""


ARGUMENTS = """
import torch.distributed as dist
class OfAModel(torch.optim.SGD):
    def step(self, model):
        super().step()
        return sum(1 for _ in model.parameters())
class OfAnObject(torch.optim.SGD):
    def step(self, closure):
        closure()
        super().step()
        return closure.result()
class Closure:
    def __call__(self): self.loss = 2.0
    def result(self): return self.loss
model = Net()
for kind in (OfAModel, OfAnObject):
    optimizer = kind(model.parameters(), lr=0.01)
    loss_of(model(data[:8][0]), data[:8][1]).backward()
    if kind is OfAModel: print(optimizer.step(model))
    else: print(optimizer.step(Closure()), optimizer.step(closure=Closure()))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
one, two = (torch.ones(1, requires_grad=True) for _ in range(2))
torch.autograd.backward(2.0 * each for each in (one, two))
torch.autograd.backward({"a": one + two}.values())
print(one.grad.item(), two.grad.item())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def in_runs(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The three scripts in one process, each of them a run."""
    scripts = {"loaders": LOADERS, "batches": BATCHES, "arguments": ARGUMENTS}
    runs = (
        f"import stepscope\nstepscope.start(run={name!r})\n{script}\nstepscope.finish()"
        for name, script in scripts.items()
    )
    return train(*runs, folder=tmp_path_factory.mktemp("in-runs"))


def test_batches_and_results_of_own_kinds_are_asked_for_nothing(in_runs: Trained) -> None:
    (rank,) = in_runs.of("batches")
    assert rank.totals.steps == {"train": 24}


def test_pytorch_gets_closures_and_tensors_as_the_script_gives_them(in_runs: Trained) -> None:
    assert in_runs.output.splitlines()[3:] == ["4", "2.0 2.0", "3.0 3.0"]


def test_loaders_their_data_and_workers_end_as_without_hooks_and_may_accept_no_attributes(
    in_runs: Trained,
) -> None:
    assert in_runs.output.splitlines()[:3] == ["[True, True] 0", "[True, True] 0", "[True, True, True] 0"]
    reason = "AttributeError: worker_init_fn is sealed"
    assert in_runs.errors == f"stepscope: fetches of a loader are not timed: {reason}\n"
    (rank,) = in_runs.of("loaders")
    assert rank.totals.steps == {"train": 4 * 5}
