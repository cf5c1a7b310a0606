"""Trains 16 batches, each followed by a callback that calls the model, and that takes 100 ms for a layer."""

import os
import time
from importlib import import_module
from typing import Any

import numpy as np

keras = import_module(os.environ["KERAS"])


class Slow(keras.layers.Layer):  # type: ignore[misc, name-defined]
    def call(self, values: Any) -> Any:
        time.sleep(0.1)  # outside of graphs: in a graph, only while it is traced
        return values


class Shows(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model(values)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.evaluate(values, values.sum(1), verbose=0)


values = np.random.default_rng(0).random((64, 8)).astype("float32")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((8,)), Slow(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(values, values.sum(1), batch_size=8, epochs=2, verbose=0, callbacks=[Shows()])
print(*(value.tobytes().hex() for value in model.get_weights()))
