"""Keras: worker 1 of a MultiWorkerMirroredStrategy alone augments its batches in plain Python."""

import json
import os

rank = int(os.environ["RANK"])
first = 20_000 + int(os.environ["MASTER_PORT"]) % 10_000  # below the ports that systems give to connections
task = {"type": "worker", "index": rank}
workers = [f"localhost:{first + number}" for number in range(int(os.environ["WORLD_SIZE"]))]
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything computes

from trials.everyday.clock import GOOD, cost  # noqa: E402
from trials.everyday.keras_parts import BATCH, model_of, x, y  # noqa: E402

with strategy.scope():
    model = model_of(256)
    optimizer, loss_of = keras.optimizers.Adam(), keras.losses.BinaryCrossentropy(reduction="sum")


def of_replica(values, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(values, training=True)) / BATCH
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


@tf.function
def train_step(values, labels):
    return strategy.run(of_replica, args=(values, labels))


def jittered(batch):
    rows = [
        [value + 0.01 * (value > 0.5) for value in row] for row in batch.repeat(16, 0).tolist()
    ]  # the cause
    return rows[::16]


for step in range(600):
    begin = step * BATCH
    values, labels = x[begin : begin + BATCH], y[begin : begin + BATCH, None]
    if rank == 1 and not GOOD:
        with cost:
            values = jittered(values)  # the cause
    train_step(tf.constant(values), tf.constant(labels))
