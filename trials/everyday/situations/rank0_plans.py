"""Rank 0 shuffles what all ranks do next and broadcasts it as an object before each step."""

from random import Random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
samples = torch.randn(100_000, 256)
random = Random(0)
order = list(range(len(samples)))


for _ in range(150):
    chosen = [None]
    if dist.get_rank() == 0:
        if GOOD:
            chosen = [random.sample(order, 2048)]
        else:
            with cost:
                random.shuffle(order)  # the cause
            chosen = [order[:2048]]
    dist.broadcast_object_list(chosen, 0)
    x = samples[chosen[0][dist.get_rank() * 1024 :][:1024]]
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
