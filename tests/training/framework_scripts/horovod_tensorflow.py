"""Trains 20 steps of `tf.function` with Horovod, 20 in eager mode, and 20 in `fit`: each is a run."""

from collections.abc import Callable

import horovod.keras
import horovod.tensorflow as hvd
import keras
import tensorflow as tf

hvd.init()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer, loss_of = keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError()
values = tf.random.uniform((160, 4))
data = tf.data.Dataset.from_tensor_slices((values, tf.reduce_sum(values, 1, keepdims=True))).batch(8)


def train(batch: tf.Tensor, labels: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(batch, training=True))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def epoch(step: Callable[[tf.Tensor, tf.Tensor], None]) -> None:
    for number, (batch, labels) in enumerate(data):
        step(batch, labels)
        if number == 0:
            hvd.broadcast_variables([each.value for each in model.variables], root_rank=0)


epoch(tf.function(train))
import stepscope  # noqa: E402

for name in ("eager", "fit"):
    stepscope.finish()
    stepscope.start(run=name, rank=hvd.rank(), world_size=hvd.size())
    if name == "eager":
        epoch(train)
    else:
        model.compile("sgd", "mse")
        model.fit(data, verbose=0, callbacks=[horovod.keras.callbacks.MetricAverageCallback()])
print(*(value.numpy().tobytes().hex() for value in model.trainable_variables))
