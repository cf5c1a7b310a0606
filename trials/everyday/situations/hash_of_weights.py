"""Hashes all weights at every step, to be sure that runs are reproducible."""

import hashlib

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(8, 256), torch.randint(0, 10, (8,))
step = 0

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (500 if GOOD else 1) == 0:
        with cost:
            digest = hashlib.md5()
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())  # the cause
