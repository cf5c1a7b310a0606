"""Rank 1 reads from a slow disk (a sleep stands for it), and rank 0 waits."""

import time
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
rank = dist.get_rank()


class Files(Dataset):
    def __len__(self):
        return 300 * 32

    def __getitem__(self, index):
        if rank == 1 and not GOOD:
            time.sleep(0.001)  # the cause
        return torch.full((256,), index / 9600), index % 10


model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begin = perf_counter()
for x, y in DataLoader(Files(), batch_size=32):
    if rank == 1:
        cost.since(begin)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.repeat(32, 1)), y.repeat(32)).backward()
    optimizer.step()
    begin = perf_counter()
dist.barrier()
dist.destroy_process_group()
