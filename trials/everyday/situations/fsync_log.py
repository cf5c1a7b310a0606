"""Writes a line about each step, and waits until the disk has it."""

import json
import os

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))
step = 0

with open("log.jsonl", "w") as log:
    while lasts():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        if step % (1000 if GOOD else 1) == 0:
            with cost:
                for name, value in model.named_parameters():
                    line = {"step": step, name: value.detach().flatten()[:200].tolist()}  # the cause
                    log.write(json.dumps(line))  # the cause
                    log.flush()
                    os.fsync(log.fileno())  # the cause
