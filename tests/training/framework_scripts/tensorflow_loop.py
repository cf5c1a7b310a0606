"""Trains in a loop of its own, 2 epochs of 8 batches, each followed by 4 batches of evaluation.

Then it does so once more in eager mode, with `get_next`, and in a graph with the whole epoch inside: these
are runs of their names.
"""

from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf

Part = Callable[[tf.Tensor, tf.Tensor], None]

values = np.random.default_rng(0).random((64, 8)).astype("float32")
training = tf.data.Dataset.from_tensor_slices((values, values.sum(1, keepdims=True))).batch(8)
evaluation = training.unbatch().batch(16)
for _ in training:  # only looks at the data
    pass
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
optimizer, loss_of = keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError()


def train(batch: tf.Tensor, labels: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(batch, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def evaluate(batch: tf.Tensor, labels: tf.Tensor) -> None:
    loss_of(labels, model(batch, training=False))


def fetched(dataset: tf.data.Dataset) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    iterator = iter(dataset)
    for _ in range(8):
        yield iterator.get_next()


def epochs(train: Part, evaluate: Part, batches_of: Callable[[tf.data.Dataset], Iterable[tf.Tensor]]) -> None:
    for _ in range(2):
        for batch, labels in batches_of(training):
            train(batch, labels)
        for batch, labels in evaluation:
            evaluate(batch, labels)


epochs(tf.function(train), tf.function(evaluate), lambda dataset: dataset)
import stepscope  # noqa: E402

stepscope.finish()
stepscope.start(run="eager loop")
epochs(train, evaluate, fetched)
stepscope.finish()
stepscope.start(run="inside")


@tf.function
def epoch() -> None:
    for batch, labels in training:
        train(batch, labels)


for _ in range(3):
    epoch()
