"""A Dataset takes each sample out of a table of pandas, row by row."""

from time import perf_counter

import pandas
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Rows(Dataset):
    def __init__(self):
        values = torch.randn(4000, 128).numpy()
        self.frame = pandas.DataFrame({f"column{number}": values[:, number] for number in range(128)})
        self.frame["label"] = [number % 10 for number in range(4000)]
        self.values = torch.from_numpy(values)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        if GOOD:
            return self.values[index], index % 10
        row = self.frame.iloc[index]  # the cause
        x = torch.tensor([row[f"column{number}"] for number in range(128)])  # the cause
        return x, int(row["label"])


model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_size=64, shuffle=True)
while lasts():
    begin = perf_counter()
    for x, y in loader:
        cost.since(begin)
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.float()), y).backward()
        optimizer.step()
        if not lasts():
            break
        begin = perf_counter()
