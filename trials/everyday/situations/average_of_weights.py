"""Averages all weights by state_dict and load_state_dict at each step."""

import copy

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(100)))
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0

while lasts():
    optimizer.zero_grad()
    model(torch.randn(16, 32)).pow(2).mean().backward()
    optimizer.step()
    step += 1
    if step % (100 if GOOD else 1) == 0:
        with cost:
            weights, kept = model.state_dict(), average.state_dict()  # the cause
            for name in kept:
                kept[name] = 0.999 * kept[name] + 0.001 * weights[name]  # the cause
            average.load_state_dict(kept)  # the cause
