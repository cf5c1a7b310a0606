"""Trains 12 steps of 3 batches with DeepSpeed's engine."""

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# DeepSpeed would compile this first. A killed compilation leaves a lock for which the next one waits forever.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo")
model = nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3},
)
for x, y in DataLoader(TensorDataset(torch.ones(72, 8), torch.ones(72, 1)), batch_size=2):
    loss = nn.functional.mse_loss(engine(x), y)
    engine.backward(loss)
    engine.step()
