"""Trains on one sample after the other: each call takes longer than what it computes."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)
x, y = torch.randn(20_000, 64), torch.randint(0, 10, (20_000,))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batches = torch.randperm(len(x)).split(512 if GOOD else 1)

while lasts():
    for batch in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()  # the cause
        optimizer.step()
        if not lasts():
            break
