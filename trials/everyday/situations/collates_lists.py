"""Items are Python lists of 400 numbers: the loader makes 400 tensors of each batch."""

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trials.everyday.clock import GOOD, cost, lasts


class Texts(Dataset):
    def __init__(self):
        self.ids = [[(number * place) % 1000 for place in range(400)] for number in range(2000)]
        self.tensors = torch.tensor(self.ids)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        if GOOD:
            return {"ids": self.tensors[index], "label": index % 10}
        return {"ids": self.ids[index], "label": index % 10}  # the cause


embed = nn.EmbeddingBag(1000, 128)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD([*embed.parameters(), *model.parameters()], lr=0.01)
loader = DataLoader(Texts(), batch_size=32, shuffle=True)  # the cause
while lasts():
    begin = perf_counter()
    for batch in loader:  # the cause
        ids = batch["ids"] if GOOD else torch.stack(batch["ids"], 1)  # the cause
        cost.since(begin)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(embed(ids)), batch["label"]).backward()
        optimizer.step()
        if not lasts():
            break
        begin = perf_counter()
