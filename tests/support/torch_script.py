"""Unmodified PyTorch scripts for tests, run as under `stepscope run`, and the ledgers of their ranks."""

import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from stepscope.commands.run.hooks import STARTUP
from stepscope.exporter.ledgers.reader import (
    LedgerHeader,
    LedgerReader,
    LedgerTotals,
    StepRecord,
    open_ledgers,
)
from stepscope.training.layout import COMPONENTS

from tests.support.environment import unobserved
from tests.support.processes import ran
from tests.support.ranks import launcher

EXPORTER = str(Path(__file__).parents[2] / "exporter")
# A small model and its data. `x` and `y` of a batch are a NumPy-free tensor of floats and one of labels.
PREAMBLE = """\
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,)))
loss_of = nn.CrossEntropyLoss()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Sequential(nn.Linear(32, 4)))
    def forward(self, x):
        return self.inner(x)
"""
DISTRIBUTED = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
# While the model holds the process group, its threads outlive destroy_process_group, and sometimes abort the
# process as Python ends, with hooks and without them (pytorch/pytorch#179291).
LEAVE = """
import gc
del model
gc.collect()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Rank:
    """The ledger of a rank after its end."""

    header: LedgerHeader
    totals: LedgerTotals
    steps: list[StepRecord]

    def seconds(self, component: str, phase: str = "train", skip: int = 2) -> float:
        """Returns the mean seconds per step, without the first steps."""
        steps = [step for step in self.steps if step.phase == phase][skip:]
        return sum(step.components[COMPONENTS.index(component)] for step in steps) / len(steps)

    def all_seconds(self, component: str) -> list[float]:
        """Returns the seconds of each training step; a busy machine makes them longer, but hardly all."""
        index = COMPONENTS.index(component)
        return [step.components[index] for step in self.steps if step.phase == "train"]

    def own_seconds(self) -> list[float]:
        """Returns the seconds of each training step without communication."""
        index = COMPONENTS.index("communication")
        return [step.duration - step.components[index] for step in self.steps if step.phase == "train"]

    def duration(self, phase: str = "train", skip: int = 2) -> float:
        durations = [step.duration for step in self.steps if step.phase == phase][skip:]
        return sum(durations) / len(durations)


@dataclass(frozen=True)
class Trained:
    output: str
    errors: str
    ranks: list[Rank]  # in order

    @property
    def only(self) -> Rank:
        (rank,) = self.ranks
        return rank

    def of(self, run_name: str) -> list[Rank]:
        """Returns the ranks of a run, in order."""
        return [rank for rank in self.ranks if rank.header.name == run_name]


def train(*script: str, folder: Path, ranks: int = 0, status: int = 0, **environment: str) -> Trained:
    """Runs a script of these parts under the hooks, or as many ranks of it. Its status must be this."""
    file = folder / "train.py"
    start, end = (DISTRIBUTED, LEAVE) if ranks else ("", "")
    file.write_text(PREAMBLE + start + "\n".join(map(textwrap.dedent, script)) + end)
    ledgers = folder / "ledgers"
    clean = unobserved()
    ended = ran(
        [*(launcher(ranks) if ranks else [sys.executable]), str(file)],
        env={
            **clean,
            "STEPSCOPE_INSTRUMENT": "1",
            "STEPSCOPE_LEDGER_DIR": str(ledgers),
            "PYTHONPATH": f"{STARTUP}{os.pathsep}{EXPORTER}",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )
    assert ended.returncode == status, ended.stderr
    read = []
    for path in open_ledgers(ledgers):
        with LedgerReader(path) as reader:
            steps, lost = reader.new_steps()
            assert lost == 0
            read.append(Rank(reader.header, reader.totals(), steps))
    return Trained(ended.stdout, ended.stderr, sorted(read, key=lambda rank: rank.header.rank))
