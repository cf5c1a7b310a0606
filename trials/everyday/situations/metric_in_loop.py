"""A confusion matrix in plain Python after every step."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(1024, 64), torch.randint(0, 10, (1024,))


def confusion(logits, labels):
    table = torch.zeros(10, 10)
    if GOOD:
        return torch.bincount(10 * labels + logits.argmax(1), minlength=100).reshape(10, 10)
    for row, label in zip(logits, labels, strict=True):  # the cause
        table[label, row.argmax()] += 1  # the cause
    return table


while lasts():
    optimizer.zero_grad()
    logits = model(x)
    nn.functional.cross_entropy(logits, y).backward()
    optimizer.step()
    with cost:
        confusion(logits.detach(), y)  # the cause
