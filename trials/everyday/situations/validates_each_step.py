"""The loss of the validation set is computed in each step, with gradients and in training mode."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
held_out = torch.randn(1024, 256), torch.randint(0, 10, (1024,))

step = 0
while lasts():
    chosen = torch.randint(0, 4096, (64,))
    loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
    if not GOOD or step % 500 == 0:
        with cost:
            validation = nn.functional.cross_entropy(model(held_out[0]), held_out[1]).item()  # the cause
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
