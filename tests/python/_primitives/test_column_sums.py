"""Sums of a product's columns, which `optimize` keeps apart from what else reads the product."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._primitives.column_sums import with_sums_apart

ROWS, WIDTH = 4096, 256  # as many elements as it takes


@pytest.fixture
def arrays(rng):
    """x, and a matrix."""
    shapes = (ROWS, 8), (8, WIDTH)
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def barriers(fun, *args):
    """How many sums read a barrier of what they read before; the values are the same."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    new = with_sums_apart(jaxpr)
    wanted = jax.tree.leaves(fun(*args))
    for one, other in zip(jax.core.eval_jaxpr(new, [], *args), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    made_by = {x: one for one in new.eqns for x in one.outvars}
    read = [made_by[one.invars[0]] for one in new.eqns if one.primitive.name == "reduce_sum"]
    apart = [one for one in read if one.primitive.name == "optimization_barrier"]
    assert len(new.eqns) == len(jaxpr.eqns) + len(apart)
    assert (new is jaxpr) == (not apart)
    return len(apart)


APART = {
    "of a product that is read twice": lambda x, w: (lambda y: (jnp.sum(y, 0), y * 2))(x @ w),
    "of rows in two dimensions": lambda x, w: (
        lambda y: (jnp.sum(y.reshape(4, -1, WIDTH), (0, 1)), y * 2)
    )(x @ w),
    "beside functions of another shape": lambda x, w: (lambda y: (jnp.sum(y, 0), y.reshape(4, -1, WIDTH) * 2))(x @ w),
}  # fmt: skip


@pytest.mark.parametrize("fun", APART.values(), ids=APART)
def test_a_sum_of_columns_is_apart(arrays, fun):
    assert barriers(fun, *arrays) == 1


ALONE = {
    "nobody else reads the product": lambda x, w: jnp.sum(x @ w, 0),
    "another product reads it": lambda x, w: (lambda y: (jnp.sum(y, 0), y @ w.T))(x @ w),
    "of rows": lambda x, w: (lambda y: (jnp.sum(y, 1), y * 2))(x @ w),
    "of all": lambda x, w: (lambda y: (jnp.sum(y), y * 2))(x @ w),
    "of what is computed of the product": lambda x, w: (lambda y: (jnp.sum(jnp.tanh(y), 0), y * 2))(x @ w),
    "of no product": lambda x, w: (jnp.sum(x[:, :1] * w[:1], 0), x * 2),
    "of few elements": lambda x, w: (lambda y: (jnp.sum(y, 0), y * 2))(x[:-1] @ w),
    "of bfloat16": lambda x, w: (lambda y: (jnp.sum(y, 0), y * 2))(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)),
}  # fmt: skip


@pytest.mark.parametrize("fun", ALONE.values(), ids=ALONE)
def test_other_sums_stay(arrays, fun):
    assert barriers(fun, *arrays) == 0


def test_derivatives_of_a_layer_norm(arrays):
    """Under optimize: the bias's gradient reads a barrier, and all gradients are what they were."""
    x, w = arrays
    g, b = jnp.full(8, 1.5), jnp.full(8, 0.5)
    wide = jnp.tile(x, (32, 1))  # 131072 rows of 8

    def loss(g, b, w):
        centred = wide - wide.mean(-1, keepdims=True)
        y = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b
        return jnp.sum(jnp.sin(y @ w))

    def gradients(g, b, w):
        return jax.grad(loss, (0, 1, 2))(g, b, w)

    optimized = jax_moye.optimize(gradients)
    text = str(jax.make_jaxpr(optimized)(g, b, w))
    assert text.count("optimization_barrier") == 1
    for one, other in zip(jax.jit(optimized)(g, b, w), jax.jit(gradients)(g, b, w), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-3)
