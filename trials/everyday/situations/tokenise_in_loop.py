"""Tokenises each batch in the training loop, in plain Python."""

import random
import re

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

random.seed(1)
words = ["".join(random.choices("abcdefghij", k=6)) for _ in range(2000)]
vocabulary = {word[:3]: number for number, word in enumerate(words)}
texts = [" ".join(random.choices(words, k=128)) for _ in range(640)]
model = nn.Sequential(nn.EmbeddingBag(2000, 256), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
y = torch.randint(0, 2, (64,))


def tokenise(text):
    ids = []
    for word in re.findall(r"\w+", text):  # the cause
        pieces = [word[at : at + 3] for at in range(0, len(word), 3)]  # the cause
        ids.extend(vocabulary.get(piece, 0) for piece in pieces)  # the cause
    return ids


ready = torch.tensor([tokenise(text) for text in texts]) if GOOD else None
step = 0
while lasts():
    at = step % 10 * 64
    if GOOD:
        x = ready[at : at + 64]
    else:
        with cost:
            x = torch.tensor([tokenise(text) for text in texts[at : at + 64]])  # the cause
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    step += 1
