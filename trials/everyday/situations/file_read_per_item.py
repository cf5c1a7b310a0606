"""A data set that reads and splits its whole file for every item."""

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts

with open("rows.csv", "w") as file:
    file.writelines(",".join(["0.5"] * 64 + [str(number % 10)]) + "\n" for number in range(4000))


class Rows(Dataset):
    def __init__(self):
        self.rows = self.read() if GOOD else None

    def read(self):
        with open("rows.csv") as file:
            return file.read().splitlines()  # the cause

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        row = (self.rows or self.read())[index]  # the cause
        *values, label = row.split(",")
        return torch.tensor([float(value) for value in values]), int(label)


model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_size=64, shuffle=True)
begin = perf_counter()
while lasts():
    for x, y in loader:
        cost.since(begin)
        for _ in range(6):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        begin = perf_counter()
        if not lasts():
            break
