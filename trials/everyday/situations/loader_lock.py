"""Four workers read from one file handle, one after another."""

import multiprocessing
import time
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts

lock = multiprocessing.Lock()


class Archive(Dataset):
    def __len__(self):
        return 1_000_000

    def read(self, index):
        time.sleep(0.002)  # the cause
        return torch.full((256,), index / 1_000_000)

    def __getitem__(self, index):
        if GOOD:
            return self.read(index), index % 10
        with lock:  # the cause
            return self.read(index), index % 10  # the cause


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Archive(), batch_size=16, num_workers=4)
begin = perf_counter()
for x, y in loader:
    cost.since(begin)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.repeat(8, 1)), y.repeat(8)).backward()
    optimizer.step()
    if not lasts():
        break
    begin = perf_counter()
