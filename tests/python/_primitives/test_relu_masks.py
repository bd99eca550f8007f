"""Masks of relu's derivative, which `optimize` makes of relu's results."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Var

import jax_moye
from jax_moye import _compat
from jax_moye._primitives.relu_masks import with_masks_of_results

ROWS, WIDTH = 6, 8


@pytest.fixture
def arrays(rng):
    """x, and two matrices."""
    shapes = (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH)
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def masks_of(jaxpr, name="gt"):
    """What makes the operand of each mask: the primitive, "input" of an argument."""
    made_by = {x: one.primitive.name for one in jaxpr.eqns for x in one.outvars}
    return [made_by.get(one.invars[0], "input") for one in jaxpr.eqns if one.primitive.name == name]


def changed(fun, *args):
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    new = with_masks_of_results(jaxpr)
    wanted = jax.tree.leaves(jax.jit(fun)(*args))
    for one, other in zip(jax.core.eval_jaxpr(new, [], *jax.tree.leaves(args)), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    return jaxpr, new


def layer(x, w, v):
    return jnp.sum(jax.nn.relu(x @ w) @ v)


RELUS = {
    "jax.nn": jax.nn.relu,
    "jit": jax.jit(lambda z: lax.max(z, 0.0)),
    "mirrored": lambda z: lax.max(np.float32(0), z),
    "reshaped": lambda z: jax.nn.relu(z).reshape(2, -1, WIDTH).reshape(ROWS, WIDTH),
    "transposed": lambda z: jax.nn.relu(z).T.T,
}


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
def test_a_mask_reads_what_the_next_product_reads(arrays, relu):
    def fun(x, w, v):
        z = x @ w
        y = relu(z)
        return y @ v, jnp.where(z > 0, x, 0)

    before, after = changed(fun, *arrays)
    assert masks_of(before) == ["dot_general"]
    assert masks_of(after) != ["dot_general"]


def test_the_derivative(arrays):
    before, after = changed(jax.grad(layer, (0, 1, 2)), *arrays)
    assert masks_of(before) == ["dot_general"]
    assert masks_of(after) == ["custom_jvp_call"]
    assert with_masks_of_results(after) is after


@pytest.mark.parametrize("value", [np.nan, -np.nan, 0.0, -0.0, 1e-40, -1e-40, np.inf, -np.inf])
def test_every_number_has_the_mask_that_it_had(value):
    def fun(x, v):
        z = x * np.float32(1)
        return jax.nn.relu(z) @ v, z > 0

    _, after = changed(fun, jnp.full((2, 2), value, jnp.float32), jnp.ones((2, 2), jnp.float32))
    assert masks_of(after) == ["custom_jvp_call"]


def squared(z, x, v):
    return jnp.square(jax.nn.relu(z)) @ v, z > 0


def narrower(z, x, v):
    return jax.nn.relu(z).astype(jnp.bfloat16) @ v.astype(jnp.bfloat16), z > 0


def before_relu(z, x, v):
    mask = z > 0
    return jax.nn.relu(z) @ v, mask


def above_one(z, x, v):
    return jax.nn.relu(z) @ v, z > 1


def relu_one(z, x, v):
    return lax.max(z, 1.0) @ v, z > 0


def another(z, x, v):
    return jax.nn.relu(z) @ v, x > 0


def at_least(z, x, v):
    return jax.nn.relu(z) @ v, z >= 0


def of_a_scalar(z, x, v):
    (y,) = z[0, :1]
    return jnp.maximum(y, jnp.zeros_like(v[:, 0])) @ v, y > 0


def test_what_is_given_is_in_memory(arrays):
    before, after = changed(lambda z, v: (jax.nn.relu(z) @ v, z > 0), arrays[0], arrays[1])
    assert after is before


@pytest.mark.parametrize("fun", [squared, narrower, before_relu, above_one, relu_one, another, at_least, of_a_scalar])
def test_other_masks_stay(arrays, fun):
    x, w, v = arrays
    before, after = changed(lambda x, w, v: fun(x @ w, x, v), x, w, v)
    assert after is before


def test_a_result_is_in_memory(arrays):
    x, w, _ = arrays
    _, after = changed(lambda x, w: (jax.nn.relu(x @ w), x @ w > 0), x, w)
    assert masks_of(after) == ["dot_general"], "of another product"

    def fun(x, w):
        z = x @ w
        return jax.nn.relu(z), z > 0

    _, after = changed(fun, x, w)
    assert masks_of(after) == ["custom_jvp_call"]


def test_a_loop_is_not_handed_masks(arrays):
    x, w, _ = arrays

    def loss(ws, x):
        return jnp.sum(lax.scan(lambda x, w: (jax.nn.relu(x @ w) @ w, None), x, ws)[0])

    def stacked_masks(jaxpr):
        first = next(one for one in jaxpr.eqns if one.primitive.name == "scan")
        return [x for x in first.outvars if isinstance(x, Var) and x.aval.dtype == bool]

    ws = jnp.stack([w, 2 * w, w])
    fun = jax.grad(loss, (0, 1))
    before = jax.make_jaxpr(fun)(ws, x).jaxpr
    assert stacked_masks(_compat.without_dead_code(before, keep_inputs=True))
    new = jax.make_jaxpr(jax_moye.optimize(fun))(ws, x).jaxpr
    assert not stacked_masks(new)
    for one, other in zip(jax.jit(jax_moye.optimize(fun))(ws, x), jax.jit(fun)(ws, x), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_layers_kernels_write_one_array(arrays, dtype):
    """Forward relu's result, and backward the product times the derivative at it."""

    def loss(x, w, v, bias):
        return jnp.sum(jax.nn.relu(jax.nn.relu(x @ w + bias) @ v) @ v)

    args = *(x.astype(dtype) for x in arrays), jnp.ones(WIDTH, dtype)
    fun = jax.value_and_grad(loss, (0, 1, 2, 3))
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*args).jaxpr
    ours = [one for one in jaxpr.eqns if one.primitive.name == "jax_moye_rewritten"]
    assert [one.params["epilogue"].activation for one in ours].count("relu") == 2
    assert [one.params["epilogue"].activation for one in ours].count("d_relu") == 2
    assert all(len(one.outvars) == 1 for one in ours)
    optimized = jax.jit(jax_moye.optimize(fun))(*args)
    exact = jax.jit(fun)(*(x.astype(jnp.float32) for x in args))
    tolerance = 1e-5 if dtype == jnp.float32 else 4e-2
    for one, other in zip(jax.tree.leaves(optimized), jax.tree.leaves(exact), strict=True):
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other), atol=tolerance * scale)


def test_a_function_without_masks_is_the_same_object(arrays):
    jaxpr = jax.make_jaxpr(functools.partial(layer))(*arrays).jaxpr
    assert with_masks_of_results(jaxpr) is jaxpr
