"""A background thread computes in plain Python, and holds the interpreter lock."""

import threading
import time

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

seen = list(range(20_000))


def summarise():
    while True:
        squares = 0
        for value in seen:  # the cause
            squares += value * value  # the cause
        if GOOD:
            time.sleep(1.0)


threading.Thread(target=summarise, daemon=True).start()
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(30)), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
