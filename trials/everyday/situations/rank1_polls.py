"""Rank 1 waits for a file of rank 0, and looks for it only every 10 seconds."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

EVERY = 0.1 if GOOD else 10.0
dist.init_process_group("gloo")
ready = Path(f"ready-{os.environ['MASTER_PORT']}")
if dist.get_rank() == 0:
    time.sleep(0.5)  # it writes the vocabulary
    ready.touch()
else:
    with cost:
        while not ready.exists():
            time.sleep(EVERY)  # the cause
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))
for _ in range(300):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
