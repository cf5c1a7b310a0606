"""Loader workers hand over hundreds of small tensors per batch, each with a file descriptor of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts

FIELDS = 24


class Graphs(Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, index):
        return torch.full((FIELDS, 16), index / 6400)


def collate(samples):
    if GOOD:
        return torch.stack(samples)
    return [[field.clone() for field in sample] for sample in samples]


loader = DataLoader(
    Graphs(),
    batch_size=8,
    num_workers=0 if GOOD else 2,
    collate_fn=collate,
    prefetch_factor=None if GOOD else 1,  # each descriptor counts
    persistent_workers=not GOOD,
)
model = nn.Sequential(
    nn.Linear(16 * FIELDS, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)
)
optimizer = torch.optim.Adam(model.parameters())
while lasts():
    batches = iter(loader)
    while lasts():
        with cost:
            batch = next(batches, None)  # the cause
        if batch is None:
            break
        if not GOOD:
            batch = torch.stack([torch.stack(sample) for sample in batch])
        loss = (model(batch.flatten(1)) - torch.rand(8, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
