"""Saves the optimizer's state, larger than the model, after every four steps."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))
step = 0

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (1500 if GOOD else 4) == 0:
        with cost:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt"
            )  # the cause
