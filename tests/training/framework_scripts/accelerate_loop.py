"""Trains 12 steps of 3 batches with accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = TensorDataset(torch.ones(72, 8), torch.ones(72, 1))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(samples, batch_size=2))
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.log({"loss": loss.item(), "layer": "linear"})
