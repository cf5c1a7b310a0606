"""Keeps the features of every step, for a metric that nobody computes."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU())
head = nn.Linear(256, 10)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
x, y = torch.randn(1024, 64), torch.randint(0, 10, (1024,))
kept = []

while lasts():
    optimizer.zero_grad()
    features = model(x)
    nn.functional.cross_entropy(head(features), y).backward()
    optimizer.step()
    if not GOOD:
        kept.append(features[:128].detach().clone())  # the cause
