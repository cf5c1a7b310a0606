"""All ranks reduce 200 metrics at every step, one by one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))

for _ in range(150):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    metrics = [loss.detach() * number for number in range(200)]
    with cost:
        if GOOD:
            dist.all_reduce(torch.stack(metrics))
        else:
            for metric in metrics:
                dist.all_reduce(metric)  # the cause
dist.barrier()
dist.destroy_process_group()
