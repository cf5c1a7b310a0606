"""Evaluates the samples one by one."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
step = 0
held_out, labels = torch.randn(4096, 256), torch.randint(0, 10, (4096,))


def accuracy():
    model.eval()
    right, size = 0, 512 if GOOD else 1
    with torch.no_grad():
        for at in range(0, len(held_out), size):
            right += int(
                (model(held_out[at : at + size]).argmax(1) == labels[at : at + size]).sum()
            )  # the cause
    model.train()
    return right / len(held_out)


while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
    if step % 100 == 0:
        with cost:
            accuracy()  # the cause
