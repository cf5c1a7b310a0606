"""What hooks do not know is left alone. A hook that fails is reported once and off: training goes on."""

from pathlib import Path

import pytest

from tests.support.pytorch import needs_torch
from tests.support.smallest import smallest
from tests.support.torch_script import Trained, train

pytestmark = needs_torch

# Trains twice alike, first undisturbed. test_steps_and_components.py shows that this is as without hooks.
LOOP = """
from stepscope.training.automatic import automatic
from stepscope.training.frameworks.torch_hooks import batches, passes, steps
fails = 0
def fail(*_):
    global fails
    fails += 1
    raise RuntimeError("broken on purpose")
def loop(is_damaged):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            if is_damaged and epoch == 1 and i == 0:
                automatic.unusual.add("test")  # in a usual step, hooks call nothing that could fail
                {damage}
            with torch.set_grad_enabled(True):
                loss = loss_of(model(x), y)
            loss.backward(); optimizer.step(); optimizer.zero_grad()
    print("fails", fails)
    print(sum(p.double().sum().item() for p in model.parameters()))
loop(False)
import gc, stepscope
stepscope.finish()
gc.collect()
stepscope.start(run="damaged")
loop(True)
"""
DAMAGES = {
    "the wait for a batch": "type(batches.automatic).requested = fail",
    "the backward pass": "passes.automatic = type('Broken', (), {'compiled': property(fail)})()",
    "the optimizer's step": "type(steps.automatic).step_ended = fail",
}
LAST = "the optimizer's step"


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
gc.enable()
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
    """All scripts in one process, each of them a run; the last one breaks a hook."""
    scripts = {"loaders": LOADERS, "batches": BATCHES, "arguments": ARGUMENTS}
    runs = (
        f"import stepscope\nstepscope.start(run={name!r})\n{script}\nstepscope.finish()"
        for name, script in scripts.items()
    )
    damaged = LOOP.format(damage=DAMAGES[LAST])
    return train(*runs, damaged, folder=tmp_path_factory.mktemp("in-runs"))


def test_batches_and_results_of_own_kinds_are_asked_for_nothing(in_runs: Trained) -> None:
    (rank,) = in_runs.of("batches")
    assert rank.totals.steps == {"train": 24}


def test_pytorch_gets_closures_and_tensors_as_the_script_gives_them(in_runs: Trained) -> None:
    assert in_runs.output.splitlines()[3:6] == ["4", "2.0 2.0", "3.0 3.0"]


def test_loaders_their_data_and_workers_end_as_without_hooks_and_may_accept_no_attributes(
    in_runs: Trained,
) -> None:
    assert in_runs.output.splitlines()[:3] == ["[True, True] 0", "[True, True] 0", "[True, True, True] 0"]
    reason = "AttributeError: worker_init_fn is sealed"
    sealed, broken = in_runs.errors.splitlines()
    assert sealed == f"stepscope: fetches of a loader are not timed: {reason}"
    assert broken.startswith(f"stepscope: {LAST} is no longer timed")
    (rank,) = in_runs.of("loaders")
    assert rank.totals.steps == {"train": 4 * 5}


@pytest.mark.parametrize("hook", smallest(DAMAGES, {2}))
def test_a_hook_that_fails_is_off_and_reported_once(tmp_path: Path, hook: str, in_runs: Trained) -> None:
    trained = in_runs if hook == LAST else train(LOOP.format(damage=DAMAGES[hook]), folder=tmp_path)
    none, undisturbed, fails, total = trained.output.splitlines()[-4:]
    assert none == "fails 0"
    # The start of a loader asks the same function as the wait for a batch, and is off by itself.
    assert fails == ("fails 2" if hook == "the wait for a batch" else "fails 1")
    line = f"stepscope: {hook} is no longer timed: RuntimeError: broken on purpose"
    assert trained.errors.count(line) == 1
    assert total == undisturbed
    (rank,) = trained.of("damaged")
    assert rank.totals.steps["train"] == (12 if hook == "the optimizer's step" else 36)
    assert rank.totals.component_seconds["forward"] > 0
