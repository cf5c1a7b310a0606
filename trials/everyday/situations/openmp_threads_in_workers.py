"""Each worker of the loader starts eight OpenMP threads per core."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, lasts

cores = os.cpu_count() or 1


def start_worker(_):
    torch.set_num_threads(1 if GOOD else 8 * cores)


class Images(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        image = torch.full((3, 256, 256), index / 1_000_000)
        for _ in range(4):
            image = nn.functional.avg_pool2d(image[None], 5, 1, 2)[0] + image * 0.5
        return image.mean((1, 2)), index % 10


model = nn.Sequential(nn.Linear(3, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Images(), batch_size=4, num_workers=cores, worker_init_fn=start_worker)
for x, y in loader:
    for _ in range(2 * cores):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.repeat(16, 1)), y.repeat(16)).backward()
    optimizer.step()
    if not lasts():
        break
