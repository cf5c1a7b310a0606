"""A logger that writes its whole history again at every step."""

import json

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))


class Logger:
    def __init__(self):
        self.history = []

    def log(self, values):
        self.history.append(values)
        with open("history.json", "w") as file:
            json.dump(self.history, file)  # the cause


logger = Logger()
step = 0
while lasts():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    step += 1
    if step % (500 if GOOD else 1) == 0:
        with cost:
            logger.log({f"metric {number}": loss.item() * number for number in range(100)})  # the cause
