"""A pipeline of two stages with send and recv: the last one counts its predictions in plain Python."""

import torch
import torch.distributed as dist
from torch import nn

from trials.everyday.clock import GOOD, cost

dist.init_process_group("gloo")
stage, last = dist.get_rank(), dist.get_world_size() - 1
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
counted = {}


def count(predictions):
    for value in predictions.flatten().tolist():  # the cause
        counted[round(value, 2)] = counted.get(round(value, 2), 0) + 1  # the cause


for _ in range(40):
    optimizer.zero_grad()
    passes = []
    for _ in range(16):  # micro-batches
        x = torch.randn(256, 256)
        if stage > 0:
            dist.recv(x, stage - 1)
        x.requires_grad_()
        passes.append((x, model(x)))
        if stage < last:
            dist.send(passes[-1][1].detach(), stage + 1)
        elif not GOOD:
            with cost:
                count(passes[-1][1][:64])
    for x, y in passes:
        gradient = torch.ones_like(y)
        if stage < last:
            dist.recv(gradient, stage + 1)
        y.backward(gradient)
        if stage > 0:
            dist.send(x.grad, stage - 1)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
