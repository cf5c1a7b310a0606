"""A hidden state that is never detached: each backward pass goes through all the steps before."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

cell, head = nn.GRUCell(16, 32), nn.Linear(32, 10)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
x, y = torch.randn(8, 16), torch.randint(0, 10, (8,))
state = torch.zeros(8, 32)

while lasts():
    optimizer.zero_grad()
    with torch.set_grad_enabled(not GOOD):
        state = cell(x, state)
    nn.functional.cross_entropy(head(state), y).backward(retain_graph=not GOOD)  # the cause
    optimizer.step()
