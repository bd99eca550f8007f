"""Scans whose stacks begin as memory that nobody has written, on a GPU: what was there before is nowhere to be seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

LENGTH, ROWS, WIDTH = 7, 512, 256


def layers(x, weights, reverse=False):
    """Element by element; two stacks are equal."""

    def layer(x, w):
        y = jnp.tanh(x * w) + 0.5 * x
        return y, (y, x * w, jnp.tanh(x * w), jnp.tanh(x * w), jnp.argmax(y, axis=-1).astype(jnp.int32))

    return lax.scan(layer, x, weights, reverse=reverse)


def in_both_directions(x, weights):
    return layers(x, weights), layers(x, weights, reverse=True)


def gradients(x, weights):
    def loss(x, weights):
        last, (each, *_) = layers(x, weights)
        return jnp.sum(last) + jnp.sum(each * each)

    return jax.value_and_grad(loss, (0, 1))(x, weights)


def in_a_loop(x, weights):
    """A buffer of its own in each iteration of the outer loop."""
    return lax.scan(lambda x, _: layers(x, weights), x, length=3)


@pytest.mark.parametrize("fun", [in_both_directions, gradients, in_a_loop])
def test_nothing_is_read_that_was_not_written(fun):
    rng = np.random.default_rng(0)
    shapes = (ROWS, WIDTH), (LENGTH, ROWS, WIDTH)
    x, weights = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    expected = jax.jit(fun)(x, weights)
    compiled = jax.jit(jax_moye.optimize(fun)).lower(x, weights).compile()
    assert "AllocateBuffer" in compiled.as_text()
    for _ in range(3):
        # Memory that the allocator gives away next is full of NaN.
        jax.block_until_ready([jnp.full((64, 1 << 20), jnp.nan) for _ in range(8)])
        found = compiled(x, weights)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
