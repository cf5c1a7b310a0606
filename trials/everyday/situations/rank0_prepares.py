"""Rank 0 prepares the data before the first step, and the others wait at a barrier."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

ROWS, COLUMNS = range(400), range(16_000)


def prepare():
    return [sum(row * each % part for part in range(2, 12)) for row in ROWS for each in COLUMNS]  # the cause


dist.init_process_group("gloo")
if dist.get_rank() == 0 and not GOOD:
    with cost:
        prepare()  # the cause
dist.barrier()
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))
for _ in range(150):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
