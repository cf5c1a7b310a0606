"""A process of the script's own makes batches, and pickles each into a queue."""

import multiprocessing

import numpy as np
import torch
import torch.multiprocessing
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

ROWS, COLUMNS = 1024, 4096


def make(queue):
    torch.set_num_threads(1)
    while True:
        batch = np.ones((ROWS, COLUMNS), np.float32)
        queue.put(torch.from_numpy(batch) if GOOD else batch)


if __name__ == "__main__":
    processes = torch.multiprocessing if GOOD else multiprocessing
    queue = processes.Queue(2)
    maker = processes.Process(target=make, args=(queue,), daemon=True)
    maker.start()
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while lasts():
        with cost:
            batch = queue.get()  # the cause
        x = torch.as_tensor(batch)[:, :256]
        for _ in range(32 if GOOD else 2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    maker.kill()
