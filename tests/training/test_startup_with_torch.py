"""Real PyTorch, started as under `stepscope run`: a spawned rank, loaders and their workers."""

import sys
from pathlib import Path

from stepscope.commands.run.hooks import STARTUP

from tests.support.environment import unobserved
from tests.support.processes import ran
from tests.support.pytorch import needs_torch

pytestmark = needs_torch

HOOKED = "'stepscope.training.frameworks.torch_hooks' in sys.modules"

SCRIPT = f"""
import os, sys, torch, torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

class Hooked(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return int({HOOKED})

def train(rank):
    print("rank", rank, {HOOKED}, flush=True)

if __name__ == "__main__":
    print("script", {HOOKED}, flush=True)
    loader = DataLoader(Hooked(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    print("spawn", [hooked.tolist() for hooked in loader], flush=True)
    loader = DataLoader(Hooked(), batch_size=2, num_workers=2)
    print("fork", len(list(loader)), flush=True)
    torch.multiprocessing.spawn(train, nprocs=1)
"""


def test_a_rank_that_is_spawned_is_hooked_but_no_worker_and_forking_with_the_sampler_warns_of_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "ledgers").mkdir()
    environment = {
        **unobserved(),
        "STEPSCOPE_INSTRUMENT": "1",
        "STEPSCOPE_LINES": "1",
        "STEPSCOPE_LEDGER_DIR": str(tmp_path / "ledgers"),
        "PYTHONPATH": str(STARTUP),
        "OMP_NUM_THREADS": "1",
    }
    ended = ran([sys.executable, "-W", "error", str(tmp_path / "train.py")], env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    printed = ["script True", "spawn [[0, 0], [0, 0]]", "fork 2", "rank 0 True"]
    assert ended.stdout.splitlines() == printed
