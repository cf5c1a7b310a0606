"""Real PyTorch, started as under `stepscope run`: torchrun and its ranks, loaders and their workers."""

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
    for method in ("spawn", "forkserver"):
        loader = DataLoader(Hooked(), batch_size=2, num_workers=1, multiprocessing_context=method)
        print(method, [hooked.tolist() for hooked in loader], flush=True)
    loader = DataLoader(Hooked(), batch_size=2, num_workers=2)
    print("fork", len(list(loader)), flush=True)
    torch.multiprocessing.spawn(train, nprocs=1)
"""

AT_ITS_END = f"""
import atexit, os, sys
show = lambda: print(os.path.basename(sys.argv[0]), "torch" in sys.modules, {HOOKED}, flush=True)
atexit.register(show)
"""


def python(folder: Path, script: str, *words: str) -> list[str]:
    (folder / "train.py").write_text(script)
    ledgers = folder / "ledgers"
    ledgers.mkdir()
    environment = unobserved()
    environment |= {
        "STEPSCOPE_INSTRUMENT": "1",
        "STEPSCOPE_LINES": "1",
        "PYTHONPATH": f"{STARTUP}:{folder}",
    }
    environment |= {"STEPSCOPE_LEDGER_DIR": str(ledgers), "OMP_NUM_THREADS": "1"}
    ended = ran([sys.executable, *words, str(folder / "train.py")], env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "stepscope:" not in ended.stderr
    return ended.stdout.splitlines()


def test_a_rank_that_is_spawned_is_hooked_but_no_worker_and_forking_with_the_sampler_warns_of_nothing(
    tmp_path: Path,
) -> None:
    assert python(tmp_path, SCRIPT, "-W", "error") == [
        "script True",
        "spawn [[0, 0], [0, 0]]",
        "forkserver [[0, 0], [0, 0]]",
        "fork 2",
        "rank 0 True",
    ]


def test_torchrun_is_not_hooked_but_its_rank_is(tmp_path: Path) -> None:
    """Both import torch. The user's own sitecustomize prints at the end of each process."""
    (tmp_path / "sitecustomize.py").write_text(AT_ITS_END)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    ended = python(tmp_path, "import torch", *words)
    assert sorted(ended) == ["run.py True False", "train.py True True"]
