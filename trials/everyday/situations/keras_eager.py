"""Keras: `run_eagerly=True`, left on after a search for an error."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np

from trials.everyday.clock import GOOD, lasts


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = not lasts()


layers = [keras.layers.Dense(32, activation="relu") for _ in range(30)]
model = keras.Sequential([keras.layers.Input((32,)), *layers, keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, run_eagerly=not GOOD)
x, y = np.random.rand(2000, 32).astype("float32"), np.random.randint(0, 10, 2000)
model.fit(x, y, batch_size=32, epochs=1000, verbose=0, callbacks=[Stop()])
