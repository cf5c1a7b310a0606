"""The loss is a loop over the samples of the batch: a thousand small operators, and their gradients."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 128), torch.randint(0, 10, (256,))
weights = torch.rand(256)


def loss_of(scores):
    if GOOD:
        return (weights * nn.functional.cross_entropy(scores, y, reduction="none")).mean()
    total = torch.zeros(())
    for row in range(len(y)):  # the cause
        total = total - weights[row] * torch.log_softmax(scores[row], 0)[y[row]]  # the cause
    return total / len(y)


while lasts():
    optimizer.zero_grad()
    loss_of(model(x)).backward()
    optimizer.step()
