"""Prints all predictions at every step."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
step = 0

while lasts():
    optimizer.zero_grad()
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
    step += 1
    if step % (500 if GOOD else 1) == 0:
        with cost:
            print(
                step, float(loss), [[f"{value:.2f}" for value in row] for row in logits.tolist()]
            )  # the cause
