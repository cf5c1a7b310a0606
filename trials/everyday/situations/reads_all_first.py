"""`list(loader)` before training: every item is made before the first step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Items(Dataset):
    def __len__(self):
        return 400 if GOOD else 20_000

    def __getitem__(self, index):
        values = [((index + k) * 7919 % 1000) / 1000 for k in range(4000)]  # the cause
        return torch.tensor(values[:64]), index % 10


with cost:
    batches = list(DataLoader(Items(), batch_size=40))  # the cause
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

while lasts():
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if not lasts():
            break
