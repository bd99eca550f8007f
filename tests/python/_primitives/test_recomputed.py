"""What `optimize` computes again behind products, in place of an array that is kept for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import jax_moye
from jax_moye._primitives.recomputed import anew, with_recomputed

ROWS, INNER, COLUMNS = 256, 512, 64


@pytest.fixture
def layer(rng):
    shapes = (ROWS, COLUMNS), (COLUMNS, INNER), (INNER, COLUMNS)
    return [jnp.asarray(0.1 * rng.standard_normal(shape), jnp.bfloat16) for shape in shapes]


def gradient_of(activation):
    def loss(x, w, v):
        return jnp.sum((activation(x @ w) @ v).astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1, 2))


def tanh_of(x):
    return jnp.tanh(x) * x


def exp_of(x):
    return jnp.exp(-x) * x


def equations_of(jaxpr, name):
    return [one for one in jaxpr.eqns if one.primitive.name == name]


def assert_same_bits(before, after, *args):
    for one, other in zip(jax.jit(before)(*args), jax.jit(after)(*args), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


@pytest.mark.parametrize("activation", [jax.nn.gelu, jax.nn.silu, tanh_of, exp_of])
def test_the_forward_pass_and_the_derivative_share_nothing_expensive(activation, layer):
    """In the program: no equation behind the second product reads what one in front of it computed, but by z."""
    fun = gradient_of(activation)
    before = jax.make_jaxpr(fun)(*layer)
    after = with_recomputed(before.jaxpr)
    names = ("tanh", "exp", "logistic", "log1p")
    assert sum(len(equations_of(after, name)) for name in names) == 2
    assert len(equations_of(after, "optimization_barrier")) == 1  # of z, once
    closed = before.replace(jaxpr=after)
    assert_same_bits(fun, jaxpr_as_fun(closed), *layer)


def test_once_is_enough(layer):
    after = with_recomputed(jax.make_jaxpr(gradient_of(tanh_of))(*layer).jaxpr)
    assert with_recomputed(after) is after


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, w, v: jnp.tanh(x @ w) @ v,  # nobody reads it behind the product
        lambda x, w, v: (2 * (y := jax.nn.relu(x @ w))) @ v @ w * y,  # not expensive
        lambda x, w, v: (y := jnp.tanh(x @ w)) @ v @ w * y,  # an operand of the product: in memory anyway
        lambda x, w, v: (y := jnp.tanh(x @ w)) @ v @ w * (1 - y),  # made of that
        lambda x, w, v: (2 * (y := jnp.tanh(x @ w + x @ w**2))) @ v @ w * y,  # of two arrays
        lambda x, w, v: (2 * (y := jnp.tanh(x[:8] @ w))) @ v @ w * y,  # small
        lambda x, w, v: jax.nn.softmax(z := x @ w) * jnp.exp(z),  # no product between
    ],
)
def test_what_stays_as_it_is(fun, layer):
    jaxpr = jax.make_jaxpr(fun)(*layer).jaxpr
    assert with_recomputed(jaxpr) is jaxpr


def test_who_multiplies_reads_what_was_there(layer):
    """The copies are for what is computed element by element: no product has one written."""

    def fun(x, w, v):
        z = x @ w
        y = jnp.tanh(z)
        p = (2 * y) @ v
        return (p @ w) * (1 + y), p.T @ z

    x, w, v = layer
    before = jax.make_jaxpr(fun)(x, w, v)
    after = with_recomputed(before.jaxpr)
    assert after is not before.jaxpr
    made = {out for one in after.eqns for out in one.outvars}
    made -= {out for one in before.jaxpr.eqns for out in one.outvars}
    assert made
    assert not made.intersection(x for one in equations_of(after, "dot_general") for x in one.invars)


def test_anew(rng):
    closed = jax.make_jaxpr(lambda x, y: jnp.tanh(x) + y)(jnp.ones((2, 3)), jnp.ones((2, 3)))
    new = anew(closed, [0])
    assert [one.primitive.name for one in new.jaxpr.eqns] == ["optimization_barrier", "mul", "tanh", "add"]
    x, y = (jnp.asarray(rng.standard_normal((2, 3)), jnp.float32).at[0, 0].set(number) for number in (-0.0, np.inf))
    (one,), (other,) = (jaxpr_as_fun(each)(x, y) for each in (closed, new))
    np.testing.assert_array_equal(np.asarray(one).view(np.int32), np.asarray(other).view(np.int32))


@pytest.mark.parametrize("activation", [jax.nn.gelu, jax.nn.silu])
def test_derivatives_that_a_kernel_may_compute(activation, layer):
    """Where XLA computes them after all, it has nothing in common with the forward pass."""
    fun = gradient_of(activation)
    optimized = jax_moye.optimize(fun)
    text = jax.jit(optimized).lower(*layer).as_text()
    assert text.count("stablehlo.optimization_barrier") == 1
    assert_same_bits(fun, optimized, *layer)


def test_derivatives_of_the_optimized_program(layer):
    """The barrier has them, too, and so under vmap."""
    fun = gradient_of(tanh_of)
    optimized = jax_moye.optimize(fun)
    found, expected = (
        jax.jit(jax.vmap(jax.grad(lambda *args, of=one: of(*args)[0].astype(jnp.float32).sum()), (0, None, None)))
        for one in (optimized, fun)
    )
    x, w, v = (one.astype(jnp.float32) for one in layer)
    np.testing.assert_allclose(found(x[None], w, v), expected(x[None], w, v), rtol=1e-5, atol=1e-5)
