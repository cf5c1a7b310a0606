"""A sampler sorts all lengths again for each batch, in the training process."""

from random import Random
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from trials.everyday.clock import GOOD, cost, lasts

random = Random(1)
lengths = [random.randrange(1000) for _ in range(120_000)]


class Buckets(Sampler):
    def __iter__(self):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        while True:
            if not GOOD:
                order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))  # the cause
            begin = random.randrange(len(order) - 32)
            yield order[begin : begin + 32]


class Rows(Dataset):
    def __getitem__(self, index):
        return torch.full((256,), lengths[index] / 1000), index % 10


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_sampler=Buckets(), num_workers=1)
begin = perf_counter()
for x, y in loader:
    cost.since(begin)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not lasts():
        break
    begin = perf_counter()
