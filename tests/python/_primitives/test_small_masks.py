"""Masks that a loop is given made: it is given what they are made of."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from python.attention_layers import B, D, T, all_of, as_usual, assert_right, attentions, block
from python.attentions import counts, use_fake_rows

import jax_moye
from jax_moye._primitives.small_masks import with_small_masks


@pytest.fixture(scope="module")
def usual():
    return as_usual(np.random.default_rng(0))


def layers(kept, around=lambda body: body):
    """Scans of a body whose mask is an argument of the program, (B,T,T), copied for all heads."""

    def fun(x, blocks):
        mask = kept(x)

        def attention(q, k, v):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * D**-0.5
            shares = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30)).astype(q.dtype)
            return jnp.einsum("bhqk,bkhd->bqhd", shares, v)

        each = around(lambda x, one: block(x, one, attention))
        return lax.scan(lambda x, one: (each(x, one), None), x, blocks)[0]

    return fun


def causal(x):
    """All of it traced: places are made of an argument, which is finite."""
    places = jnp.arange(T) + (x[:, :1, 0] > jnp.inf)
    return places[:, :, None] >= places[:, None]


@pytest.mark.parametrize("around", [lambda body: body, jax.checkpoint], ids=["plain", "checkpoint"])
def test_a_mask_of_the_batch(usual, monkeypatch, around):
    """The derivative's loops get it as small as it is, and compute what they did."""
    args, of_xla, expected = usual
    use_fake_rows(monkeypatch)
    fun = all_of(layers(causal, around))
    optimized = jax_moye.optimize(fun)
    assert counts(optimized, *args)[:2] == ((1, 1) if around is not jax.checkpoint else (2, 1))
    for one in attentions(jax.make_jaxpr(optimized)(*args).jaxpr):
        assert one.invars[3].aval.shape == (B, T, T)
    assert_right(jax.jit(optimized)(*args), of_xla, expected)


def product(x, m):
    return jnp.where(m, x @ x, 0)


def of_scan(body, given):
    """A loop of a body that is given an array, beside what it carries."""
    return lambda x, m: (lambda y: lax.scan(lambda c, _: (body(c, y), None), x, length=2)[0])(given(x, m))


OTHERS = {
    "floats": of_scan(lambda c, y: c @ c * y, lambda x, m: jnp.broadcast_to(x[:, :1] * 2, x.shape)),
    "not copied": of_scan(lambda c, y: product(c, y[:, :, None]), lambda x, m: m),
    "no product": of_scan(lambda c, y: jnp.where(y, c, 0), lambda x, m: jnp.broadcast_to(m[:, None], x.shape)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_as_it_is(rng, name):
    x, m = jnp.asarray(rng.normal(size=(2, 4, 4)), jnp.bfloat16), jnp.asarray(rng.random((2, 4)) < 0.5)
    jaxpr = jax.make_jaxpr(OTHERS[name])(x, m).jaxpr
    assert with_small_masks(jaxpr) is jaxpr


def added(x, blocks):
    """A bias of floats that is made once for all layers: causal, and of the sequences' lengths."""
    lengths = T + (x[:, :1, 0] > jnp.inf)
    padding = (jnp.arange(T) < lengths)[:, None, None]
    bias = jnp.where(jnp.tril(jnp.ones((T, T), bool)) & padding, 0.0, -1e10)

    def attention(q, k, v, bias):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * D**-0.5 + bias
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)

    each = jax.checkpoint(lambda x, one, bias: block(x, one, functools.partial(attention, bias=bias)))
    return lax.scan(lambda x, one: (each(x, one, bias), None), x, blocks)[0]


def test_a_bias_of_a_mask(usual, monkeypatch):
    """Made in the body it is a diagonal, and booleans of the sequences."""
    args, of_xla, expected = usual
    use_fake_rows(monkeypatch)
    optimized = jax_moye.optimize(all_of(added))
    assert counts(optimized, *args)[:2] == (2, 1)
    for one in attentions(jax.make_jaxpr(optimized)(*args).jaxpr):
        assert one.params["attention"].diagonal == 0
        assert one.invars[3].aval.shape == (B, T)
    assert_right(jax.jit(optimized)(*args), of_xla, expected)


def test_what_else_is_given_stays(rng):
    """Two masks, of which one is a copy, beside what is carried and stacked; the results are the same."""
    x, m = jnp.asarray(rng.normal(size=(2, 4, 4)), jnp.bfloat16), jnp.asarray(rng.random((2, 4)) < 0.5)

    def fun(x, m):
        copied, other = jnp.broadcast_to(m[:, None], x.shape), x > 0
        body = lambda c, y: (jnp.where(copied & other, c @ c, y), c)  # noqa: E731
        return lax.scan(jax.checkpoint(body), x, jnp.stack([x, 2 * x]))

    closed = jax.make_jaxpr(fun)(x, m)
    new = closed.replace(jaxpr=with_small_masks(closed.jaxpr))
    (scan,) = (one for one in new.jaxpr.eqns if one.primitive.name == "scan")
    assert sorted(x.aval.shape for x in scan.invars if x.aval.dtype == jnp.bool_) == [(2, 4), (2, 4, 4)]
    before, after = (jax.jit(jaxpr_as_fun(one))(x, m) for one in (closed, new))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def test_a_checkpoint_that_says_of_each_operand_whether_it_is_computed_twice(rng):
    """A mask of two that are smaller, between other operands: what is said of it is said of both."""
    x = jnp.asarray(rng.normal(size=(4, 4)), jnp.bfloat16)
    m, n = (jnp.asarray(rng.random(4) < 0.5) for _ in range(2))

    def fun(x, m, n):
        body = jax.checkpoint(lambda x, mask, y: jnp.where(mask, x @ y, 0), prevent_cse=(True, False, True))
        return body(x, m[:, None] & n, x + 1)

    closed = jax.make_jaxpr(fun)(x, m, n)
    new = closed.replace(jaxpr=with_small_masks(closed.jaxpr))
    (equation,) = (one for one in new.jaxpr.eqns if "prevent_cse" in one.params)
    shapes = [one.aval.shape for one in equation.invars]
    assert (sorted(shapes), shapes[0], shapes[-1]) == ([(4,), (4,), (4, 4), (4, 4)], (4, 4), (4, 4))
    assert equation.params["prevent_cse"] == (True, False, False, True)
    before, after = (jax.jit(jaxpr_as_fun(one))(x, m, n)[0] for one in (closed, new))
    np.testing.assert_array_equal(np.asarray(before, np.float32), np.asarray(after, np.float32))
