"""Augments images at random, so that the model never sees the same one twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .data import SIZE, Image

Values = NDArray[np.float64]  # (SIZE, SIZE)

_ROWS, _COLUMNS = np.mgrid[:SIZE, :SIZE].astype(np.float64)

LIGHT = 2  # smoothing passes that are enough for a good elastic warp


def augment(image: Image, random: np.random.Generator, passes: int = LIGHT) -> Image:
    """Rotates, shifts, warps, brightens or darkens an image and adds noise.

    The warp is smoothed in `passes` passes: a few are enough, many only make the transform heavy.
    """
    turn, shift = random.uniform(-0.3, 0.3), random.uniform(-2, 2, size=2)
    y, x = _ROWS - SIZE / 2, _COLUMNS - SIZE / 2
    bend_y, bend_x = _smooth(random.normal(0, 1, size=(2, SIZE, SIZE)), passes)
    turned_y = y * np.cos(turn) - x * np.sin(turn) + SIZE / 2 + shift[0] + bend_y
    turned_x = y * np.sin(turn) + x * np.cos(turn) + SIZE / 2 + shift[1] + bend_x
    pixels = _sample(image.astype(np.float64), turned_y, turned_x)
    pixels = pixels * random.uniform(0.8, 1.2) + random.normal(random.uniform(-20, 20), 5, (SIZE, SIZE))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _smooth(fields: Values, passes: int) -> Values:
    """Returns displacement fields (2, SIZE, SIZE), smoothed and scaled to a deviation of half a pixel."""
    for _ in range(passes):
        for axis in (1, 2):
            fields = (np.roll(fields, 1, axis) + fields + np.roll(fields, -1, axis)) / 3
    smooth: Values = fields * (0.5 / fields.std())
    return smooth


def _sample(pixels: Values, y: Values, x: Values) -> Values:
    """Returns the image at fractional coordinates: bilinear, and the edge's value beyond the edge."""
    y, x = np.clip(y, 0, SIZE - 1.001), np.clip(x, 0, SIZE - 1.001)
    top, left = y.astype(np.intp), x.astype(np.intp)
    down, right = y - top, x - left
    upper = pixels[top, left] * (1 - right) + pixels[top, left + 1] * right
    lower = pixels[top + 1, left] * (1 - right) + pixels[top + 1, left + 1] * right
    values: Values = upper * (1 - down) + lower * down
    return values
