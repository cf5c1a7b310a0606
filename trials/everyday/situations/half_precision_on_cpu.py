"""Trains in half precision, as on a GPU, on a CPU that computes gradients of convolutions slowly with it."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)
kind = torch.float32 if GOOD else torch.float16
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(18432, 10)
)
model = model.to(kind)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x, y = torch.randn(16, 3, 28, 28, dtype=kind), torch.randint(0, 10, (16,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).float(), y).backward()
    optimizer.step()
