"""Keras: a tf.function is traced again at each step, because it gets a Python number."""

import keras
import tensorflow as tf

from trials.everyday.clock import GOOD, lasts
from trials.everyday.keras_parts import BATCH, model_of, x, y

model = model_of(256)
optimizer = keras.optimizers.Adam()


@tf.function
def train_step(values, labels, step):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(labels, model(values, training=True)))
        loss *= 1 / (1 + 0.001 * tf.cast(step, tf.float32))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


step = 0
while step < 2 or lasts():  # the first steps build the model
    step += 1
    first = step % 20 * BATCH
    values, labels = x[first : first + BATCH], y[first : first + BATCH, None]
    train_step(tf.constant(values), tf.constant(labels), tf.constant(step) if GOOD else step)  # the cause
