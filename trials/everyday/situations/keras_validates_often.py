"""Keras: validates on everything after every five batches."""

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y

batches = 4000 if GOOD else 5
model_of(256).fit(
    x[: batches * BATCH],
    y[: batches * BATCH],
    batch_size=BATCH,
    epochs=10_000,
    verbose=0,
    validation_data=(x[: 100 * BATCH], y[: 100 * BATCH]),
    validation_batch_size=BATCH,
    callbacks=[Ends()],
)
