"""PyTorch's profiler, forgotten around the whole training."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from trials.everyday.clock import GOOD, lasts

model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(20)), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 32), torch.randint(0, 10, (32,))

with nullcontext() if GOOD else profile(activities=[ProfilerActivity.CPU], with_stack=True):
    while lasts():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
