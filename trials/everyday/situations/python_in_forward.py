"""A forward pass that treats the samples of a batch one by one, in Python."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(32, 10)

    def forward(self, x):
        query, key = self.query(x), self.key(x)
        if GOOD:
            return self.head((query @ key.transpose(1, 2)).softmax(-1).sum(1))
        rows = []
        for sample in range(len(x)):
            scores = [(query[sample] * key[sample, at]).sum(-1) for at in range(32)]  # the cause
            rows.append(torch.stack(scores, -1).softmax(-1).sum(0))  # the cause
        return self.head(torch.stack(rows))


model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 32, 64), torch.randint(0, 10, (32,))

while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
