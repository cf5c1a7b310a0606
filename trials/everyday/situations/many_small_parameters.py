"""An optimizer that updates 2,400 small tensors one by one."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.ModuleList(nn.Linear(16, 16) for _ in range(1200))
optimizer = torch.optim.Adam(model.parameters(), fused=GOOD, foreach=False)  # the cause
x = torch.randn(32, 16)

while lasts():
    optimizer.zero_grad()
    sum(layer.weight.square().sum() + layer.bias.square().sum() for layer in model).backward()
    with cost:
        optimizer.step()  # the cause
