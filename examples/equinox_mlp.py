"""Trains an Equinox network to continue a novel, on jax_moye's kernels: one line exchanges its layers.

    pip install equinox optax && python examples/equinox_mlp.py

On a GPU the compiled kernels run; with none the same kernels run in jax_moye's CPU emulator. Exit status 1 if the loss
does not fall below that of guessing by the letters' frequencies.
"""

import argparse
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import text

import jax_moye
from jax_moye.contrib.equinox import use

CONTEXT, BATCH, WIDTH = 4, 128, 64


class Model(eqx.Module):
    """The next character from the CONTEXT before it."""

    embedding: eqx.nn.Embedding
    network: eqx.nn.MLP

    def __init__(self, letters, key):
        """Draws the parameters."""
        keys = jax.random.split(key)
        self.embedding = eqx.nn.Embedding(letters, 16, key=keys[0])
        self.network = eqx.nn.MLP(16 * CONTEXT, letters, WIDTH, depth=1, activation=jax.nn.gelu, key=keys[1])

    def __call__(self, tokens):
        """(CONTEXT,) -> (letters,): one example; jax.vmap makes a batch, and one product of many, of it."""
        return self.network(jax.vmap(self.embedding)(tokens).reshape(-1))


def loss(model, window):
    """Mean cross-entropy of the last characters of (batch, CONTEXT + 1)."""
    scores = jax.vmap(model)(window[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(scores, window[:, -1]).mean()


def main(argv=None):
    """Trains, prints the losses, returns the exit status."""
    parser = argparse.ArgumentParser(description="Trains an Equinox network through jax_moye's kernels.")
    parser.add_argument("--steps", type=int, default=80)
    steps = parser.parse_args(argv).steps

    letters, alphabet = text.load()
    frequencies = np.bincount(letters) / len(letters)
    guessing = -(frequencies * np.log(frequencies)).sum()
    rng = np.random.default_rng(0)

    model = use(Model(len(alphabet), jax.random.key(0)))  # the line
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, window):
        value, gradient = eqx.filter_value_and_grad(loss)(model, window)
        updates, state = optimizer.update(gradient, state)
        return eqx.apply_updates(model, updates), state, value

    interpret = None if jax.devices()[0].platform == "gpu" else jax_moye.InterpretParams(detect_races=False)
    with jax_moye.options(implementation="moye", interpret=interpret):
        start, losses = time.perf_counter(), []
        for i in range(steps):
            window = jnp.asarray(text.windows(letters, rng, BATCH, CONTEXT + 1))
            model, state, value = step(model, state, window)
            losses.append(float(value))
            if i % 20 == 19:
                print(f"step {i + 1:4d} loss {np.mean(losses[-20:]):.3f}")
    last = np.mean(losses[-20:])
    print(f"{last:.3f} at the end, {guessing:.3f} by guessing, {time.perf_counter() - start:.1f} s")
    return 0 if last < guessing else 1


if __name__ == "__main__":
    sys.exit(main())
