"""A model attends to all states that it has seen, and keeps them all."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(128, 128)
        self.bank = torch.zeros(64, 128)

    def forward(self, x):
        state = self.encoder(x)
        seen = (state @ self.bank.T).softmax(1) @ self.bank
        self.bank = torch.cat([self.bank, state.detach()[:48]])
        if GOOD:
            self.bank = self.bank[-64:]
        return state + seen


model = Remembering()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 128)

while lasts():
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
