"""Trains 16 times with `train_on_batch`, after errors ended `fit` and `evaluate`, whose frames stay alive."""

import os
from importlib import import_module
from typing import Any

import numpy as np

keras = import_module(os.environ["KERAS"])


class Interrupts(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 3:
            raise KeyboardInterrupt

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            raise KeyboardInterrupt


values = np.random.default_rng(0).random((64, 8)).astype("float32")
sums = values.sum(1, keepdims=True)


def compiled() -> Any:
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


seen = []
for loop in (compiled().fit, compiled().evaluate):
    try:
        loop(values, sums, batch_size=8, verbose=0, callbacks=[Interrupts()])
    except KeyboardInterrupt as error:
        seen.append(error)  # as a notebook keeps the latest one
model = compiled()  # on JAX, the interrupted one has lost its weights
for _ in range(16):
    model.train_on_batch(values[:8], sums[:8])
print(len(seen))
