"""A library pinned the process to one core, and its loader workers inherit that."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, lasts

if not GOOD:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Samples(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        values = [(index * number) % 17 / 17 for number in range(700)]
        return torch.tensor(values[:256]), index % 10


torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Samples(), batch_size=64, shuffle=True, num_workers=1, persistent_workers=True)
while lasts():
    for x, y in loader:
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if not lasts():
            break
