"""Each `--slow` way slows what it says, as the ledger of the training process tells.

Bounds are those that hold on any machine, however busy: what sleeps takes at least as long as it sleeps.
Else runs are compared with each other, and only where they differ many times over.
"""

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from stepscope.commands.run.hooks import command_environment
from stepscope.exporter.ledgers.reader import LedgerReader, LedgerTotals, StepRecord, open_ledgers
from stepscope.runs.model import COMPONENTS
from stepscope.training.launch import Launch

from examples.images.slow import WAYS, conditions
from tests.support.processes import ran
from tests.support.pytorch import needs_torch
from tests.support.waiting import SECONDS

ALONE = pytest.mark.alone("it compares what a training waits for, and must not wait for other tests")

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = {"none": 45, "stall": 32}  # until it has learned, and has stalled twice
FEW_STEPS = 25
BATCH = 64


@dataclass(frozen=True)
class Trained:
    """One finished run of an example."""

    output: str
    steps: list[StepRecord]  # of the train phase
    totals: LedgerTotals

    def seconds(self, component: str) -> float:
        return sum(step.components[COMPONENTS.index(component)] for step in self.steps)

    @property
    def waited(self) -> float:
        """The share of the train steps' time that they waited for data."""
        return self.seconds("data_wait") / sum(step.duration for step in self.steps)

    @property
    def cpu_seconds_per_fetch(self) -> float:
        return self.totals.fetch_cpu_seconds / sum(self.totals.fetch_counts)

    @property
    def asleep_per_fetch(self) -> float:
        """Seconds of a fetch that it neither computed nor waited for a core: it waited for the disk."""
        totals = self.totals
        asleep = totals.fetch_sum - totals.fetch_cpu_seconds - totals.fetch_core_wait_seconds
        return asleep / sum(totals.fetch_counts)


def steps_of(way: str) -> int:
    return STEPS.get(way, FEW_STEPS)


class Runs:
    """Runs an example in each way at most once."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data

    @cache  # noqa: B019 (lives as long as the module's tests)
    def of(self, way: str, script: str = "train_images.py") -> Trained:
        ledgers = self.folder / f"{script}-{way}"
        ledgers.mkdir()
        command = [sys.executable, "-W", "error", str(EXAMPLES / script), "--slow", way]
        result = subprocess.run(
            [*command, f"--steps={steps_of(way)}", f"--batch={BATCH}", "--workers=2", f"--data={self.data}"],
            # As under `stepscope run`: train_pytorch.py has no line for Stepscope.
            env=command_environment(os.environ, Launch(way, way), ledgers, lines=False),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        [path] = open_ledgers(ledgers)
        with LedgerReader(path) as reader:
            steps, lost = reader.new_steps()
            assert lost == 0
            return Trained(result.stdout, [step for step in steps if step.phase == "train"], reader.totals())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Runs:
    return Runs(tmp_path_factory.mktemp("ledgers"), data)


@ALONE
@pytest.mark.parametrize("way", WAYS)
def test_every_step_and_component_is_recorded(runs: Runs, way: str) -> None:
    trained = runs.of(way)
    assert trained.totals.steps["train"] == len(trained.steps) == steps_of(way)
    assert trained.totals.steps["eval"] == 9  # 576 images, 64 a batch
    assert trained.totals.end is not None
    assert all(trained.seconds(component) > 0 for component in ("forward", "backward", "optimizer"))
    assert {loader.phase for loader in trained.totals.loaders} == {"train", "eval"}
    assert {loader.workers for loader in trained.totals.loaders} == {0 if way == "workers" else 2}
    assert sum(trained.totals.fetch_counts) == steps_of(way) + 9


@ALONE
def test_the_example_learns_and_says_so(runs: Runs) -> None:
    words = runs.of("none").output.splitlines()[-1].split()
    loss, accuracy = (words[words.index(name) + 1] for name in ("loss", "accuracy"))
    assert float(loss) < 0.9 * math.log(5)  # the mean of the pass; guessing gives log(5)
    assert float(accuracy.rstrip("%")) > 40  # of unseen images; guessing gives 20


@pytest.mark.parametrize(("steps", "batch"), [("2", "16"), ("1", "577")])  # more than there are to evaluate
def test_switched_off_it_trains_all_the_same_and_leaves_no_ledger(
    tmp_path: Path, data: Path, steps: str, batch: str
) -> None:
    command = [sys.executable, str(EXAMPLES / "train_images.py"), "--steps", steps, "--batch", batch]
    result = ran(
        [*command, "--data", str(data)],
        env={**os.environ, "STEPSCOPE": "off", "STEPSCOPE_LEDGER_DIR": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    assert f"step    {steps}/{steps}" in result.stdout
    assert list(tmp_path.iterdir()) == []


@ALONE
def test_heavy_augmentation_makes_steps_wait_while_workers_compute(runs: Runs) -> None:
    slow, usual = runs.of("augmentation"), runs.of("none")
    assert slow.waited > usual.waited + 0.1
    # In three runs 7.6 to 8.6 times as much.
    assert slow.cpu_seconds_per_fetch > 3 * usual.cpu_seconds_per_fetch
    assert slow.asleep_per_fetch < runs.of("storage").asleep_per_fetch


@ALONE
def test_slow_storage_makes_steps_wait_while_workers_wait(runs: Runs) -> None:
    slow, usual = runs.of("storage"), runs.of("none")
    # By little where a busy machine takes longer to train than the disk to read.
    assert slow.waited > usual.waited
    assert_each_read_waited_for_the_disk(slow)
    assert usual.asleep_per_fetch < slow.asleep_per_fetch


@ALONE
def test_without_workers_steps_wait_for_fetches_in_their_own_process(runs: Runs) -> None:
    slow, usual = runs.of("workers"), runs.of("none")
    assert slow.waited > usual.waited + 0.1
    waited = sum(loader.wait_sum for loader in slow.totals.loaders)  # for the first batch, too
    assert waited > 0.999 * slow.totals.fetch_sum


def assert_each_read_waited_for_the_disk(slow: Trained) -> None:
    disk = conditions("storage", workers=2).disk
    assert disk is not None
    # One part in a thousand for the clocks, which are not read at the same instant.
    assert slow.asleep_per_fetch > 0.999 * BATCH * disk.seconds_per_read


@ALONE
def test_stalls_are_the_steps_with_a_checkpoint_and_no_others(runs: Runs) -> None:
    stalled = runs.of("stall")
    checkpoint = COMPONENTS.index("checkpoint")
    with_checkpoint = [step for step in stalled.steps if step.components[checkpoint] > 0]
    assert [step.number for step in with_checkpoint] == [15, 31]
    assert min(step.components[checkpoint] for step in with_checkpoint) >= 1.5
    assert min(step.duration for step in with_checkpoint) >= 1.5
    assert runs.of("none").seconds("checkpoint") == 0


@ALONE
@needs_torch
def test_the_pytorch_example_waits_where_it_says(runs: Runs) -> None:
    slow = runs.of("storage", "train_pytorch.py")
    assert slow.totals.steps == {"train": FEW_STEPS, "eval": 9}
    assert {loader.workers for loader in slow.totals.loaders} == {2}  # read from the DataLoader
    assert 0 < slow.waited < 1
    assert_each_read_waited_for_the_disk(slow)


def test_the_pytorch_example_says_in_one_line_that_pytorch_is_missing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    result = ran(
        [sys.executable, str(EXAMPLES / "train_pytorch.py")], env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "pip install torch" in result.stderr


@pytest.mark.parametrize("words", [["--slow", "coffee"], ["--steps", "many"]])
def test_a_wrong_flag_exits_with_status_2(words: list[str]) -> None:
    command = [sys.executable, str(EXAMPLES / "train_images.py"), *words]
    result = ran(command)
    assert result.returncode == 2
    assert words[1] in result.stderr
