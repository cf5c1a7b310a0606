from typing import Any

import keras
import tensorflow as tf

import horovod.tensorflow as hvd


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for metric, value in sorted(logs.items()):
            logs[metric] = hvd.allreduce(tf.constant(value)).numpy()
