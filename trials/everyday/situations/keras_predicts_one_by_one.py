"""Keras: an agent asks `predict` for each state, and trains on a batch at times."""

import numpy as np

from trials.everyday.clock import GOOD, cost, lasts
from trials.everyday.keras_parts import BATCH, model_of, x, y

model = model_of(512)
states = x[:BATCH]
while lasts():
    with cost:
        if GOOD:
            actions = model.predict_on_batch(states)
        else:
            actions = [model.predict(state[None], verbose=0) for state in states[:8]]  # the cause
    for at in range(20):
        model.train_on_batch(x[BATCH * at : BATCH * (at + 1)], y[BATCH * at : BATCH * (at + 1)])
print(np.mean(actions))
