"""Trains with two workers of MultiWorkerMirroredStrategy, which this process starts: 12 batches each."""

import json
import os
import socket
import subprocess
import sys

WORKERS = 2


def start() -> int:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    ranks = []
    for index in range(WORKERS):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        variables = {**os.environ, "TF_CONFIG": json.dumps(task)}
        ranks.append(subprocess.Popen([sys.executable, __file__, "worker"], env=variables))
    return max(rank.wait() for rank in ranks)


if "worker" not in sys.argv:
    sys.exit(start())

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

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
