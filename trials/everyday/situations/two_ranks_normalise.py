"""Two of three ranks normalise their batches in plain Python, and the third waits for both."""

import torch
import torch.distributed as dist
from torch import nn

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
optimizer = torch.optim.Adam(model.parameters())


def normalised(batch):
    rows = batch.tolist()
    return torch.tensor([[(value - 0.1) * 1.1 for value in row] for row in rows])  # the cause


for _ in range(200):
    x = torch.randn(64, 256)
    if dist.get_rank() > 0 and not GOOD:
        with cost:
            for _ in range(16):
                x = normalised(x)  # the cause
    optimizer.zero_grad()
    for _ in range(8):
        (model(x + torch.randn_like(x)) - x).square().mean().backward()
    gradients = torch.cat([each.grad.flatten() for each in model.parameters()])
    dist.all_reduce(gradients)
    torch.nn.utils.vector_to_parameters(gradients / 3, [each.grad for each in model.parameters()])
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
