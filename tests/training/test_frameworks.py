"""Unmodified scripts of frameworks on PyTorch, 12 steps of 3 batches each: `pip install '.[frameworks]'`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.runs.model import COMPONENTS

from tests.support.framework_scripts import run_script

STEPS, BATCHES = 12, 36
EVALUATES = {"hugging_face", "lightning_trainer"}
ONE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("script", "package", "published"),
    [
        ("hugging_face", "transformers", {"global_step", "epoch", "loss", "eval_loss", "learning_rate"}),
        ("lightning_trainer", "lightning", {"global_step", "epoch", "loss"}),
        ("accelerate_loop", "accelerate", {"loss"}),
        ("deepspeed_engine", "deepspeed", {"global_step"}),
    ],
)
def test_each_step_of_three_batches_is_one_step_and_numbers_of_the_framework_are_published(
    script: str, package: str, published: set[str], tmp_path: Path
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    environment = {"STEPSCOPE_INSTRUMENT": "1", "PYTHONPATH": str(STARTUP)}
    if package == "deepspeed":
        environment |= {**ONE_PROCESS, "MASTER_PORT": "0", "DS_ACCELERATOR": "cpu"}
    ended = run_script(tmp_path, script, **environment)
    assert "stepscope" not in ended.stderr
    [path] = open_ledgers(tmp_path)
    with LedgerReader(path) as reader:
        steps = [step for step in reader.new_steps()[0] if step.phase == "train"]
        totals = reader.totals()
    assert totals.steps["train"] == len(steps) == STEPS
    for name in ("forward", "backward", "optimizer"):
        assert all(step.components[COMPONENTS.index(name)] > 0 for step in steps), name
    fetched = {loader.phase: sum(loader.wait_counts) for loader in totals.loaders}
    assert fetched["train"] >= BATCHES
    assert ("eval" in totals.steps) == (script in EVALUATES)
    assert published <= totals.gauges.keys()
    assert totals.gauges.get("global_step", STEPS) == STEPS
    assert 0 < totals.gauges.get("loss", 1) < 10
