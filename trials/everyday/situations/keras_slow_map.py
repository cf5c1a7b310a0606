"""Keras: a function in plain Python in the map of a tf.data pipeline.

It has a fixed number of batches: TensorFlow does not end while it waits for one.
"""

import numpy as np
import tensorflow as tf

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, model_of, x, y


def augment(values: np.ndarray) -> np.ndarray:
    rows = [[(value * 0.9 + 0.05) ** 0.5 for value in row] for row in values.repeat(3, 0)]
    return np.array(rows[::3], "float32")


def with_augmentation(values: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if GOOD:
        return (values * 0.9 + 0.05) ** 0.5, labels
    return tf.ensure_shape(tf.numpy_function(augment, [values], tf.float32), values.shape), labels


rows = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(4 * BATCH).take(1500 if GOOD else 400)
model_of(384).fit(rows.map(with_augmentation), epochs=1, verbose=0)
