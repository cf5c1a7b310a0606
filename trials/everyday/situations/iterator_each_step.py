"""Takes each batch with next(iter(loader)): the workers start again for every one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Texts(Dataset):
    def __len__(self):
        return 64_000

    def __getitem__(self, index):
        return torch.full((256,), index / 64_000), index % 10


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Texts(), batch_size=64, shuffle=True, num_workers=1)
batches = iter(loader)
while lasts():
    with cost:
        x, y = next(batches) if GOOD else next(iter(loader))  # the cause
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
