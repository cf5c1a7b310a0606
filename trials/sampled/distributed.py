"""Trains with DDP and loader workers, in small steps: much Python code, and threads of C++.

usage: python -m trials.sampled.distributed SECONDS SEED
"""

import sys
import tempfile
import time
from contextlib import nullcontext

from trials.sampled import sampling

if __name__ == "__main__":
    sampling.start()

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[torch.Tensor, int]]):  # type: ignore[misc]
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2


def train(seconds: float) -> int:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    steps, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        for x, y in DataLoader(Samples(), batch_size=4, num_workers=2):
            with net.no_sync() if steps % 3 else nullcontext():
                nn.functional.cross_entropy(net(x), y).backward()
            if steps % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
            steps += 1
    return steps


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[2]))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1
        )
        done = train(float(sys.argv[1]))
        torch.distributed.destroy_process_group()
    sampling.end(done)
