"""The hooks next to torch.compile, and next to steps and components that the script makes itself."""

from pathlib import Path

import pytest
from stepscope.runs.model import COMPONENTS

from tests.support.pytorch import needs_torch
from tests.support.torch_script import Rank, Trained, train

pytestmark = needs_torch

COMPILED = """
import stepscope
stepscope.start(run="modules")
from torch._dynamo.utils import counters
def count(how):
    counters.clear(); torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    call = model
    if how == "module": call = torch.compile(model, backend="aot_eager", fullgraph=True)
    if how == "function": call = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
    if how == "in place": model.compile(backend="aot_eager", fullgraph=True)
    for x, y in DataLoader(data, batch_size=32):
        loss_of(call(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    with torch.no_grad(): call(x)
    print(how, dict(counters["stats"]), dict(counters["graph_break"]),
          sum(p.double().sum().item() for p in model.parameters()))
    torch._dynamo.reset()  # also removes the callbacks at compilations
for how in ("module", "function", "in place", "eager", "module"): count(how)
stepscope.finish()
"""
COMPILED_STEPS = """
import stepscope
stepscope.start(run="steps")
from torch._dynamo.utils import counters
def count_steps(how):
    counters.clear(); torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def update():
        optimizer.step()
    def whole(x, y):
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    function = {"step": optimizer.step, "function": update, "loop": whole}[how]
    compiled = torch.compile(function, backend="eager")
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=16):
            if how == "loop":
                compiled(x, y)
            else:
                loss_of(model(x), y).backward(); compiled(); optimizer.zero_grad()
    print("steps", how, dict(counters["stats"]), dict(counters["graph_break"]),
          dict(counters["recompiles"]), sum(p.double().sum().item() for p in model.parameters()))
for how in ("step", "function", "loop"): count_steps(how)
stepscope.finish()
"""
BY_HAND = """
import stepscope
stepscope.start(run="by hand")
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=8):
    with stepscope.step("train"):
        with stepscope.component("host_to_device"):
            time.sleep(0.01); out = model(x); loss = loss_of(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
stepscope.finish()
"""
# What TorchPatcher of PyTorch 2.0 to 2.2 does: at last, because it takes the hooks of this process.
UNHOOKED = """
import functools
from torch._dynamo import eval_frame
from stepscope.training.frameworks.torch_hooks import steps
class TorchPatcher:
    @staticmethod
    @functools.lru_cache(None)
    def patch():
        if getattr(torch.optim.SGD.step, "hooked", False):
            torch.optim.SGD.step = torch.optim.SGD.step.__wrapped__
        torch.optim.SGD.step.hooked = True
eval_frame.TorchPatcher = TorchPatcher
steps._keep_hooks()
stepscope.start(run="unhooked")
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
eval_frame.TorchPatcher.patch()
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(1, 16)).sum().backward()
    optimizer.step()
stepscope.finish()
"""
FAILING = """
from stepscope.training.frameworks.torch_hooks import pauses
kept, pauses.recorder = pauses.recorder, None
print("compiled", torch.compile(lambda x: 2 * x, backend="eager")(torch.ones(1)).item())
pauses.recorder = kept
"""
LET_GO = """
import gc, weakref
from stepscope.training.automatic import automatic
stepscope.start(run="let go")
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.disable()
automatic.compiled = optimizer  # as the compiled code of its step does
known = weakref.ref(optimizer)
del optimizer
gc.collect()
print("let go", known() is None)
model(torch.ones(16)).sum().backward()
gc.enable()
stepscope.finish()
"""
SLOW_START = """
import stepscope
class Slow(DataLoader):
    def _get_iterator(self):
        time.sleep(0.2)
        return super()._get_iterator()
stepscope.start(run="slow start")
with stepscope.step("train"): pass
for x, y in Slow(data, batch_size=48):
    with stepscope.step("eval"): pass
stepscope.finish()
"""


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_all(tmp_path_factory.mktemp("hooked"), "on", SLOW_START, LET_GO, UNHOOKED, before=FAILING)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_all(tmp_path_factory.mktemp("bare"), "off")


def train_all(folder: Path, stepscope: str, *more: str, before: str = "") -> Trained:
    """Runs all scripts in one process: each is a run, which begins when the optimizers before it are gone."""
    scripts = before + COMPILED, COMPILED_STEPS, BY_HAND, *more
    return train("import gc", "gc.collect()\n".join(scripts), folder=folder, STEPSCOPE=stepscope)


def of(trained: Trained, name: str) -> Rank:
    (rank,) = trained.of(name)
    return rank


def lines(trained: Trained, *beginnings: str) -> list[str]:
    """Returns what the script has printed of a kind."""
    return [line for line in trained.output.splitlines() if line.startswith(beginnings)]


def test_dynamo_makes_the_same_graphs_with_and_without_hooks(hooked: Trained, bare: Trained) -> None:
    found = lines(hooked, "module", "function", "in place", "eager")
    assert found == lines(bare, "module", "function", "in place", "eager")
    assert sum("'unique_graphs'" in line for line in found) == 4
    rank = of(hooked, "modules")
    assert rank.totals.steps["train"] == 15
    assert rank.totals.component_seconds["compile"] > 0
    assert bare.ranks == []


def test_a_compiled_step_of_an_optimizer_ends_a_step_and_is_compiled_as_without_hooks(
    hooked: Trained, bare: Trained
) -> None:
    assert len(lines(hooked, "steps")) == 3
    assert lines(hooked, "steps") == lines(bare, "steps")
    rank = of(hooked, "steps")
    assert rank.totals.steps == {"train": 3 * 12}
    assert rank.totals.component_seconds["data_wait"] > 0.0
    (loader,) = rank.totals.loaders
    assert sum(loader.wait_counts) == 3 * 12
    assert rank.totals.component_seconds["optimizer"] == 0.0  # no hook sees where it begins


def test_steps_and_components_by_hand_win_and_the_hooks_add_the_rest(hooked: Trained) -> None:
    rank = of(hooked, "by hand")
    assert rank.totals.steps == {"train": 12}
    assert rank.seconds("host_to_device") > 0.01
    assert rank.seconds("forward") == 0.0  # inside a component by hand
    for component in ("data_wait", "backward", "optimizer"):
        assert rank.seconds(component) > 0.0
    for step in rank.steps:
        assert sum(step.components) <= step.duration + 1e-9


def test_a_failing_hook_of_compilations_is_reported_and_raises_nothing_into_training(hooked: Trained) -> None:
    assert lines(hooked, "compiled") == ["compiled 2.0"]
    assert hooked.errors.count("the compilation is no longer timed: AttributeError") == 1


def test_steps_end_although_an_old_pytorch_takes_the_hooks_of_optimizers(hooked: Trained) -> None:
    assert of(hooked, "unhooked").totals.steps == {"train": 4}


def test_garbage_collection_frees_an_optimizer_whose_compiled_step_no_hook_has_ended(hooked: Trained) -> None:
    assert lines(hooked, "let go") == ["let go True"]


def test_the_start_of_a_loader_counts_once_between_steps_by_hand(hooked: Trained) -> None:
    rank = of(hooked, "slow start")
    assert rank.totals.steps == {"train": 1, "eval": 2}
    inside = rank.totals.inside["eval"][COMPONENTS.index("data_wait")]
    assert rank.totals.component_seconds["data_wait"] == pytest.approx(inside)
    assert inside > 0.2
