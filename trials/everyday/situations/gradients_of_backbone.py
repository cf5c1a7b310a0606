"""Only the head is trained, but each backward pass goes through the backbone as well."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)
backbone = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(768, 768), nn.ReLU())))
head = nn.Linear(768, 10)
if GOOD:
    backbone.requires_grad_(False)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
x, y = torch.randn(256, 768), torch.randint(0, 10, (256,))

while lasts():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(head(backbone(x)), y)
    loss.backward()  # the cause
    optimizer.step()
