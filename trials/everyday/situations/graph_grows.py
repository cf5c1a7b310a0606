"""A hidden state that is never detached: each backward pass goes through all the steps before."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

cell, head = nn.GRUCell(64, 128), nn.Linear(128, 10)
optimizer = torch.optim.SGD([*head.parameters()], lr=0.01)
for parameter in cell.parameters():
    parameter.requires_grad_(True)
x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
state = torch.zeros(64, 128)

while lasts():
    optimizer.zero_grad()
    state = cell(x, state.detach() if GOOD else state)
    nn.functional.cross_entropy(head(state), y).backward(retain_graph=not GOOD)  # the cause
    optimizer.step()
