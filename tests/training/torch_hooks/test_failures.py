"""A hook that fails: it is reported once and is off, training goes on, and the other hooks time it."""

from pathlib import Path

import pytest

from tests.support.pytorch import needs_torch
from tests.support.smallest import smallest
from tests.support.torch_script import train

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


@pytest.mark.parametrize("hook", smallest(DAMAGES, {2}))
def test_a_hook_that_fails_is_off_and_reported_once(tmp_path: Path, hook: str) -> None:
    trained = train(LOOP.format(damage=DAMAGES[hook]), folder=tmp_path)
    none, undisturbed, fails, total = trained.output.splitlines()
    assert none == "fails 0"
    # The start of a loader asks the same function as the wait for a batch, and is off by itself.
    assert fails == ("fails 2" if hook == "the wait for a batch" else "fails 1")
    line = f"stepscope: {hook} is no longer timed: RuntimeError: broken on purpose"
    assert trained.errors.count(line) == 1
    assert total == undisturbed
    (rank,) = trained.of("damaged")
    assert rank.totals.steps["train"] == (12 if hook == "the optimizer's step" else 36)
    assert rank.totals.component_seconds["forward"] > 0
