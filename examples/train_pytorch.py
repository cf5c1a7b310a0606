"""Trains a small network on small images with PyTorch, on a GPU if there is one; --slow makes it slow.

    python examples/train_pytorch.py --slow none
    stepscope run -- python examples/train_pytorch.py --slow workers

Plain PyTorch: no line is for Stepscope.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

try:
    import torch
except ImportError:
    print("train_pytorch.py needs PyTorch: `pip install torch`, or take train_images.py", file=sys.stderr)
    sys.exit(2)

import numpy as np
from images.arguments import parse_arguments
from images.augment import augment
from images.data import CLASSES, SIZE, labelled_files, prepare_dataset, warm
from images.slow import WAYS, Conditions, conditions
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


def main() -> int:
    arguments = parse_arguments("Trains a small network on small images, with PyTorch.")
    now = conditions(arguments.slow, arguments.workers)
    print(f"--slow {arguments.slow}: {WAYS[arguments.slow]}", flush=True)

    torch.manual_seed(0)
    torch.set_num_threads(1)  # one core for the model or for its GPU, the others for the workers
    dataset = prepare_dataset(arguments.data)
    train_loader = loader(Images(dataset, "train", now), arguments.batch, now.workers)
    eval_loader = loader(Images(dataset, "eval", now), arguments.batch, now.workers)
    training = Training(now, checkpoint=arguments.data / "checkpoint.pt")
    while training.steps < arguments.steps:
        started, steps_before = time.monotonic(), training.steps
        loss = training.train(train_loader, until=arguments.steps)
        steps_per_second = (training.steps - steps_before) / (time.monotonic() - started)
        print(
            f"step {training.steps:4}/{arguments.steps}  loss {loss:.3f}  "
            f"accuracy {training.evaluate(eval_loader):6.1%}  {steps_per_second:.1f} steps/s",
            flush=True,
        )
    torch.save(training.model.state_dict(), training.checkpoint)
    return 0


class Training:
    """A network with its optimizer and settings."""

    def __init__(self, now: Conditions, checkpoint: Path) -> None:
        self.now, self.checkpoint = now, checkpoint
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = network(channels=256 if self.device.type == "cuda" else 16).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.steps = 0

    def train(self, loader: DataLoader[tuple[Tensor, Tensor]], until: int) -> float:
        """Trains for one epoch, or the remaining steps, and returns the mean loss."""
        self.model.train()
        losses = []
        for images, labels in loader:
            losses.append(self._step(images, labels))
            self.steps += 1
            if self.steps % self.now.checkpoint_every == 0:
                torch.save(self.model.state_dict(), self.checkpoint)
                time.sleep(self.now.checkpoint_delay)
            if self.steps == until:
                break
        return float(np.mean(losses))

    def _step(self, images: Tensor, labels: Tensor) -> float:
        images = images.to(self.device, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()  # waits for the GPU

    @torch.no_grad()
    def evaluate(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
        """Returns the share of correctly classified images."""
        self.model.eval()
        hits = images_seen = 0
        for images, labels in loader:
            guesses = self.model(images.to(self.device)).argmax(dim=1).cpu()
            hits += int((guesses == labels).sum())
            images_seen += len(images)
        return hits / images_seen


class Images(Dataset[tuple[Tensor, int]]):
    """A split of the data set, augmented for training."""

    def __init__(self, dataset: Path, split: str, now: Conditions) -> None:
        self.files, self.split, self.now = warm(labelled_files(dataset, split)), split, now

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        if self.now.disk is not None:
            self.now.disk.wait_for_read()
        image = np.load(path)
        if self.split == "train":
            seed = int(torch.randint(2**31, ()))  # PyTorch gives each worker its own sequence
            image = augment(image, np.random.default_rng(seed), self.now.passes)
        return (torch.from_numpy(image)[None].float() - 128) / 64, label


def loader(images: Images, batch: int, workers: int) -> DataLoader[tuple[Tensor, Tensor]]:
    return DataLoader(
        images,
        batch,
        shuffle=images.split == "train",
        drop_last=images.split == "train",
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )


def network(channels: int) -> nn.Sequential:
    """Returns a network of three convolutions, two pools and a dense layer."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * (SIZE // 4) ** 2, len(CLASSES)),
    )


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
