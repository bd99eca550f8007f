"""Equations behind a product as a function of the kernel's: which are one, and `optimize` with them in the emulator."""

from __future__ import annotations

import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._primitives.own_activation import equations_behind
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.rewritten import rewritten_p

compiles = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
S = (6, 8)


def behind(function, *others):
    """The names of the equations behind the first operand, and what is left."""
    jaxpr = jax.make_jaxpr(lambda z, *rest: function(jnp.negative(z), *rest))(jnp.ones(S), *others).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    found = equations_behind(program, jaxpr.eqns[0].outvars[0])
    if found is None:
        return None
    members, value = found
    assert value is jaxpr.eqns[members[-1]].outvars[0]
    return " ".join(jaxpr.eqns[index].primitive.name for index in members)


def test_which_equations_are_one_function():
    array = jnp.ones(S)
    assert behind(lambda y: 30 * jnp.tanh(y / 30)) == "div tanh mul"
    assert behind(lambda y: jax.nn.softplus(y) * 2) == "jit mul"
    assert behind(lambda y: y * jnp.tanh(jnp.exp(y) + y)) == "exp add tanh mul"  # of a value that is read three times
    assert behind(lambda y, a: jnp.tanh(y) + a, array) == "tanh"
    assert behind(lambda y: lax.select(y > 0, y, lax.full_like(y, 0.5))) == "gt select_n"
    assert behind(lambda y: jnp.tanh(y).sum()) == "tanh"
    assert behind(lambda y: jnp.exp(jnp.tanh(y))[0]) == "tanh exp"
    # A value that somebody else reads ends it, and what stands in front of it is no function without it.
    assert behind(lambda y: (lambda t: (t, jnp.exp(t)))(jnp.tanh(y))) == "tanh"
    assert behind(lambda y: (jnp.tanh(y), jnp.exp(y))) is None
    assert behind(lambda y, a: jnp.tanh(y) * (y + a), array) is None
    assert behind(lambda y: y.sum()) is None
    # Sums and multiples alone.
    assert behind(lambda y: (y + 1) * 3 - 2) is None


def softcapped(x, w, b):
    return 30 * jnp.tanh((x @ w + b) / 30)


def squared(x, w, b, r):
    return jnp.square(jax.nn.relu(x @ w + b)) + r


@compiles
def test_a_chain_in_one_kernel():
    """Exact where integers are; with a bias in front and a residual behind, each where it was."""
    rng = np.random.default_rng(0)
    x, w, b, r = (jnp.asarray(rng.integers(-3, 4, s), jnp.float32) for s in ((20, 24), (24, 16), (16,), (20, 16)))
    with jax_moye.options(interpret=True, implementation="moye"), jax.default_matmul_precision("highest"):
        for function, operands in ((squared, (x, w, b, r)), (softcapped, (x, w, b))):
            optimized = jax.jit(jax_moye.optimize(function))
            text = optimized.lower(*operands).as_text()
            assert len(re.findall(r'activation = "own"', text)) == 1
            assert "dot_general" not in text
            assert "tanh" not in text
            z = np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(b)
            exact = np.maximum(z, 0) ** 2 + np.asarray(r) if function is squared else 30 * np.tanh(z / 30)
            bound = 0 if function is squared else 1e-6 * np.abs(exact)
            assert np.all(np.abs(optimized(*operands) - exact) <= bound)
            gradients = jax.grad(lambda *args, f=optimized: f(*args).sum(), (0, 1, 2))(*operands)
            expected = jax.grad(lambda *args, f=function: f(*args).sum(), (0, 1, 2))(*operands)
            for got, wanted in zip(gradients, expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


@compiles
def test_16_bits_are_rounded_as_the_program_rounds_them():
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(0, 1, s), jnp.bfloat16) for s in ((64, 32), (32, 48)))

    def function(x, w):
        return jnp.exp2(-jnp.abs(x @ w))

    with jax_moye.options(interpret=True, implementation="moye"):
        optimized = jax.jit(jax_moye.optimize(function))
        assert 'activation = "own"' in optimized.lower(x, w).as_text()
        y = np.asarray(optimized(x, w), np.float64)
    z = (np.asarray(x, np.float64) @ np.asarray(w, np.float64)).astype(jnp.bfloat16).astype(np.float64)
    # Sums are f32's: a product may be rounded to the other neighbour, and no more.
    np.testing.assert_allclose(y, np.exp2(-np.abs(z)), rtol=2.0**-6)
    assert np.mean(y == np.exp2(-np.abs(z)).astype(jnp.bfloat16).astype(np.float64)) > 0.95


def test_the_emulator_compiles_nothing_unasked():
    """Each of a program's functions would take seconds."""
    x, w, b = jnp.ones((8, 16)), jnp.ones((16, 8)), jnp.ones(8)
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(softcapped))
        assert "own" not in re.findall(r'activation = "(\w+)"', optimized.lower(x, w, b).as_text())
        np.testing.assert_allclose(optimized(x, w, b), softcapped(x, w, b), rtol=1e-6)


def test_on_a_cpu_it_is_the_program_as_it_was():
    x, w, b = jnp.ones((8, 16)), jnp.ones((16, 8)), jnp.ones(8)
    optimized = jax_moye.optimize(softcapped)
    np.testing.assert_array_equal(jax.jit(optimized)(x, w, b), jax.jit(softcapped)(x, w, b))
    (equation,) = (one for one in jax.make_jaxpr(optimized)(x, w, b).eqns if one.primitive is rewritten_p)
    assert equation.params["epilogue"].own.__name__ == "div tanh mul"
    batched = jax.vmap(optimized, (0, None, None))(jnp.stack([x, -x]), w, b)
    np.testing.assert_allclose(batched[1], softcapped(-x, w, b), rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda y: jax.nn.relu(y + 1), "add relu"),  # calls, also of functions with derivatives of their own
        (lambda y: jnp.square(jax.nn.relu(y)), "relu square"),  # behind an activation of the table
        (jax.nn.mish, "mish"),
    ],
)
def test_its_name_says_which_functions_it_is_made_of(function, name):
    shapes = jax.ShapeDtypeStruct((16, 32), jnp.bfloat16), jax.ShapeDtypeStruct((32, 64), jnp.bfloat16)
    (gemm,) = jax_moye.explain(jax_moye.optimize(lambda x, w: function(x @ w)), *shapes, device="h200")
    assert gemm.epilogue == name
