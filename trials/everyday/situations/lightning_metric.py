"""Lightning: a metric in plain Python in `training_step`."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from trials.everyday.clock import GOOD, SECONDS, cost


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch, number):
        x, y = batch
        logits = self.network(x)
        if number % (500 if GOOD else 1) == 0:
            with cost:
                rows = zip(logits.detach(), y, strict=True)
                self.right = sum(int(row.argmax()) == int(label) for row, label in rows)  # the cause
        return nn.functional.cross_entropy(logits, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


batches = [(torch.randn(2048, 128), torch.randint(0, 10, (2048,))) for _ in range(31)]
loader = DataLoader(batches, batch_size=None)  # which makes no garbage: the metric does
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=-1,
    max_time={"seconds": int(SECONDS)},
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
trainer.fit(Model(), loader)
