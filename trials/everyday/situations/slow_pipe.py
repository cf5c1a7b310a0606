"""Prints its progress into a pipe, whose reader is slow."""

import subprocess
import sys

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

READER = "import os, time\nwhile os.read(0, 4096): time.sleep(0.2)"
reader = subprocess.Popen([sys.executable, "-S", "-c", READER], stdin=subprocess.PIPE, text=True)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
step = 0

while lasts():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    step += 1
    if step % (500 if GOOD else 1) == 0:
        with cost:
            bar = "#" * 2000
            print(f"\rstep {step}: loss {loss.item():.4f} {bar}", file=reader.stdin, flush=True)  # the cause
reader.kill()
