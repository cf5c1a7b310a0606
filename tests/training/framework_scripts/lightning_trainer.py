"""Trains 12 steps of 3 batches with Lightning, and validates after each epoch."""

import tempfile

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

# mypy: allow-subclassing-any


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


samples = TensorDataset(torch.ones(36, 8), torch.ones(36, 1))
trainer = lightning.Trainer(
    max_steps=12,
    accumulate_grad_batches=3,
    accelerator="cpu",
    devices=1,
    logger=CSVLogger(tempfile.mkdtemp()),
    log_every_n_steps=4,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(samples, batch_size=2), DataLoader(samples, batch_size=6))
