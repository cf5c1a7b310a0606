"""A checkpoint every three steps."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
x, y = torch.randn(16, 1024), torch.randint(0, 10, (16,))
step = 0

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % (1000 if GOOD else 3) == 0:
        with cost:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt"
            )  # the cause
