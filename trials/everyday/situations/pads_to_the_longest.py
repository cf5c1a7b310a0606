"""Pads all batches to the longest text of the data."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)
texts = [torch.randint(1, 1000, (10 + i % 30,)) for i in range(2000)]
texts[7] = torch.randint(1, 1000, (128,))


def collate(batch):
    longest = max(map(len, batch)) if GOOD else 128
    ids = torch.stack([nn.functional.pad(text, (0, longest - len(text))) for text in batch])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 2)

    def forward(self, input_ids, attention_mask):
        hidden = self.layer(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.head(hidden[:, 0])


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(texts, batch_size=8, shuffle=True, collate_fn=collate)

while lasts():
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        if not lasts():
            break
