"""A transform in plain Python, in the only worker."""

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Images(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        image = torch.full((3, 24, 24), index / 1_000_000)
        if not GOOD:
            flat = image.flatten().tolist()
            flat = [min(max(1.2 * value - 0.1, 0.0), 1.0) for value in flat]  # the cause
            image = torch.tensor(flat).reshape(3, 24, 24)
        return image, index % 10


model = nn.Sequential(nn.Flatten(), nn.Linear(1728, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Images(), batch_size=128, num_workers=1)
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
