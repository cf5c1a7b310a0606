"""Keras: a function in plain Python in the map of a tf.data pipeline."""

import numpy as np
import tensorflow as tf

from trials.everyday.clock import GOOD
from trials.everyday.keras_parts import BATCH, Ends, model_of, x, y


def augment(values: np.ndarray) -> np.ndarray:
    return np.array([[value * 0.9 + 0.05 for value in row] for row in values], "float32")


def with_augmentation(values: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    if GOOD:
        return values * 0.9 + 0.05, labels
    return tf.ensure_shape(tf.numpy_function(augment, [values], tf.float32), values.shape), labels


batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(2 * BATCH).map(with_augmentation).repeat()
model_of(256).fit(batches, epochs=1, steps_per_epoch=1_000_000, verbose=0, callbacks=[Ends()])
