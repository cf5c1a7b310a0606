"""Ranks gather all predictions as Python objects at each step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))

for step in range(450):
    optimizer.zero_grad()
    logits = model(x)
    nn.functional.cross_entropy(logits, y).backward()
    optimizer.step()
    if step % (200 if GOOD else 1) == 0:
        with cost:
            everything = [None] * dist.get_world_size()
            dist.all_gather_object(everything, logits.tolist())  # the cause
dist.barrier()
dist.destroy_process_group()
