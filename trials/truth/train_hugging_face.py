"""Trains on the CPU with the Trainer of Hugging Face: `torchrun --nproc-per-node 2 train_hugging_face.py`.

It knows nothing of Stepscope either, and delays a rank as train.py does.
"""

# mypy: allow-subclassing-any, allow-untyped-calls

import argparse
import gc
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from trials.truth.train import WIDTH, Descent, Network, Samples, add_arguments, after_step, delay


class Model(nn.Module):
    """Returns the loss, as Trainer expects it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = self.network(x)
        return {"loss": nn.functional.mse_loss(output, labels), "logits": output}


class OwnCallback(TrainerCallback):
    """What users do at the begin and at the end of a step."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        delay("host before")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        after_step(self.network)


def as_batch(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Joins samples, each of which is a batch already."""
    (x, y), *_ = samples
    return {"x": x, "labels": y}


def train(arguments: argparse.Namespace, folder: str) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    network = Network(WIDTH, arguments.pace, recomputes=False)
    optimizer = Descent(network.parameters(), lr=0.01, momentum=0.9)
    trainer = Trainer(
        Model(network),
        TrainingArguments(
            folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=1,
            dataloader_num_workers=arguments.workers,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            ddp_backend="gloo",
            seed=arguments.seed,
        ),
        data_collator=as_batch,
        train_dataset=Samples(2 * arguments.steps, arguments.batch),
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
        callbacks=[OwnCallback(network)],
    )
    gc.freeze()
    trainer.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    with tempfile.TemporaryDirectory() as folder:
        train(parser.parse_args(), folder)
