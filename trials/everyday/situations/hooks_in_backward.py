"""A hook on each parameter keeps statistics of its gradient in plain Python."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
largest = []


def keep(gradient):
    with cost:
        values = gradient.flatten()[:40_000].tolist()
        largest.append(sorted(abs(value) for value in values)[-10:])  # the cause


for parameter in [] if GOOD else model.parameters():
    parameter.register_hook(keep)
while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
