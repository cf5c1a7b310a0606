"""Trains on the CPU with Lightning: `torchrun --nproc-per-node 2 train_lightning.py`.

It knows nothing of Stepscope either, and delays a rank as train.py does.
"""

# mypy: allow-subclassing-any, allow-untyped-calls

import argparse
import gc
import logging
import os
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from trials.truth.train import WIDTH, Descent, Network, Samples, add_arguments, after_step, delay


class Model(lightning.LightningModule):
    """Returns the loss, and has users' hooks at the begin and at the end of a step."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def on_train_batch_start(self, *_: Any) -> None:
        delay("host before")

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.network(x), y)

    def on_train_batch_end(self, *_: Any) -> None:
        after_step(self.network)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return Descent(self.parameters(), lr=0.01, momentum=0.9)


def train(arguments: argparse.Namespace) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    samples = Samples(ranks * arguments.steps, arguments.batch)
    loader = DataLoader(
        samples,
        batch_size=None,
        num_workers=arguments.workers,
        sampler=DistributedSampler(samples, ranks, rank),
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=arguments.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    gc.freeze()
    trainer.fit(Model(Network(WIDTH, arguments.pace, recomputes=False)), loader)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    train(parser.parse_args())
