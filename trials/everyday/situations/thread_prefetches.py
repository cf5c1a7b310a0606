"""A home-made prefetcher: one thread makes batches in plain Python, and the loop waits for its queue."""

import queue
import threading

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
batches = queue.Queue(4)


def prepare():
    ready = torch.randn(128, 256)
    while training:
        if not GOOD:
            rows = [
                [sum((row * column) % part for part in range(2, 12)) / 40 for column in range(256)]
                for row in range(128)
            ]  # the cause
            ready = torch.tensor(rows)
        batches.put(ready)


training = True
thread = threading.Thread(target=prepare)
thread.start()
while lasts():
    with cost:
        x = batches.get()  # the cause
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
training = False
batches.get()  # a thread that waits ends; one that computes at the exit would crash the interpreter
thread.join()
