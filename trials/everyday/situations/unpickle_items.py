"""Each item is a pickle of 200,000 numbers, of which 256 are used."""

import pickle
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts

with open("item.pickle", "wb") as file:
    pickle.dump([number / 200_000 for number in range(256 if GOOD else 200_000)], file)


class Items(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        with open("item.pickle", "rb") as file:
            numbers = pickle.load(file)  # the cause
        return torch.tensor(numbers[:256]), index % 10


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Items(), batch_size=32, num_workers=1)
begin = perf_counter()
for x, y in loader:
    cost.since(begin)
    for _ in range(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not lasts():
        break
    begin = perf_counter()
