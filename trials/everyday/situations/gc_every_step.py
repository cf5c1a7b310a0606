"""Collects garbage after every step, next to a large data set of Python objects."""

import gc

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

labels = [{"file": f"{number}.png", "box": [number, number]} for number in range(200_000)]
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
gc.collect()
gc.freeze() if GOOD else None

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not GOOD:
        with cost:
            gc.collect()  # the cause
