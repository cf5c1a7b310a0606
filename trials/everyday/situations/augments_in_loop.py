"""Augments each batch with NumPy, in the training loop."""

import numpy as np
import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
images = np.random.default_rng(1).random((128, 64, 64), dtype=np.float32)
blurred = None


def blur(images):
    return sum(np.roll(images, shift, axis) for shift in range(-3, 4) for axis in (1, 2))  # the cause


while lasts():
    if blurred is None or not GOOD:
        with cost:
            blurred = blur(images)  # the cause
    x = torch.from_numpy(blurred[:, ::4, ::4].reshape(128, 256).copy())
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
