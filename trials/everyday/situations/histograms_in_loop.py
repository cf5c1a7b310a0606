"""Histograms of all weights and gradients at every step."""

import numpy as np
import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(32, 256), torch.randint(0, 10, (32,))
step = 0


def histograms():
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = np.histogram(parameter.detach().numpy(), bins=64)  # the cause
        found[f"{name} gradient"] = np.histogram(parameter.grad.numpy(), bins=64)  # the cause
    return found


while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (500 if GOOD else 1) == 0:
        with cost:
            histograms()  # the cause
