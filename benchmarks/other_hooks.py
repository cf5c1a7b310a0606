"""Measures what hooks cost per training step of Keras on TensorFlow, and of JAX.

These hooks cannot be taken off again. So a process with hooks and one without take turns, and each reports
its median round. The value is the median over pairs of how much longer a step took with hooks.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from benchmarks import Row
from benchmarks.step import _environment, _shared_memory

PAIRS, ROUNDS, STEPS = 7, 9, 300
MICROSECONDS = 50.0  # as PyTorch's take, where caches are cold


def rows() -> list[Row]:
    """Returns a bare step of each framework, and what hooks add to it."""
    table: list[Row] = []
    with (
        tempfile.TemporaryDirectory(dir=_shared_memory()) as directory,
        _environment(STEPSCOPE_LEDGER_DIR=directory, STEPSCOPE_RUN="benchmark", TF_CPP_MIN_LOG_LEVEL="3"),
    ):
        for name in TRAININGS:
            pairs = [(_process(name, "bare"), _process(name, "hooks")) for _ in range(PAIRS)]
            added = statistics.median(hooked - bare for bare, hooked in pairs)
            table += [
                (f"a training step of {name} on the CPU, bare", min(bare for bare, _ in pairs), "us", ""),
                (f"added to it by hooks of {name}", added, "us", f"<= {MICROSECONDS:g}"),
            ]
    return table


def _process(name: str, way: str) -> float:
    """Returns the microseconds per step of a training in its own process."""
    words = [sys.executable, "-m", "benchmarks.other_hooks", name, way]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return float(done.stdout.split()[-1])


def _keras() -> Callable[[], object]:
    """Returns a function that trains a small model for `STEPS` steps."""
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones((32, 64)), tf.ones((32, 1)))).repeat().prefetch(2)
    return lambda: model.fit(data, epochs=1, steps_per_epoch=STEPS, verbose=0)


def _jax() -> Callable[[], object]:
    """Returns a function that trains a small model for `STEPS` steps."""
    import jax
    from jax import numpy as jnp

    weights, batch = jnp.ones((64, 64)), jnp.ones((32, 64))

    def update(weights: jax.Array, batch: jax.Array) -> jax.Array:
        return weights - 1e-3 * jax.grad(lambda now: jnp.mean((batch @ now) ** 2))(weights)

    step = jax.jit(update)

    def train() -> None:
        nonlocal weights
        for _ in range(STEPS):
            weights = step(weights, batch)
        weights.block_until_ready()

    return train


TRAININGS = {"Keras": _keras, "JAX": _jax}


def _measure(name: str, way: str) -> float:
    if way == "hooks":
        import stepscope

        stepscope.instrument()
    train = TRAININGS[name]()
    train()  # compiles
    seconds = []
    for _ in range(ROUNDS):
        began = perf_counter()
        train()
        seconds.append(perf_counter() - began)
    return statistics.median(seconds) / STEPS * 1e6


if __name__ == "__main__":
    print(_measure(*sys.argv[1:]))
