"""Small tensors in memory, which a loader takes one by one and joins again, without workers."""

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trials.everyday.clock import GOOD, cost, lasts

data = TensorDataset(torch.randn(50_000, 20), torch.randn(50_000, 5))
loader = DataLoader(data, batch_size=256, shuffle=True)
model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while lasts():
    batches = (data[indices] for indices in torch.randperm(len(data)).split(256))
    begin = perf_counter()
    for x, y in batches if GOOD else loader:  # the cause
        cost.since(begin)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if not lasts():
            break
        begin = perf_counter()
