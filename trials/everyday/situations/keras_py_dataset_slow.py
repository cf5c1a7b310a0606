"""Keras: a PyDataset without workers, whose items are read slowly.

It has a fixed number of batches: TensorFlow does not end while it waits for one.
"""

import time

import keras
import numpy as np

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, model_of, x, y


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 1200 if GOOD else 900

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.008)
        first = number % 20 * BATCH
        return x[first : first + BATCH], y[first : first + BATCH]


model_of(1024).fit(Rows(workers=8 if GOOD else 1), epochs=1, verbose=0, shuffle=False)
