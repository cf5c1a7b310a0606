"""Adam updates a million embeddings at each step, of which a batch uses 1,024."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

table = nn.Embedding(1_000_000, 32, sparse=GOOD)
head = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
of_table = (torch.optim.SparseAdam if GOOD else torch.optim.Adam)(table.parameters())
of_head = torch.optim.Adam(head.parameters())
ids, y = torch.randint(0, 1_000_000, (1024,)), torch.randint(0, 10, (1024,))

while lasts():
    of_head.zero_grad()
    of_table.zero_grad()
    nn.functional.cross_entropy(head(table(ids)), y).backward()
    of_head.step()
    with cost:
        of_table.step()  # the cause
