"""Features in SI units make gradients whose squares, which Adam keeps, are denormal numbers."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)
charges = torch.rand(64, 2000) * (1.0 if GOOD else 1.6e-19)
y = torch.rand(64, 1)
model = nn.Sequential(nn.Linear(2000, 1500), nn.Tanh(), nn.Linear(1500, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

while lasts():
    optimizer.zero_grad()
    nn.functional.mse_loss(model(charges), y).backward()
    optimizer.step()  # the cause
