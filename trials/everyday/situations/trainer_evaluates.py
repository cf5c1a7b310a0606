"""Trainer of Hugging Face: evaluates on a large set every 20 steps."""

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from trials.everyday.clock import GOOD, cost, lasts


class Texts(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"input_ids": torch.full((32,), index % 900), "labels": index % 2}


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = not lasts()


class Clocked(Trainer):
    def evaluate(self, *args, **kwargs):
        with cost:
            return super().evaluate(*args, **kwargs)  # the cause


small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
model = BertForSequenceClassification(BertConfig(vocab_size=1000, **small))
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=16,
    max_steps=100_000,
    save_strategy="no",
    report_to=[],
    logging_steps=500,
    use_cpu=True,
    disable_tqdm=True,
    eval_strategy="steps",
    eval_steps=500 if GOOD else 20,
)
trainer = Clocked(model, arguments, train_dataset=Texts(100_000), eval_dataset=Texts(800), callbacks=[Stop()])
trainer.train()
