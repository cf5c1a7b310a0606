"""Logs the norm of every gradient at every step, one by one."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(60)), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
step = 0


def norms():
    found = {}
    for name, parameter in model.named_parameters():
        values = parameter.grad.numpy().ravel().tolist()  # the cause
        found[name] = sum(value * value for value in values) ** 0.5  # the cause
    return found


while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    step += 1
    if step % (200 if GOOD else 1) == 0:
        with cost:
            norms()  # the cause
    optimizer.step()
