"""Trains on the CPU in one process, without `torch.distributed`: `python train_alone.py`.

It knows nothing of Stepscope either, and is delayed as train.py is.
"""

import argparse
import gc

import torch
from torch import nn
from torch.utils.data import DataLoader

from trials.truth.train import WIDTH, Descent, Network, Samples, add_arguments, after_step, delay


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    model = Network(WIDTH, arguments.pace, recomputes=False)
    optimizer = Descent(model.parameters(), lr=0.01, momentum=0.9)
    samples = Samples(arguments.steps, arguments.batch)
    gc.freeze()
    for x, y in DataLoader(samples, batch_size=None, num_workers=arguments.workers):
        delay("host before")
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step(model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    train(parser.parse_args())
