"""Rank 0 writes a large checkpoint every ten steps, and the others wait at a barrier."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
embeddings = torch.randn(20_000_000)

for step in range(300):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % (250 if GOOD else 10) == 0:
        if dist.get_rank() == 0:
            with cost:
                torch.save(
                    {"network": network.state_dict(), "embeddings": embeddings}, "last.pt"
                )  # the cause
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
