"""The first epoch reads files that are not in the page cache (a sleep stands for the disk)."""

import time
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Files(Dataset):
    def __init__(self):
        self.cached = set(range(len(self))) if GOOD else set()

    def __len__(self):
        return 1600

    def __getitem__(self, index):
        if index not in self.cached:
            time.sleep(0.004)  # the cause
            self.cached.add(index)
        return torch.full((256,), index / 1600), index % 10


model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Files(), batch_size=32, shuffle=True)
begin = perf_counter()
while lasts():
    for x, y in loader:
        cost.since(begin)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        begin = perf_counter()
        if not lasts():
            break
