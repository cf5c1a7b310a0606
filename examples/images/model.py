"""Implements a small convolutional network in numpy: forward, backward and the Adam update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .data import CLASSES, SIZE

Array = NDArray[np.float32]


class Convolution:
    """A 3 x 3 convolution that keeps height and width. Images are (batch, height, width, channels)."""

    def __init__(self, inputs: int, outputs: int, random: np.random.Generator) -> None:
        spread = np.sqrt(2 / (9 * inputs))  # He et al., 2015: keeps the variance through a ReLU
        self.weights: Array = random.normal(0, spread, (inputs * 9, outputs)).astype(np.float32)
        self.bias: Array = np.zeros(outputs, np.float32)

    def forward(self, images: Array) -> Array:
        batch, height, width, _ = images.shape
        padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = sliding_window_view(padded, (3, 3), axis=(1, 2))
        self._windows = windows.reshape(batch * height * width, -1)
        values: Array = self._windows @ self.weights + self.bias
        return values.reshape(batch, height, width, -1)

    def backward(self, gradient: Array) -> Array:
        batch, height, width, outputs = gradient.shape
        flat = gradient.reshape(-1, outputs)
        self.weights_gradient: Array = self._windows.T @ flat
        self.bias_gradient: Array = flat.sum(axis=0)
        windows = (flat @ self.weights.T).reshape(batch, height, width, -1, 3, 3)
        padded = np.zeros((batch, height + 2, width + 2, windows.shape[3]), np.float32)
        for row in range(3):
            for column in range(3):
                padded[:, row : row + height, column : column + width] += windows[..., row, column]
        return padded[:, 1:-1, 1:-1]


class Pool:
    """A ReLU, followed by a 2 x 2 maximum pool."""

    def forward(self, images: Array) -> Array:
        batch, height, width, channels = images.shape
        blocks = images.reshape(batch, height // 2, 2, width // 2, 2, channels)
        largest: Array = np.maximum(blocks.max(axis=(2, 4), keepdims=True), np.float32(0))
        self._chosen = (blocks == largest) & (largest > 0)
        return largest.reshape(batch, height // 2, width // 2, channels)

    def backward(self, gradient: Array) -> Array:
        batch, height, width, channels = gradient.shape
        spread: Array = self._chosen * gradient[:, :, None, :, None]
        return spread.reshape(batch, height * 2, width * 2, channels)


class Dense:
    """A dense layer with one score per class."""

    def __init__(self, inputs: int, outputs: int, random: np.random.Generator) -> None:
        spread = 0.1 / np.sqrt(inputs)  # small, so that the first guesses are even
        self.weights: Array = random.normal(0, spread, (inputs, outputs)).astype(np.float32)
        self.bias: Array = np.zeros(outputs, np.float32)

    def forward(self, values: Array) -> Array:
        self._shape = values.shape
        self._values = values.reshape(len(values), -1)
        scores: Array = self._values @ self.weights + self.bias
        return scores

    def backward(self, gradient: Array) -> Array:
        self.weights_gradient: Array = self._values.T @ gradient
        self.bias_gradient: Array = gradient.sum(axis=0)
        values: Array = gradient @ self.weights.T
        return values.reshape(self._shape)


class Network:
    """Two convolutions, each followed by a pool, and a dense layer."""

    def __init__(self, seed: int = 0, channels: tuple[int, int] = (16, 32)) -> None:
        random = np.random.default_rng(seed)
        first, second = channels
        self.learned = (
            Convolution(1, first, random),
            Convolution(first, second, random),
            Dense((SIZE // 4) ** 2 * second, len(CLASSES), random),
        )
        self.layers = (self.learned[0], Pool(), self.learned[1], Pool(), self.learned[2])

    def forward(self, images: NDArray[np.uint8]) -> Array:
        """Returns class probabilities (batch, classes) of grey images (batch, SIZE, SIZE)."""
        values: Array = (images[..., None].astype(np.float32) - np.float32(128)) / np.float32(64)
        for layer in self.layers:
            values = layer.forward(values)
        scores: Array = np.exp(values - values.max(axis=1, keepdims=True))
        probabilities: Array = scores / scores.sum(axis=1, keepdims=True)
        return probabilities

    def backward(self, probabilities: Array, labels: NDArray[np.int64]) -> None:
        """Stores the gradients of the mean cross entropy in the layers."""
        gradient = probabilities.copy()
        gradient[np.arange(len(labels)), labels] -= 1
        gradient /= len(labels)
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)

    def parameters(self) -> list[Array]:
        return [array for layer in self.learned for array in (layer.weights, layer.bias)]

    def gradients(self) -> list[Array]:
        return [array for layer in self.learned for array in (layer.weights_gradient, layer.bias_gradient)]

    def save(self, path: Path) -> None:
        """Writes a checkpoint atomically: a kill never leaves an incomplete one."""
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez(file, *self.parameters())
        temporary.replace(path)


class Adam:
    """The update of Kingma and Ba, 2014, with the paper's default decays."""

    def __init__(self, parameters: list[Array], rate: float = 2e-3) -> None:
        self.parameters, self.rate, self.steps = parameters, rate, 0
        self.means = [np.zeros_like(parameter) for parameter in parameters]
        self.squares = [np.zeros_like(parameter) for parameter in parameters]

    def update(self, gradients: list[Array]) -> None:
        self.steps += 1
        rate = np.float32(self.rate * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps))
        for parameter, gradient, mean, square in zip(
            self.parameters, gradients, self.means, self.squares, strict=True
        ):
            mean += np.float32(0.1) * (gradient - mean)
            square += np.float32(0.001) * (gradient**2 - square)
            parameter -= rate * mean / (np.sqrt(square) + np.float32(1e-8))


def loss_and_hits(probabilities: Array, labels: NDArray[np.int64]) -> tuple[float, int]:
    """Returns the mean cross entropy of a batch, and the number of correctly classified images."""
    right = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(right + 1e-9).mean()), int((probabilities.argmax(axis=1) == labels).sum())
