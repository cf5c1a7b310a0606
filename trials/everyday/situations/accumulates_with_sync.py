"""Two ranks accumulate gradients over eight batches, and exchange them after each."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD

torch.set_num_threads(1)
dist.init_process_group("gloo")
wide = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))
model = DistributedDataParallel(wide)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8, 256)

for _ in range(60):
    optimizer.zero_grad()
    for batch in range(8):
        with model.no_sync() if GOOD and batch < 7 else nullcontext():
            model(x).pow(2).mean().backward()  # the cause
    optimizer.step()
dist.destroy_process_group()
