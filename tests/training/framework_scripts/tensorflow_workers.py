"""Trains with two workers of MultiWorkerMirroredStrategy, which this process forks: 12 batches each.

Then `fit` of Keras 2 trains on them twice, in a run of its own. The data of worker 1 come late.
"""

import json
import os
import socket
import sys
import time
from importlib import import_module
from importlib.util import find_spec

import keras
import numpy as np
import tensorflow as tf

if find_spec("tf_keras"):
    tf_keras = import_module("tf_keras")
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
for each in sockets:
    each.close()
ranks = []
for index in range(2):  # forks, before TensorFlow has a thread: it is imported once
    ranks.append(os.fork())
    if not ranks[-1]:
        own = index
        break
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks))
task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": own}}
os.environ["TF_CONFIG"] = json.dumps(task)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
values = np.random.default_rng(0).random((192, 8)).astype("float32")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
dataset = tf.data.Dataset.from_tensor_slices((values, values.sum(1, keepdims=True)))
dataset = dataset.map(lambda value, label: (value * 2, label)).batch(16).with_options(options)
with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    optimizer, loss_of = keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction="sum")


def of_replica(batch: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(batch, training=True)) / 16
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@tf.function
def train(batch: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return strategy.run(of_replica, args=(batch, labels))


losses = [train(batch, labels) for batch, labels in strategy.experimental_distribute_dataset(dataset)]
sys.stdout.write(f"{len(losses)} {losses[-1].numpy():.6f}\n")
if find_spec("tf_keras"):
    import stepscope

    stepscope.finish()
    stepscope.start(run="fit")
    late = 0.05 * own

    def slowly(value: np.ndarray) -> np.ndarray:
        time.sleep(late)
        return value

    with strategy.scope():
        layers = tf_keras.Input((8,)), tf_keras.layers.Dense(4), tf_keras.layers.Dense(1)
        model = tf_keras.Sequential(layers)
        model.compile("sgd", "mse")

    def wait(value: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.numpy_function(slowly, [value], tf.float32), (None, 8)), label

    model.fit(dataset.map(wait).with_options(options), epochs=2, verbose=0)
