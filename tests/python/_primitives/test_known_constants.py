"""Masks that are made outside of a body: attention's search sees how."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun
from python.attention_layers import D, T, all_of, as_usual, assert_right, attentions, block, scanned
from python.attentions import counts, use_fake_rows

import jax_moye
from jax_moye import _compat
from jax_moye._primitives import known_constants
from jax_moye._primitives.known_constants import Constants, of_arrays, with_known
from jax_moye._primitives.patterns import Program


@pytest.fixture(scope="module")
def usual():
    return as_usual(np.random.default_rng(0))


def _masked(around, is_known=True):
    """Scans of a body that is given a mask."""

    def fun(x, blocks):
        mask = jnp.tril(jnp.ones((T, T), bool))
        mask = mask if is_known else mask & (x[:, :1, :1, None] < 1e9)

        def attention(q, k, v, mask):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * D**-0.5
            shares = jax.nn.softmax(jnp.where(mask, scores, -1e30)).astype(q.dtype)
            return jnp.einsum("bhqk,bkhd->bqhd", shares, v)

        each = around(lambda x, one, mask: block(x, one, functools.partial(attention, mask=mask)))
        return lax.scan(lambda x, one: (each(x, one, mask), None), x, blocks)[0]

    return fun


MASKED = {
    "a scan": (_masked(lambda body: body), (1, 0), (1, 1)),
    "a call": (_masked(jax.jit), (1, 0), (1, 1)),
    "a checkpoint": (_masked(jax.checkpoint), (1, 0), (2, 1)),
    "what is left out of a mask that is not": (_masked(jax.checkpoint, is_known=False), (1, 0), (2, 1)),
    # JAX takes the mask out of the first loop.
    "a checkpoint, the mask inside": (scanned(around=jax.checkpoint), (1, 0), (2, 1)),
    "a branch": (  # whose derivative is two of them
        _masked(lambda body: lambda x, one, mask: lax.cond(x[0, 0, 0] < 99, body, lambda x, *_: x, x, one, mask)),
        (1, 0),
        (0, 0),
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks_from_outside(usual, monkeypatch, name):
    use_fake_rows(monkeypatch)
    args, of_xla, expected = usual
    layers, of_forward, of_all = MASKED[name]
    assert counts(jax_moye.optimize(layers), args[0], args[2])[:2] == of_forward
    (search,) = attentions(jax.make_jaxpr(jax_moye.optimize(layers))(args[0], args[2]).jaxpr)
    assert search.params["attention"].diagonal == 0
    assert search.params["attention"].has_mask == ("not" in name)  # what is known of it stands in the body, too
    fun = jax_moye.optimize(all_of(layers))
    assert counts(fun, *args)[:2] == of_all
    assert_right(jax.jit(fun)(*args), of_xla, expected)


def _body(mask_of):
    """A program, its call of a body that is given a mask, and the equations that make the mask."""
    body = jax.jit(lambda x, mask: jnp.where(mask, x, 0.0))
    jaxpr = jax.make_jaxpr(lambda x, n: body(x, mask_of(n)))(jnp.ones((T, T)), 3).jaxpr
    inside = jaxpr.eqns[-1].params["jaxpr"].jaxpr
    return jaxpr.eqns[-1], inside, Constants(Program(jaxpr.eqns, jaxpr.outvars)).of_body(jaxpr.eqns[-1], inside)


def test_equations_of_a_mask():
    equation, inside, made = _body(lambda _: jnp.tril(jnp.ones((T, T), bool)))
    assert made[-1].outvars == [inside.invars[1]]
    names = {x for one in made for x in one.outvars}
    assert {x for one in made for x in one.invars if isinstance(x, Var)} < names
    assert not names & {*equation.invars}
    assert _body(lambda n: jnp.arange(T) < n)[2] == []  # which is an argument's


def test_a_number_that_a_call_returns_is_made_by_no_equation():
    """JAX's sparse_plus has such calls, of jnp.where."""
    assert _body(lambda _: jax.jit(lambda: jnp.bool_(True))())[2] == []


def test_what_needs_the_equations_is_rewritten_without_them():
    _, inside, made = _body(lambda _: jnp.tril(jnp.ones((T, T), bool)))
    seen = []

    def of_intermediate(jaxpr):
        """Reads what the mask is made of."""
        seen.append(jaxpr)
        first = jaxpr.eqns[0]
        return jaxpr.replace(outvars=[*jaxpr.outvars, first.outvars[0]])

    new = with_known(inside, made, of_intermediate)
    assert [len(x.invars) for x in seen] == [1, 2]
    assert new.invars == inside.invars
    assert new.eqns == inside.eqns
    assert with_known(inside, made, lambda jaxpr: jaxpr) is inside
    again = with_known(inside, made, lambda jaxpr: jaxpr.replace(outvars=[jaxpr.outvars[0]] * 2))
    assert (again.invars, again.eqns, len(again.outvars)) == (inside.invars, inside.eqns, 2)


ROW, KEY = np.arange(6)[:, None], np.arange(9)
READY_MADE = {
    "a diagonal": ROW >= KEY,
    "below it": np.tril(np.ones((6, 9), np.float32), -3),
    "above it": np.triu(np.full((6, 6), -np.inf, np.float32), 1),
    "a band": jnp.asarray((ROW - KEY < 2) & (KEY - ROW < 3), jnp.bfloat16),
    "other dimensions": np.tril(np.ones((1, 1, 6, 9), np.int32), 2),
    "one number": np.full((6, 9), -1e9, np.float32),
}
OTHERS = {
    "a hole": np.where((ROW == 4) & (KEY == 1), 0, np.tril(np.ones((6, 9), np.float32))),
    "three numbers": np.tril(np.ones((6, 9))).astype(np.int32) * ROW.astype(np.int32),
    "nothing that is equal to itself": np.full((6, 9), np.nan, np.float32),
    "several": np.tril(np.ones((2, 6, 9), np.float32)),
    "a row": np.ones(9, np.float32),
    "too many elements": np.tril(np.ones((6, 90), np.float32)),
}


@pytest.mark.parametrize("name", READY_MADE)
def test_an_array_that_is_a_band(name):
    array = READY_MADE[name]
    closed = jax.make_jaxpr(lambda x: x + array)(jnp.zeros(array.shape, array.dtype))
    equations = of_arrays(closed)
    whole = Jaxpr([], [], closed.jaxpr.constvars, equations, debug_info=_compat.UNNAMED)
    (made,) = jaxpr_as_fun(ClosedJaxpr(whole, []))()
    assert (made.dtype, made.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(np.asarray(made, np.float32), np.asarray(array, np.float32))


@pytest.mark.parametrize("name", OTHERS)
def test_an_array_that_is_none(monkeypatch, name):
    monkeypatch.setattr(known_constants, "_MOST_ELEMENTS", 6 * 36)
    array = OTHERS[name]
    assert of_arrays(jax.make_jaxpr(lambda x: x + array)(jnp.zeros(array.shape, array.dtype))) == []


def test_weights_on_a_device_are_looked_at_where_they_are_few(monkeypatch):
    """Booleans, and what the host has, beyond that."""
    monkeypatch.setattr(known_constants, "_MOST_OF_DEVICE", 8)
    for array in (np.tril(np.ones((3, 3), np.float32)), jnp.tril(jnp.ones((3, 3), bool))):
        assert of_arrays(jax.make_jaxpr(lambda x, array=array: x * array)(1.0))
    on_device = jnp.tril(jnp.ones((3, 3)))
    assert of_arrays(jax.make_jaxpr(lambda x: x * on_device)(1.0)) == []


def test_a_reference_is_no_array():
    """What is in it when a program is traced may be something else when that runs."""
    reference = jax.new_ref(jnp.tril(jnp.ones((T, T))))

    def fun(x):
        reference[...] = x @ reference[...]
        return x + reference[...]

    assert of_arrays(jax.make_jaxpr(fun)(jnp.ones((T, T)))) == []
    np.testing.assert_array_equal(jax_moye.optimize(fun)(jnp.eye(T)), jnp.eye(T) + jnp.tril(jnp.ones((T, T))))
