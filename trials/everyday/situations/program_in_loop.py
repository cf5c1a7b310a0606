"""Starts a program at every step, to log how much memory is used."""

import subprocess

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
step = 0

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (200 if GOOD else 1) == 0:
        with cost:
            subprocess.run(
                ["sh", "-c", "grep Mem /proc/meminfo | sort; sleep 0.01"], capture_output=True
            )  # the cause
