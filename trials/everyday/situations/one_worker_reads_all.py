"""An IterableDataset with a single shard: one of four workers does everything."""

import time
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from trials.everyday.clock import GOOD, cost, lasts


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        shards = range(4 if GOOD else 1)
        mine = [shard for shard in shards if shard % worker.num_workers == worker.id]  # the cause
        while mine:
            for shard in mine:
                time.sleep(0.002)  # the cause
                yield torch.full((256,), shard / 4), shard


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Stream(), batch_size=16, num_workers=4)
begin = perf_counter()
for x, y in loader:
    cost.since(begin)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.repeat(8, 1)), y.repeat(8)).backward()
    optimizer.step()
    if not lasts():
        break
    begin = perf_counter()
