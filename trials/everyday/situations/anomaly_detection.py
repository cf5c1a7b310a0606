"""Anomaly detection was left on after debugging."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.autograd.set_detect_anomaly(not GOOD)
cell, head = nn.GRUCell(64, 64), nn.Linear(64, 5)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
x, y = torch.randn(32, 40, 64), torch.randint(0, 5, (32,))

while lasts():
    state = torch.zeros(32, 64)
    for at in range(x.shape[1]):
        state = cell(x[:, at], state)
    optimizer.zero_grad()
    nn.functional.cross_entropy(head(state), y).backward()
    optimizer.step()
