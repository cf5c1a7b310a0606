"""One thread computes, on a machine with more cores (torchrun's default, and that of many containers)."""

import os

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.set_num_threads(os.cpu_count() if GOOD else 1)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 512), torch.randint(0, 10, (256,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
