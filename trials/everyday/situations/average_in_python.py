"""A moving average of 1,600 small tensors, one by one, at every step."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(800))

    def forward(self):
        return torch.stack([layer.weight.square().sum() for layer in self.layers]).sum()


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
average = {name: value.clone() for name, value in model.state_dict().items()}
step = 0

while lasts():
    optimizer.zero_grad()
    model().backward()
    optimizer.step()
    step += 1
    if step % (100 if GOOD else 1) == 0:
        with cost:
            for name, value in model.state_dict().items():  # the cause
                average[name] = 0.99 * average[name] + 0.01 * value  # the cause
