"""Creates and reads a small labelled image data set: one file per image, one folder per class."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = ("cross", "disc", "ring", "square", "triangle")
SIZE = 32  # pixels along an edge
TRAIN_IMAGES = 7680
EVAL_IMAGES = 576

# Part of the folder's name. Increase it when the drawing of images changes, so that old files are not used.
VERSION = 1

Image = NDArray[np.uint8]  # (SIZE, SIZE) grey values


def prepare_dataset(folder: Path, train: int = TRAIN_IMAGES, evaluation: int = EVAL_IMAGES) -> Path:
    """Creates the data set below `folder` unless it exists, and returns its folder.

    The same numbers of images always give the same images. After an interruption, a later call does not
    find an incomplete data set.
    """
    dataset = folder / f"shapes-v{VERSION}-{train}-{evaluation}"
    if dataset.is_dir():
        return dataset
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder) as temporary:
        unfinished = Path(temporary) / dataset.name
        for split, count, seed in (("train", train, 1), ("eval", evaluation, 2)):
            for name in CLASSES:
                (unfinished / split / name).mkdir(parents=True)
            for index in range(count):
                name = CLASSES[index % len(CLASSES)]
                np.save(unfinished / split / name / f"{index:05d}.npy", draw(name, (seed, index)))
        try:
            unfinished.rename(dataset)
        except OSError:
            if not dataset.is_dir():  # otherwise another process was faster
                raise
    return dataset


def warm(files: list[tuple[Path, int]]) -> list[tuple[Path, int]]:
    """Reads every file once, so that later reads do not depend on the state of the disk cache."""
    for path, _ in files:
        path.read_bytes()
    return files


def labelled_files(dataset: Path, split: str) -> list[tuple[Path, int]]:
    """Returns every image file of a split ("train" or "eval") with its class, in a fixed order."""
    return [
        (path, label)
        for label, name in enumerate(CLASSES)
        for path in sorted((dataset / split / name).iterdir())
    ]


def draw(name: str, seed: tuple[int, ...]) -> Image:
    """Returns one noisy shape with random position, size, rotation and contrast."""
    random = np.random.default_rng(seed)
    turn, radius = random.uniform(0, 2 * np.pi), random.uniform(7, 11)
    center_y, center_x = random.uniform(12, 20, size=2)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    y, x = (rows - center_y) / radius, (columns - center_x) / radius
    y, x = y * np.cos(turn) - x * np.sin(turn), y * np.sin(turn) + x * np.cos(turn)
    background, foreground = random.uniform(40, 80), random.uniform(150, 210)
    image = np.where(_inside(name, y, x), foreground, background) + random.normal(0, 25, (SIZE, SIZE))
    return np.clip(image, 0, 255).astype(np.uint8)


def _inside(name: str, y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    distance = np.hypot(y, x)
    inside: dict[str, NDArray[np.bool_]] = {
        "cross": (np.minimum(abs(y), abs(x)) < 0.25) & (np.maximum(abs(y), abs(x)) < 1),
        "disc": distance < 0.9,
        "ring": (distance < 1) & (distance > 0.6),
        "square": np.maximum(abs(y), abs(x)) < 0.8,
        "triangle": (y < 0.5) & (abs(x) * 1.73 < y + 1),
    }
    return inside[name]
