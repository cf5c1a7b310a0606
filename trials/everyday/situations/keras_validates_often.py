"""Keras: validates on everything after every five batches."""

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y

few = 20 if GOOD else 1
model_of(256).fit(
    x[: 5 * BATCH],
    y[: 5 * BATCH],
    batch_size=BATCH,
    epochs=10_000,
    verbose=0,
    validation_data=(x, y),
    validation_batch_size=BATCH,
    validation_freq=few,
    callbacks=[Ends()],
)
