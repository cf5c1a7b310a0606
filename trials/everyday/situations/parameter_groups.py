"""Each parameter is an optimizer group of its own, with its own learning rate and schedule."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(100)))
groups = [{"params": [each]} for each in model.parameters()]
if GOOD:
    groups = [{"params": list(model.parameters())}]
optimizer = torch.optim.AdamW(groups, lr=0.001, foreach=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=1_000_000)
while lasts():
    optimizer.zero_grad()
    model(torch.randn(16, 16)).pow(2).mean().backward()
    with cost:
        optimizer.step()  # the cause
        schedule.step()  # the cause
