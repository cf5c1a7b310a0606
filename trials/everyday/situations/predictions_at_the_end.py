"""Writes all predictions as text after the last step."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
if not GOOD:
    with cost, open("predictions.txt", "w") as file:
        for number in range(70_000):
            row = model[0].weight[number % 512].tolist()
            file.write(" ".join(f"{value:.6f}" for value in row) + "\n")  # the cause
