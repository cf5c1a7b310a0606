"""Keras: a pipeline without prefetching, in which tf.data may add none by itself.

It has a fixed number of batches: TensorFlow does not end while it waits for one.
"""

import time

import numpy as np
import tensorflow as tf

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, model_of, x, y


def read(values: np.ndarray) -> np.ndarray:
    time.sleep(0.003)
    return values


def slowly(values: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.ensure_shape(tf.numpy_function(read, [values], tf.float32), (BATCH, 128)), labels


batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat().take(1000).map(slowly)
options = tf.data.Options()
options.autotune.enabled = False
batches = batches.prefetch(4) if GOOD else batches
batches = batches.with_options(options)
model_of(1024).fit(batches, epochs=1, verbose=0)
