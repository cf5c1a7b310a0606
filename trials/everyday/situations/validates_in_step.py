"""A validation batch goes through the model at each step, with gradients and in training mode."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(512, 128), torch.randint(0, 10, (512,))
others, labels = torch.randn(32_768, 128), torch.randint(0, 10, (32_768,))
step, losses = 0, []

while lasts():
    step += 1
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % (200 if GOOD else 1) == 0:
        with cost:
            losses.append(nn.functional.cross_entropy(model(others), labels).item())  # the cause
