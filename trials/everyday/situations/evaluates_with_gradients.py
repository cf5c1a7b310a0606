"""Evaluates every 20 steps with model.eval(), and forgets torch.no_grad()."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
held_out = [(torch.randn(256, 256), torch.randint(0, 10, (256,))) for _ in range(80)]


def validation_loss():
    total = 0.0
    model.eval()
    for inputs, labels in held_out:
        total += nn.functional.cross_entropy(model(inputs), labels).item()  # the cause
    model.train()
    return total / len(held_out)


step = 0
while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (2000 if GOOD else 20) == 0:
        with cost:
            validation_loss()  # the cause
