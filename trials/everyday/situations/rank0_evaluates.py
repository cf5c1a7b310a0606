"""Rank 0 evaluates, and the others wait at a barrier."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
network = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))
held_out = [(torch.randn(256, 256), torch.randint(0, 10, (256,))) for _ in range(100)]


def accuracy(batches):
    network.eval()
    with torch.no_grad():
        right = sum(int((network(x).argmax(1) == y).sum()) for x, y in batches)  # the cause
    network.train()
    return right


for step in range(400):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % (250 if GOOD else 20) == 0:
        if GOOD:
            accuracy(held_out[dist.get_rank() * 50 :][:50])
        elif dist.get_rank() == 0:
            with cost:
                accuracy(held_out)  # the cause
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
