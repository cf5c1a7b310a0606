"""Trains with Flax as the first word says: 2 epochs of 8 batches, each followed by 4 of evaluation."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState

how = sys.argv[1]
values = np.random.default_rng(0).random((64, 8)).astype("float32")
labels = values.sum(1, keepdims=True)


def error(answers: Any, labels: Any) -> Any:
    return jnp.mean((answers - labels) ** 2)


if how == "linen":
    model = linen.Dense(1)
    weights = model.init(jax.random.PRNGKey(0), values[:1])["params"]
    state = TrainState.create(apply_fn=model.apply, params=weights, tx=optax.adam(0.01))

    @jax.jit
    def step(state: Any, batch: Any, labels: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            return error(state.apply_fn({"params": weights}, batch), labels)

        return state.apply_gradients(grads=jax.grad(loss_of)(state.params))

    @jax.jit
    def evaluate(state: Any, batch: Any, labels: Any) -> Any:
        return error(state.apply_fn({"params": state.params}, batch), labels)

    def train(batch: Any, labels: Any) -> Any:
        global state
        state = step(state, batch, labels)

else:
    state = nnx.Linear(8, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(state, optax.adam(0.01), wrt=nnx.Param)
    evaluate = nnx.jit(lambda model, batch, labels: error(model(batch), labels))
    gradients_of = nnx.grad(
        evaluate if how == "nnx" else lambda *arguments: error(arguments[0](arguments[1]), arguments[2])
    )

    def update(model: Any, optimizer: Any, batch: Any, labels: Any) -> Any:
        optimizer.update(model, gradients_of(model, batch, labels))

    if how == "nnx":
        update = nnx.jit(update)
    else:
        gradients_of = nnx.jit(gradients_of)

    def train(batch: Any, labels: Any) -> Any:
        update(state, optimizer, batch, labels)


for _ in range(2):
    for at in range(0, 64, 8):
        train(values[at : at + 8], labels[at : at + 8])
    print(sum(float(evaluate(state, values[at : at + 8], labels[at : at + 8])) for at in range(0, 64, 16)))
leaves = jax.tree_util.tree_leaves(state.params if how == "linen" else nnx.state(state))
print(*(np.asarray(leaf).tobytes().hex() for leaf in leaves))
