"""Processes that the script started for the next experiment's features use all cores meanwhile."""

from multiprocessing import Process

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts


def features():
    while True:
        sum(number % 7 for number in range(100_000))


if __name__ == "__main__":
    processes = [Process(target=features, daemon=True) for _ in range(0 if GOOD else 4)]
    for process in processes:
        process.start()
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(256, 256), torch.randint(0, 10, (256,))
    while lasts():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for process in processes:
        process.kill()
