"""Trains 12 steps of 3 batches with the Trainer of Hugging Face, and evaluates twice."""

import tempfile

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

# mypy: allow-subclassing-any


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layer(x)[:, 0], labels)}


samples = [{"x": torch.ones(8), "labels": torch.tensor(1.0)} for _ in range(100)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=12,
    gradient_accumulation_steps=3,
    per_device_train_batch_size=2,
    eval_strategy="steps",
    eval_steps=6,
    save_strategy="no",
    logging_steps=4,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(Network(), arguments, train_dataset=samples, eval_dataset=samples[:20]).train()
