"""Keras: a metric in plain Python, which the graph calls in each step."""

import numpy as np
import tensorflow as tf

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y


def rank_sum(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    pairs = zip(labels.ravel().tolist(), scores.ravel().tolist(), strict=True)
    known = [(score, label) for label, score in pairs]
    return np.float32(sum(a > b for a, la in known for b, lb in known if la > lb))


def auc(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    if GOOD:
        return tf.reduce_sum(tf.cast(labels > 0.5, tf.float32) * scores)
    return tf.ensure_shape(tf.numpy_function(rank_sum, [labels, scores], tf.float32), ())


model = model_of(256, metrics=[auc])
model.fit(x, y, batch_size=8 * BATCH, epochs=10_000, verbose=0, callbacks=[Ends()])
