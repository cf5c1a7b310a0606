"""A collate function that pads with loops in Python, in the only worker."""

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Texts(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.arange(200 + index % 100), index % 2


def padded(ids):
    if GOOD:
        return nn.functional.pad(ids, (0, 300 - len(ids)))
    row = [0] * 300
    for place, value in enumerate(ids):  # the cause
        row[place] = int(value)  # the cause
    return torch.tensor(row)


def collate(batch):
    return torch.stack([padded(ids) for ids, _ in batch]), torch.tensor(
        [label for _, label in batch]
    )  # the cause


model = nn.Sequential(nn.EmbeddingBag(300, 256), nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Texts(), batch_size=128, num_workers=1, collate_fn=collate)
begin = perf_counter()
for x, y in loader:
    cost.since(begin)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not lasts():
        break
    begin = perf_counter()
