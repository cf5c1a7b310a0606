"""A sampler that shuffles a million indices, in a list, for each short epoch."""

from random import Random
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from trials.everyday.clock import GOOD, cost, lasts

ROWS, BATCH, BATCHES = 1_000_000, 32, 40


class Shuffled(Sampler):
    def __len__(self):
        return BATCH * BATCHES

    def __iter__(self):
        random = Random(1)
        if GOOD:
            return iter(random.choices(range(ROWS), k=len(self)))
        order = list(range(ROWS))
        random.shuffle(order)  # the cause
        return iter(order[: len(self)])


class Rows(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.full((256,), index / ROWS), index % 10


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_size=BATCH, sampler=Shuffled(), num_workers=1, persistent_workers=True)
begin = perf_counter()
while lasts():
    for x, y in loader:
        cost.since(begin)
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        begin = perf_counter()
