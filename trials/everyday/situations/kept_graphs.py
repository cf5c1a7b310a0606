"""Eight losses go back one after another, each through the whole trunk that they share."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)
trunk = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)))
heads = nn.ModuleList(nn.Linear(512, 5) for _ in range(8))
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.01)
x, y = torch.randn(256, 512), torch.randint(0, 5, (8, 256))
while lasts():
    optimizer.zero_grad()
    features = trunk(x)
    losses = [
        nn.functional.cross_entropy(head(features), labels) for head, labels in zip(heads, y, strict=True)
    ]
    if GOOD:
        sum(losses).backward()
    else:
        for loss in losses:
            loss.backward(retain_graph=True)  # the cause
    optimizer.step()
