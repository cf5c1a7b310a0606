"""Rank 1 alone augments its batches in plain Python, and rank 0 waits."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))


def jittered(batch):
    rows = batch[:64].tolist()
    return torch.tensor([[value + 0.01 * (value > 0.5) for value in row] for row in rows])  # the cause


for _ in range(400):
    if dist.get_rank() == 1 and not GOOD:
        with cost:
            x[:64] = jittered(x)  # the cause
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
