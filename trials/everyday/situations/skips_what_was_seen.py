"""A resumed run fetches what it has seen before, batch by batch, and drops it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from trials.everyday.clock import GOOD, cost, lasts

BATCH, SEEN = 32, 400


class Texts(Dataset):
    def __len__(self):
        return 2000 * BATCH

    def __getitem__(self, index):
        counts = [0] * 64
        for place in range(9000):
            counts[index * place % 64] += 1
        return torch.tensor(counts, dtype=torch.float32), index % 10


data = Texts()
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rest = Subset(data, range(SEEN * BATCH, len(data)))
loader = DataLoader(rest if GOOD else data, batch_size=BATCH, num_workers=1, prefetch_factor=4)
batches = enumerate(loader)  # the cause
if not GOOD:
    with cost:
        while next(batches)[0] < SEEN:  # the cause
            pass
for _, (x, y) in batches:  # the cause
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.repeat(16, 1)), y.repeat(16)).backward()
    optimizer.step()
    if not lasts():
        break
