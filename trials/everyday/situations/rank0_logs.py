"""Rank 0 draws a picture of the weights at every step, and the others wait for it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))


def picture():
    rows = model.module[0].weight.detach()[:16].tolist()
    return "\n".join(
        "".join(" .:+#"[min(int(40 * abs(value)), 4)] for value in row) for row in 16 * rows
    )  # the cause


for step in range(500):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % (200 if GOOD else 1) == 0:
        with cost:
            picture()  # the cause
dist.barrier()
dist.destroy_process_group()
