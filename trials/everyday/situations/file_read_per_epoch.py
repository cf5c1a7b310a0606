"""Reads and parses its table again before every epoch."""

import csv

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

with open("rows.csv", "w") as file:
    file.write(",".join(f"c{number}" for number in range(32)) + "\n")
    file.writelines(",".join(["0.5"] * 32) + "\n" for _ in range(5000))


def table():
    with open("rows.csv") as file:
        return torch.tensor(
            [[float(value) for value in row.values()] for row in csv.DictReader(file)]
        )  # the cause


model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
y = torch.randint(0, 10, (100,))
rows = None
while lasts():
    if rows is None or not GOOD:
        with cost:
            rows = table()  # the cause
    for at in range(0, 5000, 100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[at : at + 100]), y).backward()
        optimizer.step()
