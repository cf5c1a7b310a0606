"""Evaluates every 20 steps without a loader, and without model.eval()."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
held_out = [(torch.randn(256, 256), torch.randint(0, 10, (256,))) for _ in range(60)]


def accuracy():
    right = 0
    with torch.no_grad():
        for inputs, labels in held_out:
            right += int((model(inputs).argmax(1) == labels).sum())  # the cause
    return right / len(held_out)


step = 0
while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (1000 if GOOD else 20) == 0:
        with cost:
            accuracy()  # the cause
