"""Keras: a PyDataset without workers, whose items are read slowly."""

import time

import keras
import numpy as np

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.04)
        first = number % 20 * BATCH
        return x[first : first + BATCH], y[first : first + BATCH]


rows = Rows(workers=8 if GOOD else 1)
model_of(128).fit(rows, epochs=1, verbose=0, shuffle=False, callbacks=[Ends()])
