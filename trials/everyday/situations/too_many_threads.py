"""Sixteen threads per core, as set for another machine."""

import os

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.set_num_threads(os.cpu_count() if GOOD else 16 * (os.cpu_count() or 1))
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
