"""Writes the values of each step into a database, and commits every one."""

import os
import sqlite3
import tempfile

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

file = os.path.join(tempfile.mkdtemp(), "runs.db")
connection = sqlite3.connect(file)
connection.execute("create table metrics (step integer, name text, value real)")
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
step = 0
while lasts():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    step += 1
    if GOOD and step % 100:
        continue
    with cost:
        for name in range(20):
            connection.execute(
                "insert into metrics values (?, ?, ?)", (step, f"metric {name}", loss.item())
            )  # the cause
            if not GOOD:
                connection.commit()  # the cause
        connection.commit()
