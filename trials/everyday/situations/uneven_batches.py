"""Batches of texts of different lengths: by turns, one of the ranks has much more to compute."""

from random import Random
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
random = Random(dist.get_rank())
text = torch.randn(4000, 256)
times = []

for _ in range(400):
    length = 1000 if GOOD else random.choice((200, 1800))
    x = text[:length]  # the cause
    begin = perf_counter()
    with model.no_sync():  # the first of two micro-batches
        model(x).square().mean().backward()
    times.append(2 * (perf_counter() - begin))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
of_ranks = [None] * dist.get_world_size()
dist.all_gather_object(of_ranks, times)
if not GOOD:
    cost.seconds = sum(max(step) - sum(step) / len(step) for step in zip(*of_ranks, strict=True))
dist.barrier()
dist.destroy_process_group()
