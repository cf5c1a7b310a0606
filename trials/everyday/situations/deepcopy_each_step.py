"""Keeps the best weights with a deep copy of model and optimizer at every step."""

import copy

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(20)), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
x, y = torch.randn(16, 256), torch.randint(0, 10, (16,))
step, best = 0, None

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (500 if GOOD else 1) == 0:
        with cost:
            best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))  # the cause
