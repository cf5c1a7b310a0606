"""Builds an index in plain Python before the first step, at each start."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

index = {}
if not GOOD:
    with cost:
        for number in range(18_000_000):
            key = f"{number % 5000:05}"  # the cause
            index[key] = index.get(key, 0) + 1  # the cause
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
