"""Keras: `run_eagerly=True` was left on after debugging."""

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y

model = model_of(256, run_eagerly=not GOOD)
model.fit(x, y, batch_size=BATCH, epochs=10_000, verbose=0, callbacks=[Ends()])
