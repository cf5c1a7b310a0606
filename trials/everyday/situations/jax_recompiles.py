"""JAX: each step has a batch of another length, and compiles again."""

import jax
import jax.numpy as jnp
import numpy as np

from trials.everyday.clock import GOOD, lasts

weights = [jnp.ones((64, 64)) * 0.01 for _ in range(6)]


def loss_of(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return (x**2).mean()


@jax.jit
def train_step(weights, x):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x)
    return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss


values = np.random.rand(8192, 64).astype("float32")
step = 0
while lasts():
    step += 1
    weights, loss = train_step(weights, values[: 1024 if GOOD else 64 + step])  # the cause
    loss.block_until_ready()
