"""An optimizer of one's own: it reads norms of each tensor as Python numbers and sorts its values."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts


class Clips(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        with cost:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if GOOD:
                        parameter.add_(parameter.grad.clamp(-0.1, 0.1), alpha=-0.01)
                        continue
                    values = parameter.grad.flatten()[:60_000].tolist()
                    limit = sorted(abs(value) for value in values)[len(values) * 9 // 10]  # the cause
                    parameter.add_(parameter.grad.clamp(-limit, limit), alpha=-0.01)


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = Clips(model.parameters())
x, y = torch.randn(1024, 256), torch.randint(0, 10, (1024,))
while lasts():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
