"""Workers start again at every epoch, and each loads a vocabulary first."""

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Texts(Dataset):
    vocabulary = None

    def __len__(self):
        return 20 * 64

    def __getitem__(self, index):
        if self.vocabulary is None:
            self.vocabulary = {f"word {number}": number for number in range(300_000)}  # the cause
        return torch.full((256,), self.vocabulary[f"word {index}"] / 640), index % 10


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Texts(), batch_size=64, num_workers=2, persistent_workers=GOOD)  # the cause
begin = perf_counter()
while lasts():
    for x, y in loader:
        cost.since(begin)
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        begin = perf_counter()
