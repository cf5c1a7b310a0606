"""A loader without workers, which reads from slow storage."""

import time
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Images(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)  # the cause
        return torch.full((256,), index / 100_000), index % 10


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Images(), batch_size=16, num_workers=8 if GOOD else 0)  # the cause
begin = perf_counter()
for x, y in loader:
    cost.since(begin)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.repeat(8, 1)), y.repeat(8)).backward()
    optimizer.step()
    if not lasts():
        break
    begin = perf_counter()
