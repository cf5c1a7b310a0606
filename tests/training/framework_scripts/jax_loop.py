"""Trains in a loop of its own with JAX: 2 epochs of 8 batches, each followed by 4 batches of evaluation.

The first word says how. Prints the parameters at the end, so that two trainings can be compared.
"""

import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

how = sys.argv[1]
values = np.random.default_rng(0).random((64, 8)).astype("float32")
labels = values.sum(1, keepdims=True)
parameters = {"weights": jnp.full((8, 1), 0.1), "bias": jnp.zeros(1)}


def slept(value: Any) -> Any:
    time.sleep(0.01)
    return value


def loss_of(parameters: Any, batch: Any, labels: Any) -> Any:
    if how == "calls back":
        batch = jax.pure_callback(slept, jax.ShapeDtypeStruct(batch.shape, batch.dtype), batch)
        jax.debug.callback(slept, labels)
    return jnp.mean((batch @ parameters["weights"] + parameters["bias"] - labels) ** 2)


def updated(parameters: Any, gradients: Any) -> Any:
    return jax.tree_util.tree_map(lambda value, gradient: value - 0.01 * gradient, parameters, gradients)


gradients_of = jax.value_and_grad(loss_of)
evaluate = jax.jit(lambda total, *arguments: total + loss_of(*arguments))  # its total comes back, too
scale = jax.jit(lambda batch: batch * 1.0)

if how == "step":

    @jax.jit
    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        loss, gradients = gradients_of(parameters, batch, labels)
        return updated(parameters, gradients), loss

elif how in ("anew", "twins"):

    def updating() -> Any:
        """Returns another compiled function at each call, of the same code."""

        @jax.jit
        def update(parameters: Any, batch: Any, labels: Any) -> Any:
            loss, gradients = gradients_of(parameters, batch, labels)
            return updated(parameters, gradients), loss

        return update

    twins = [updating(), updating()]
    other = [parameters]

    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        if how == "anew":
            return updating()(parameters, batch, labels)
        other[0] = twins[1](other[0], batch, labels)[0]
        return twins[0](parameters, batch, labels)

elif how in ("donated", "ahead", "calls back"):

    @partial(jax.jit, donate_argnums=0)
    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        loss, gradients = gradients_of(parameters, batch, labels)
        return updated(parameters, gradients), loss

    if how == "ahead":
        train = train.lower(parameters, values[:8], labels[:8]).compile()

elif how == "parts":
    gradients_of, updated = jax.jit(gradients_of), jax.jit(updated)

    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        loss, gradients = gradients_of(parameters, batch, labels)
        return updated(parameters, gradients), loss

elif how == "accumulated":
    gradients_of, updated = jax.jit(gradients_of), jax.jit(updated)
    add = jax.jit(partial(jax.tree_util.tree_map, jnp.add))
    sums: list[Any] = []

    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        """Updates after each second batch."""
        loss, gradients = gradients_of(parameters, batch, labels)
        sums.append(add(sums.pop() if sums else jax.tree_util.tree_map(jnp.zeros_like, gradients), gradients))
        return (parameters if at % 16 < 8 else updated(parameters, sums.pop())), loss

elif how in ("gradients", "plain"):
    if how == "gradients":
        gradients_of = jax.jit(gradients_of)

    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        loss, gradients = gradients_of(parameters, batch, labels)
        return updated(parameters, gradients), loss

elif how == "never":  # nobody can tell where a step ends

    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        loss, gradients = gradients_of(parameters, batch, labels)
        return {each: parameters[each] - 0.01 * gradients[each] for each in parameters}, loss

elif how == "sampling":
    sample = jax.jit(updated)

    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        return sample(parameters, parameters), batch.sum() + labels.sum()

elif how == "saliency":
    gradients_of = jax.jit(jax.value_and_grad(loss_of, argnums=1))

    def train(parameters: Any, batch: Any, labels: Any) -> Any:
        return parameters, gradients_of(parameters, batch, labels)[0]

else:
    import optax

    optimizer = optax.adam(0.01)
    states = [optimizer.init(parameters)]
    if how in ("optax", "optax twins"):
        gradients_of = jax.jit(gradients_of)
        states, other = [*states, *states], [parameters]

        def updated_eagerly(parameters: Any, number: int, batch: Any, labels: Any) -> Any:
            loss, gradients = gradients_of(parameters, batch, labels)
            updates, states[number] = optimizer.update(gradients, states[number], parameters)
            return optax.apply_updates(parameters, updates), loss

        def train(parameters: Any, batch: Any, labels: Any) -> Any:
            if how == "optax twins":
                other[0], _ = updated_eagerly(other[0], 1, batch, labels)
            return updated_eagerly(parameters, 0, batch, labels)

    else:

        @jax.jit
        def compiled(parameters: Any, state: Any, batch: Any, labels: Any) -> Any:
            loss, gradients = gradients_of(parameters, batch, labels)
            updates, state = optimizer.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state, loss

        def train(parameters: Any, batch: Any, labels: Any) -> Any:
            parameters, states[0], loss = compiled(parameters, states[0], batch, labels)
            return parameters, loss


for _ in range(2):
    for at in range(0, 64, 8):
        parameters, loss = train(parameters, scale(values[at : at + 8]), labels[at : at + 8])
    total = jnp.zeros(())
    for at in range(0, 64, 16):
        total = evaluate(total, parameters, values[at : at + 16], labels[at : at + 16])
    print(float(total))
print(*(value.tobytes().hex() for value in jax.device_get(jax.tree_util.tree_leaves(parameters))))
