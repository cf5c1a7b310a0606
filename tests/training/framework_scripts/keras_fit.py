"""Trains with Keras, evaluates and predicts, and prints what the weights are: 3 epochs of 8 batches.

With VARIANTS, it trains once per variant: each is a run of its name, the last with a profile window. KERAS
may be `tf_keras`: Keras 2. On PyTorch with PY_WORKERS, nothing imports TensorFlow.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

keras = import_module(os.environ.get("KERAS", "keras"))
only_torch = os.environ.get("KERAS_BACKEND") == "torch" and bool(os.environ.get("PY_WORKERS"))
if not only_torch:
    import tensorflow as tf
late, checkpoint = float(sys.argv[1]), sys.argv[2]


def slowly(values: np.ndarray) -> np.ndarray:
    time.sleep(late)
    return values


def wait(values: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.ensure_shape(tf.numpy_function(slowly, [values], tf.float32), (None, 12, 1)), labels


def in_python(_: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    slow = tf.numpy_function(slowly, [tf.reduce_mean(predictions)], tf.float32)
    return tf.ensure_shape(slow, ())


def batches_of(values: np.ndarray, keras: Any, number: int = 8, **options: int) -> dict[str, Any]:
    """Returns the arguments of `fit` for batches that Python makes: with no workers, in a generator."""

    class Batches(keras.utils.Sequence):  # type: ignore[misc]
        def __len__(self) -> int:
            return number

        def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
            part = values[8 * number : 8 * number + 8]
            return slowly(part), part.sum(1)

    if not options["workers"]:
        batches = Batches()
        return {"x": (batches[number % 8] for number in range(32)), "steps_per_epoch": 8}
    if hasattr(keras.utils, "PyDataset"):
        return {"x": Batches(**options)}
    return {"x": Batches(), **options}


def fit(
    eager: bool = False,
    at_once: int = 1,
    watch: bool = False,
    workers: str | None = None,
    mirrored: bool = False,
    keras: Any = keras,
) -> None:
    keras.utils.set_random_seed(3)
    with tf.distribute.MirroredStrategy().scope() if mirrored else nullcontext():
        model = keras.Sequential(
            [
                keras.Input((12, 1)),
                keras.layers.Conv1D(4, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        metrics = [in_python] if watch else []
        model.compile("adam", "mse", metrics=metrics, run_eagerly=eager, steps_per_execution=at_once)
    values = np.random.default_rng(0).random((60, 12, 1)).astype("float32")  # the last batch is smaller
    if only_torch:
        evaluation = batches_of(values, keras, 2, workers=1)["x"]
    else:
        batches = tf.data.Dataset.from_tensor_slices((values, values.sum(1))).batch(8)
        training = batches.map(wait) if late else batches.prefetch(2)
        evaluation = batches.take(2)
    if watch:
        import stepscope

        training = stepscope.watch(training)
    save = keras.callbacks.ModelCheckpoint(checkpoint, save_weights_only=True)
    if workers:
        data = batches_of(values, keras, workers=int(workers), max_queue_size=4)
    else:
        data = {"x": values, "y": values.sum(1), "batch_size": 8} if eager else {"x": training}
    model.fit(**data, epochs=3, verbose=0, validation_data=evaluation, callbacks=[save])
    model.evaluate(evaluation, verbose=0)
    model.predict(evaluation, verbose=0)
    weights = b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights())
    print("weights", hashlib.sha256(weights).hexdigest())


if os.environ.get("VARIANTS"):
    import stepscope

    variants: dict[str, Any] = {"plain": {}, "eager": {"eager": True}, "at once": {"at_once": 2}}
    variants |= {"watched": {"watch": True}, "py": {"workers": "1"}, "generator": {"workers": "0"}}
    variants["mirrored"] = {"at_once": 2, "mirrored": True}
    if find_spec("tf_keras"):
        keras_2 = {"at_once": 2, "keras": import_module("tf_keras")}
        variants |= {"Keras 2": keras_2, "Keras 2, mirrored": {**keras_2, "mirrored": True}}
        variants["Keras 2, py"] = {**keras_2, "at_once": 1, "workers": "2"}
        variants["Keras 2, plain"] = {**keras_2, "at_once": 1}
    variants["profiled"] = {}
    for name, settings in variants.items():
        if name == "profiled":
            os.environ["STEPSCOPE_PROFILE"] = "3:6"
        stepscope.start(run=name)
        fit(**settings)
        stepscope.finish()
else:
    fit(workers=os.environ.get("PY_WORKERS"))
