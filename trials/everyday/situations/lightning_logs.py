"""Lightning: writes 80 values at every step, and the file again each time."""

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trials.everyday.clock import GOOD, SECONDS


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
        )

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        if number % (500 if GOOD else 1) == 0:
            self.log_dict({f"value {k}": k * loss.detach() for k in range(80)})  # the cause
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


loader = DataLoader(TensorDataset(torch.randn(64_000, 128), torch.randint(0, 10, (64_000,))), batch_size=64)
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=-1,
    max_time={"seconds": int(SECONDS)},
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=CSVLogger("csv", flush_logs_every_n_steps=500 if GOOD else 1),  # the cause
    log_every_n_steps=500 if GOOD else 1,  # the cause
)
trainer.fit(Model(), loader)  # the cause
