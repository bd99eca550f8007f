"""Attention of which calls of jit hold a part each: found, and the same values; what calls are without it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attentions import FORMS, assert_as_exact, counts, exact, gradients, operands, use_fake_rows

import jax_moye
from jax_moye._primitives.calls import with_products_opened


@pytest.fixture(autouse=True)
def fake_rows(monkeypatch):
    use_fake_rows(monkeypatch)


def calls(jaxpr):
    return [one.params["name"] for one in jaxpr.eqns if one.primitive.name in ("jit", "pjit")]


def assert_unchanged(fun, *args):
    """On a CPU the equations as they were run, but for products that both halves have now."""
    before, after = (jax.tree.leaves(jax.jit(f)(*args)) for f in (fun, jax_moye.optimize(fun)))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2e-2, atol=2e-2)
        assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_derivative_of_a_jitted_function(rng, form, causal):
    """Two calls, of which the first hands the second the weights of all pairs."""
    args = operands(rng)
    jitted = jax.jit(functools.partial(FORMS[form], causal=causal))
    fun = gradients(lambda q, k, v, causal: jitted(q, k, v), causal)
    assert counts(jax_moye.optimize(fun), *args) == (1, 1, 0)
    assert_as_exact(jax.jit(jax_moye.optimize(fun))(*args), jax.jit(fun)(*args), exact(*args, causal), jnp.bfloat16)


def layers(attention, count=2):
    def model(q, k, v):
        for _ in range(count):
            q = q + attention(q, k, v)
        return q

    return model


def test_calls_in_calls(rng):
    q, k, v, d_o = operands(rng)
    model = jax.jit(layers(jax.jit(functools.partial(FORMS["plain"], causal=True))))
    of_sum = lambda q, k, v: jnp.sum(model(q, k, v).astype(jnp.float32) * d_o)  # noqa: E731
    fun = jax.value_and_grad(of_sum, argnums=(0, 1, 2))
    assert counts(jax_moye.optimize(fun), q, k, v) == (2, 2, 0)
    assert_unchanged(fun, q, k, v)


def test_a_call_behind_which_its_result_is_added(rng):
    """It becomes its equations for the sum, and is attention nevertheless."""
    q, k, v, _ = operands(rng)
    model = layers(jax.jit(functools.partial(FORMS["plain"], causal=True)))
    assert counts(jax_moye.optimize(model), q, k, v) == (2, 0, 0)
    assert_unchanged(model, q, k, v)


def test_a_call_that_has_all_of_it_stays(rng):
    q, k, v, _ = operands(rng)
    fun = jax.jit(functools.partial(FORMS["plain"], causal=True))
    twice = lambda q, k, v: (fun(q, k, v), fun(k, q, v))  # noqa: E731
    assert counts(jax_moye.optimize(twice), q, k, v) == (2, 0, 0)
    found = jax.make_jaxpr(jax_moye.optimize(twice))(q, k, v)
    assert len(calls(found.jaxpr)) == 2


def test_what_stays_a_call(rng):
    """Without a product, and with arrays that are given away."""
    q, k, v, _ = operands(rng)
    jitted = jax.jit(lambda q: jnp.sin(q) * 2)
    plain = jax.make_jaxpr(lambda q, k, v: FORMS["plain"](jitted(q), k, v, True))(q, k, v).jaxpr
    assert with_products_opened(plain) is plain
    donating = jax.jit(functools.partial(FORMS["plain"], causal=True), donate_argnums=0)
    given = jax.make_jaxpr(lambda q, k, v: donating(q + 1, k, v))(q, k, v).jaxpr
    assert with_products_opened(given) is given
