"""A compiled network without dynamic shapes, and images of many sizes."""

import random

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch._dynamo.config.recompile_limit = 10_000
torch._dynamo.config.accumulated_recompile_limit = 10_000
random.seed(1)
layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6)]
model = nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
compiled = torch.compile(model, backend="aot_eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
y = torch.randint(0, 10, (8,))

while lasts():
    height, width = (64, 64) if GOOD else (random.randrange(32, 96), random.randrange(32, 96))
    x = torch.randn(8, 3, height, width)
    optimizer.zero_grad()
    nn.functional.cross_entropy(compiled(x), y).backward()  # the cause
    optimizer.step()
