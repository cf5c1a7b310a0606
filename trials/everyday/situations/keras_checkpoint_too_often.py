"""Keras: ModelCheckpoint saves every ten batches."""

import tempfile
from pathlib import Path

import keras

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y

path = Path(tempfile.mkdtemp()) / "of.keras"
saves = keras.callbacks.ModelCheckpoint(path, save_freq=2000 if GOOD else 10)
model_of(512).fit(x, y, batch_size=BATCH, epochs=10_000, verbose=0, callbacks=[saves, Ends()])  # the cause
