"""Unmodified scripts of frameworks on PyTorch, 12 steps of 3 batches each: `pip install '.[frameworks]'`."""

import gzip
import importlib.util
import json
import sys
import threading
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.runs.model import COMPONENTS
from stepscope.training.automatic import AutomaticSteps
from stepscope.training.frameworks.computing import Computing, PythonSeconds

from tests.support.framework_scripts import run_script

STEPS, BATCHES = 12, 36
EVALUATES = {"hugging_face", "lightning_trainer"}
ONE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def test_an_optimizer_that_is_gone_gives_way_at_once_and_is_not_kept_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Optimizer:
        pass

    ended: list[int] = []
    monkeypatch.setattr(AutomaticSteps, "step_ended", lambda _, place: ended.append(place))
    first, second, third, computing = Optimizer(), Optimizer(), Optimizer(), Computing()
    computing.step_ended(first)
    computing.step_ended(second)  # of a GAN, perhaps
    assert len(ended) == 1
    del first
    computing.step_ended(third)
    assert len(ended) == 2


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


@pytest.mark.parametrize(
    ("script", "package"),
    [("hugging_face", "transformers"), ("lightning_trainer", "lightning"), ("accelerate_loop", "accelerate")],
)
def test_a_profile_window_has_the_steps_of_the_framework(script: str, package: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    profiles = tmp_path / "profiles"
    environment = {"STEPSCOPE_INSTRUMENT": "1", "PYTHONPATH": str(STARTUP)}
    environment |= {"STEPSCOPE_PROFILE": "2:4", "STEPSCOPE_PROFILE_DIR": str(profiles)}
    ended = run_script(tmp_path, script, **environment)
    assert "stepscope" not in ended.stderr
    (path,) = profiles.glob("*.windows.json")
    (window,) = json.loads(path.read_text())["windows"]
    assert (window["first"], window["last"], window["state"], window["reason"]) == (2, 4, "written", "")
    events = json.loads(gzip.decompress((profiles / window["trace"]).read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert [name for name in names if name.startswith("ProfilerStep#")] == [
        f"ProfilerStep#{number}" for number in (2, 3, 4)
    ]
    assert names.count("aten::linear") >= BATCHES / STEPS * 3  # in each batch of each step
    [ledger] = open_ledgers(tmp_path)
    with LedgerReader(ledger) as reader:
        assert reader.totals().steps["train"] == STEPS


def test_seconds_that_several_threads_add_at_once_are_all_counted() -> None:
    python, before = PythonSeconds(), sys.getswitchinterval()

    def call() -> None:
        for _ in range(100_000):
            python.add("seconds", 1.0)

    threads = [threading.Thread(target=call) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert python._seconds == {"seconds": 400_000.0}
