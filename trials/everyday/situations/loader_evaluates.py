"""Evaluates on everything, through a loader of its own, after every ten steps."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(12_800, 256), torch.randint(0, 10, (12_800,)))
training, held_out = DataLoader(data, batch_size=128), DataLoader(data, batch_size=512)
step = 0

while lasts():
    for x, y in training:
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step % (500 if GOOD else 10) == 0:
            model.eval()
            with cost, torch.no_grad():
                for inputs, labels in held_out:  # the cause
                    right = (model(inputs).argmax(1) == labels).sum()  # the cause
            model.train()
        if not lasts():
            break
