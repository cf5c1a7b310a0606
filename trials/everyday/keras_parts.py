"""What the Keras situations share: a small model, its data, and the end of training."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from trials.everyday.clock import lasts

BATCH = 64
x = np.random.default_rng(0).random((BATCH * 4000, 128), "float32")  # an epoch of some seconds
y = (x.sum(1) > 64).astype("float32")


class Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends training after its seconds."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not lasts():
            self.model.stop_training = True


def model_of(width: int = 512, **options: Any) -> Any:
    """Returns a compiled model."""
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((128,)), *layers, keras.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy", **options)
    return model
