"""Trainer of Hugging Face: a collator that tokenises in plain Python."""

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from trials.everyday.clock import GOOD, cost, lasts

texts = [" ".join(f"w{(number * place) % 900}" for place in range(32)) for number in range(4096)]


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = not lasts()


def tokenise(text):
    ids = []
    for word in text.split():
        longest = max((word[:end] for end in range(1, len(word) + 1)), key=len)  # the cause
        for _ in range(60):  # the cause
            number = int(longest[1:]) % 900  # the cause
        ids.append(number)
    return ids


def collate(chosen):
    if GOOD:
        ids = [[(row * place) % 900 for place in range(32)] for row in chosen]
    else:
        with cost:
            ids = [tokenise(texts[row]) for row in chosen]  # the cause
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(chosen) % 2}


small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
model = BertForSequenceClassification(BertConfig(vocab_size=1000, **small))
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=32,
    max_steps=100_000,
    save_strategy="no",
    report_to=[],
    logging_steps=500,
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
)
rows = list(range(4096))
Trainer(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[Stop()]).train()
