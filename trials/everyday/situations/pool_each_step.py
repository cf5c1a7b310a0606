"""A pool of processes is made for the batch of each step, and ended again."""

import multiprocessing
import random

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

SIZE = 64


def features(seed):
    numbers = random.Random(seed)
    return [numbers.random() for _ in range(256)]


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    kept = context.Pool(2) if GOOD else None
    model = nn.Sequential(
        nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    y = torch.randint(0, 10, (SIZE,))
    step = 0
    while lasts():
        if kept is None:
            with cost, context.Pool(2) as pool:  # the cause
                rows = pool.map(features, range(SIZE))  # the cause
        elif step % 100 == 0:
            rows = kept.map(features, range(SIZE))
        x = torch.tensor(rows)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        step += 1
    if kept is not None:
        kept.terminate()
