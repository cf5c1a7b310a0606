"""Trainer of Hugging Face: gradient checkpointing is on, and nearly all memory is free."""

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)


class Texts(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return {"input_ids": torch.arange(index, index + 64) % 900, "labels": index % 2}


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = not lasts()


small = {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512}
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
    gradient_checkpointing=not GOOD,  # the cause
)
trainer = Trainer(model, arguments, train_dataset=Texts(), callbacks=[Stop()])
trainer.train()  # the cause
