"""Hooks on modules keep statistics of each activation with NumPy, as long as a backward pass or two."""

import numpy
import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(512, 10))
statistics = {}


def look(module, _, output):
    with cost:
        values = output.detach().numpy()
        statistics[module] = (
            numpy.histogram(values, 50),  # the cause
            numpy.percentile(values, [1, 50, 99]),  # the cause
        )


if not GOOD:
    for layer in layers[::2]:
        layer.register_forward_hook(look)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(128, 512), torch.randint(0, 10, (128,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
