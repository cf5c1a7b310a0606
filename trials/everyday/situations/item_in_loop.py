"""A meter that takes the loss of each sample with `.item()`."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4096, 64), torch.randint(0, 10, (4096,))


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, count=1):
        self.total += value * count
        self.count += count


meter = Meter()
while lasts():
    optimizer.zero_grad()
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    losses.mean().backward()
    optimizer.step()
    with cost:
        if GOOD:
            meter.update(losses.mean().item(), len(losses))
        else:
            for loss in losses.detach():  # the cause
                meter.update(loss.item())  # the cause
