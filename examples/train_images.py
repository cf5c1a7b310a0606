"""Trains a small network on small images in numpy. --slow selects a way to be slow.

    python examples/train_images.py --slow none
    stepscope run -- python examples/train_images.py --slow storage

Only the lines with `stepscope.` are for Stepscope.
"""

# ruff: noqa: E402 (numpy reads its number of threads at import)

from __future__ import annotations

import os

for library in ("OPENBLAS", "OMP", "MKL"):  # one core for the model, the others for the workers
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import sys
import time
from pathlib import Path

import numpy as np
import stepscope
from images.arguments import parse_arguments
from images.augment import augment
from images.data import labelled_files, prepare_dataset, warm
from images.loader import Batch, Loader
from images.model import Adam, Network, loss_and_hits
from images.slow import WAYS, Conditions, conditions


def main() -> int:
    arguments = parse_arguments("Trains a small network on small images, with numpy alone.")
    now = conditions(arguments.slow, arguments.workers)
    print(f"--slow {arguments.slow}: {WAYS[arguments.slow]}", flush=True)

    stepscope.start(framework="numpy", framework_version=np.__version__)
    dataset = prepare_dataset(arguments.data)
    train_files, eval_files = warm(labelled_files(dataset, "train")), warm(labelled_files(dataset, "eval"))
    training = Training(now, checkpoint=arguments.data / "checkpoint.npz")
    epoch = 0
    while training.steps < arguments.steps:
        epoch += 1
        batches = Batches(train_files, arguments.batch, now, epoch)
        started, steps_before = time.monotonic(), training.steps
        loss = training.train(batches.loader(at_most=arguments.steps - training.steps))
        steps_per_second = (training.steps - steps_before) / (time.monotonic() - started)
        accuracy = training.evaluate(Batches(eval_files, arguments.batch, now).loader())
        print(
            f"step {training.steps:4}/{arguments.steps}  loss {loss:.3f}  "
            f"accuracy {accuracy:6.1%}  {steps_per_second:.1f} steps/s",
            flush=True,
        )
    training.network.save(training.checkpoint)
    return 0


class Training:
    """A network with its optimizer and settings."""

    def __init__(self, now: Conditions, checkpoint: Path) -> None:
        self.now, self.checkpoint = now, checkpoint
        self.network = Network()
        self.optimizer = Adam(self.network.parameters())
        self.steps = 0

    def train(self, loader: Loader) -> float:
        """Trains for one epoch and returns the mean loss."""
        losses = []
        for images, labels in stepscope.watch(loader, phase="train"):
            with stepscope.step("train"):
                with stepscope.component("forward"):
                    probabilities = self.network.forward(images)
                with stepscope.component("backward"):
                    self.network.backward(probabilities, labels)
                with stepscope.component("optimizer"):
                    self.optimizer.update(self.network.gradients())
                self.steps += 1
                if self.steps % self.now.checkpoint_every == 0:
                    with stepscope.component("checkpoint"):
                        self.network.save(self.checkpoint)
                        time.sleep(self.now.checkpoint_delay)
                losses.append(loss_and_hits(probabilities, labels)[0])
        return float(np.mean(losses))

    def evaluate(self, loader: Loader) -> float:
        """Returns the share of correctly classified images."""
        hits = images_seen = 0
        for images, labels in stepscope.watch(loader, phase="eval"):
            with stepscope.step("eval"), stepscope.component("forward"):
                hits += loss_and_hits(self.network.forward(images), labels)[1]
                images_seen += len(images)
        return hits / images_seen


class Batches:
    """A pass over labelled files: shuffled and augmented for training, unchanged otherwise."""

    def __init__(
        self, files: list[tuple[Path, int]], size: int, now: Conditions, epoch: int | None = None
    ) -> None:
        self.files, self.size, self.now, self.epoch = files, size, now, epoch
        self.order = np.arange(len(files))
        if epoch is not None:
            np.random.default_rng(epoch).shuffle(self.order)

    def loader(self, at_most: int | None = None) -> Loader:
        batches = max(len(self.files) // self.size, 1)  # the only one may be smaller
        batches = batches if at_most is None else min(batches, at_most)
        return Loader(self.fetch, batches, self.now.workers, self.size)

    @stepscope.fetch
    def fetch(self, number: int) -> Batch:
        """Returns batch `number` of this pass; it is the same in every process."""
        chosen = [self.files[index] for index in self.order[number * self.size : (number + 1) * self.size]]
        images = [self._read(path) for path, _ in chosen]
        if self.epoch is not None:
            random = np.random.default_rng((self.epoch, number))
            images = [augment(image, random, self.now.passes) for image in images]
        return np.stack(images), np.array([label for _, label in chosen])

    def _read(self, path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        if self.now.disk is not None:
            self.now.disk.wait_for_read()
        image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = np.load(path)
        return image


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
