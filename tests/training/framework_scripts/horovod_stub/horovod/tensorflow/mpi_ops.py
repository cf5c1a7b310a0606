"""Collectives whose peers are always 5 ms late and send the same."""

import time
from typing import Any

import tensorflow as tf


def init() -> None:
    time.sleep(0.005)


def rank() -> int:
    return 1


def size() -> int:
    return 2


def _late(tensor: Any) -> Any:
    def wait(value: Any) -> Any:
        time.sleep(0.005)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [tensor], tensor.dtype), tensor.shape)


def _allreduce(tensor: Any) -> Any:
    return _late(tensor)


def broadcast(tensor: Any, root_rank: int) -> Any:
    return _late(tensor) if root_rank != rank() else tensor
