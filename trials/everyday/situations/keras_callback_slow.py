"""Keras: a callback computes a score in plain Python after each batch."""

from typing import Any

import keras

from trials.everyday.clock import GOOD, cost
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y


class Score(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if GOOD and batch:
            return
        with cost:
            rows = x[:64].tolist()
            self.spread = sum((value - 0.5) ** 2 for row in rows for value in row)  # the cause
            self.order = sorted(value for row in rows for value in row)  # the cause


model_of(256).fit(x, y, batch_size=BATCH, epochs=10_000, verbose=0, callbacks=[Score(), Ends()])
