"""Trains a Flax transformer block to continue a novel: every product with a weight is one of jax_moye's kernels.

    pip install flax optax && python examples/flax_transformer.py

Attention's scores and sums, products over batch and heads in an order that no single launch takes, stay XLA's. On a GPU
the compiled kernels run; with none the same kernels run in jax_moye's CPU emulator. Exit status 1 if the loss does not
fall below that of guessing by the letters' frequencies.
"""

import argparse
import functools
import sys
import time
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import text
from flax import linen as nn

import jax_moye

LENGTH, BATCH, WIDTH, HEADS = 32, 4, 32, 2


class Block(nn.Module):
    """Causal attention and a two-layer network, each added to what came in: (batch, length, WIDTH) -> the same."""

    @nn.compact
    def __call__(self, x):
        """The arguments that Flax has for products are all there is to do."""
        dense = functools.partial(nn.Dense, dtype=jnp.bfloat16, dot_general=jax_moye.dot_general)
        attention = nn.MultiHeadDotProductAttention(
            HEADS,
            dtype=jnp.bfloat16,
            qkv_dot_general=jax_moye.dot_general,
            out_dot_general=jax_moye.dot_general,
        )
        x = x + attention(nn.LayerNorm()(x), mask=nn.make_causal_mask(x[..., 0]))
        hidden = nn.gelu(dense(2 * WIDTH)(nn.LayerNorm()(x)))
        return x + dense(WIDTH)(hidden)


class Model(nn.Module):
    """Characters to scores of the next one: (batch, length) -> (batch, length, letters)."""

    letters: int

    @nn.compact
    def __call__(self, tokens):
        """One block between the embeddings and the scores."""
        x = nn.Embed(self.letters, WIDTH)(tokens) + nn.Embed(LENGTH, WIDTH)(jnp.arange(tokens.shape[1]))
        scores = nn.Dense(self.letters, dtype=jnp.bfloat16, dot_general=jax_moye.dot_general)(Block()(x))
        return scores.astype(jnp.float32)


def main(argv=None):
    """Trains, prints the losses, returns the exit status."""
    parser = argparse.ArgumentParser(description="Trains a Flax transformer block through jax_moye's kernels.")
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args(argv).steps

    letters, alphabet = text.load()
    frequencies = np.bincount(letters) / len(letters)
    guessing = -(frequencies * np.log(frequencies)).sum()
    model, optimizer = Model(len(alphabet)), optax.adam(1e-2)
    rng = np.random.default_rng(0)

    def loss(params, window):
        scores = cast(jax.Array, model.apply(params, window[:, :-1]))
        return optax.softmax_cross_entropy_with_integer_labels(scores, window[:, 1:]).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, window):
        value, gradient = jax.value_and_grad(loss)(params, window)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    interpret = None if jax.devices()[0].platform == "gpu" else jax_moye.InterpretParams(detect_races=False)
    with jax_moye.options(implementation="moye", interpret=interpret):
        params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))
        state = optimizer.init(params)
        start, losses = time.perf_counter(), []
        for i in range(steps):
            params, state, value = step(params, state, text.windows(letters, rng, BATCH, LENGTH + 1))
            losses.append(float(value))
            if i % 10 == 9:
                print(f"step {i + 1:4d} loss {np.mean(losses[-10:]):.3f}")
    last = np.mean(losses[-10:])
    print(f"{last:.3f} at the end, {guessing:.3f} by guessing, {time.perf_counter() - start:.1f} s")
    return 0 if last < guessing else 1


if __name__ == "__main__":
    sys.exit(main())
