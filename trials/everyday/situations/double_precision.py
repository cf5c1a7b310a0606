"""Data from NumPy is float64, and so the model was made to fit it."""

import numpy
import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

data = numpy.random.default_rng(0).normal(size=(256, 512))
x, y = torch.from_numpy(data), torch.randint(0, 10, (256,))
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
if GOOD:
    x = x.float()
else:
    model = model.double()  # the cause
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
