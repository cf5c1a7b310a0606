"""DistributedDataParallel looks for unused parameters in each of 400 layers, and all are used."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD

dist.init_process_group("gloo")


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(400))

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


model = DistributedDataParallel(Sum(), find_unused_parameters=not GOOD)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
x = torch.randn(32, 8)

for _ in range(400):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
