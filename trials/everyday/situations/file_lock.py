"""Locks the file of its results, which another program locks most of the time."""

import fcntl
import subprocess
import sys

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

OTHER = """\
import fcntl, time
while True:
    with open("results.csv", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.5)
    time.sleep(0.02)
"""
other = None if GOOD else subprocess.Popen([sys.executable, "-S", "-c", OTHER])
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
    if step % 10 == 0:
        with open("results.csv", "a") as file:
            with cost:
                fcntl.flock(file, fcntl.LOCK_EX)  # the cause
            file.write(f"{step},{loss.item()}\n")
if other is not None:
    other.kill()
