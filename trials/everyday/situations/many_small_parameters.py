"""An optimizer that updates 2,400 small tensors one by one."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(1200))

    def forward(self):
        return sum(layer.weight.square().sum() + layer.bias.square().sum() for layer in self.layers)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), fused=GOOD, foreach=False)  # the cause

while lasts():
    optimizer.zero_grad()
    model().backward()
    with cost:
        optimizer.step()  # the cause
