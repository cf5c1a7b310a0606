"""Searches all texts with a pattern that backtracks, in the loop."""

import re

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

pattern = re.compile(r"(a+b?)+c" if not GOOD else r"[ab]+c")
texts = ["ab" * 9 + "d"] * (500 if not GOOD else 4)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))

while lasts():
    with cost:
        found = [pattern.search(text) is not None for text in texts]  # the cause
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y + sum(found)).backward()
    optimizer.step()
