"""Gradients of attention that are written as parts of one array."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var
from python.attentions import FORMS, arrays, assert_as_exact, exact, needs_rows
from python.viewed import movements

import jax_moye
from jax_moye._primitives import attention_joined, rewriting
from jax_moye._primitives.attention import attention_grad_p
from jax_moye._selection.view import View

B, T, H, N, D = 2, 24, 4, 2, 16  # batch, rows, heads of queries, of keys where they are in groups, head_dim
TARGET = "jax_moye_joined_attention_grad_v1"


def by_split(x):
    return [y.reshape(B, T, H, D) for y in jnp.split(x, 3, axis=-1)]


def by_unstack(x):
    return jnp.unstack(x.reshape(B, T, 3, H, D), axis=2)


def by_index(x):
    return [x.reshape(B, T, 3, H, D)[:, :, i] for i in range(3)]


def by_head(x):
    """Of each head q, k and v side by side, as GPT-NeoX has them."""
    return [x.reshape(B, T, H, 3, D)[..., i, :] for i in range(3)]


def heads_first(x):
    return [jnp.swapaxes(y, 1, 2) for y in jnp.moveaxis(x.reshape(B, T, 3, H, D), (2, 3), (0, 2))]


def in_groups(x):
    """More heads of queries than of keys."""
    parts = jnp.split(x[..., : (H + 2 * N) * D], [H * D, (H + N) * D], axis=-1)
    q, k, v = (y.reshape(B, T, -1, D) for y in parts)
    return q, *(jnp.repeat(y, H // N, axis=2) for y in (k, v))


def another_order(x):
    return (lambda v, q, k: (q, k, v))(*by_split(x))


WAYS = {x.__name__: x for x in (by_split, by_unstack, by_index, by_head, heads_first, another_order)}
SHAPES = (B, T, 3 * H * D), (B, T, H, D)


def gradient_of(way, form="plain", causal=True):
    """By the array that q, k and v are parts of."""

    def fun(x, d_o):
        out, pullback = jax.vjp(lambda x: FORMS[form](*way(x), causal), x)
        return out, pullback(d_o)[0]

    return fun


def lowered(fun, *args):
    with jax_moye.options(interpret=True):
        return jax.jit(jax_moye.optimize(fun)).lower(*args)


def joins(text):
    return [x for x in movements(text) if x in ("stablehlo.concatenate", "stablehlo.pad")]


@needs_rows
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_writes_the_parts(way, rng):
    fun, args = gradient_of(WAYS[way]), arrays(rng, *SHAPES)
    program = lowered(fun, *args)
    assert program.as_text().count(f"@{TARGET}(") == 1
    assert not joins(program.as_text())
    results = program.compile()(*args)
    *parts, d_o = (np.asarray(x, np.float64) for x in (*WAYS[way](args[0]), args[1]))
    o, *gradients = exact(*parts, d_o, True)
    back = jax.linear_transpose(lambda x: tuple(WAYS[way](x)), jax.ShapeDtypeStruct(SHAPES[0], jnp.float32))
    (wanted,) = back(tuple(jnp.asarray(x, jnp.float32) for x in gradients))
    assert_as_exact(results, jax.jit(fun)(*args), (o, np.asarray(wanted)), jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_as_side_by_side(way, rng, monkeypatch):
    fun, args = gradient_of(WAYS[way]), arrays(rng, *SHAPES)
    joined = lowered(fun, *args).compile()(*args)
    monkeypatch.setattr(rewriting, "with_joined_gradients", lambda jaxpr: jaxpr)
    program = lowered(fun, *args)
    assert f"@{TARGET}(" not in program.as_text()
    for one, other in zip(joined, program.compile()(*args), strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


@needs_rows
def test_keys_and_values_of_another_array_are_joined_alone(rng):
    """As in attention across, whose queries have a product of their own."""

    def fun(q, x, d_o):
        def of(q, x):
            k, v = (y.reshape(B, T, H, D) for y in jnp.split(x, 2, axis=-1))
            return FORMS["plain"](q, k, v, False)

        return jax.vjp(of, q, x)[1](d_o)

    args = arrays(rng, (B, T, H, D), (B, T, 2 * H * D), (B, T, H, D))
    program = lowered(fun, *args)
    assert program.as_text().count(f"@{TARGET}(") == 1
    assert not joins(program.as_text())
    q, x, d_o = (np.asarray(y, np.float64) for y in args)
    k, v = (y.reshape(B, T, H, D) for y in np.split(x, 2, axis=-1))
    _, dq, dk, dv = exact(q, k, v, d_o, False)
    wanted = dq, np.concatenate([y.reshape(B, T, -1) for y in (dk, dv)], axis=-1)
    assert_as_exact(program.compile()(*args), jax.jit(fun)(*args), wanted, jnp.bfloat16)


def read_twice(x, d_o):
    """Somebody reads the gradient of queries alone, too."""
    pullback = jax.vjp(lambda *parts: FORMS["plain"](*parts, True), *by_split(x))[1]
    dq, dk, dv = pullback(d_o)
    return jnp.concatenate([y.reshape(B, T, -1) for y in (dq, dk, dv)], axis=-1), dq


def in_float32(x, d_o):
    pullback = jax.vjp(lambda *parts: FORMS["plain"](*parts, True), *by_split(x))[1]
    return jnp.concatenate([y.reshape(B, T, -1).astype(jnp.float32) for y in pullback(d_o)], axis=-1)


def with_more(x, d_o):
    pullback = jax.vjp(lambda *parts: FORMS["plain"](*parts, True), *by_split(x))[1]
    return jnp.concatenate([*(y.reshape(B, T, -1) for y in pullback(d_o)), x], axis=-1)


def added_up(x, d_o):
    """Two of them are added to each other."""
    pullback = jax.vjp(lambda *parts: FORMS["plain"](*parts, True), *by_split(x))[1]
    dq, dk, dv = (y.reshape(B, T, -1) for y in pullback(d_o))
    return jnp.concatenate([dq + dk, dv], axis=-1)


def transposed(x, d_o):
    """Each of them is read in another order of its dimensions."""
    pullback = jax.vjp(lambda *parts: FORMS["plain"](*parts, True), *by_split(x))[1]
    return jnp.concatenate([jax.lax.reshape(y, (B, T, H * D), (0, 3, 2, 1)) for y in pullback(d_o)], axis=-1)


@needs_rows
@pytest.mark.parametrize("fun", [read_twice, in_float32, with_more, added_up, transposed, gradient_of(in_groups)])
def test_what_stays_a_concatenation(fun, rng):
    args = arrays(rng, *SHAPES)
    program = lowered(fun, *args)
    assert f"@{TARGET}(" not in program.as_text()
    pair = (jax.tree.leaves(run(*args)) for run in (program.compile(), jax.jit(fun)))
    for one, other in zip(*pair, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.1, atol=0.03)


def scored(scores_of):
    """Attention whose scores something else is done to; the derivative by the array of all three."""

    def fun(x, d_o):
        def of(x):
            q, k, v = by_split(x)
            scores = scores_of(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * 0.25, x)
            return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)

        return jax.vjp(of, x)[1](d_o)[0]

    return fun


def with_a_bias(scores, x):
    return scores + jax.lax.stop_gradient(x[:1, :1, :T].astype(jnp.float32))[:, None]


def with_a_cap(scores, x):
    return 5.0 * jnp.tanh(scores / 5.0)


def with_a_row_of_no_score(scores, x):
    """Behind a mask that is added: such a row's scores have gradients, too."""
    kept = (x[:, None, :, :1] < 9) & (jnp.arange(T) != 3)[:, None]
    return scores + jnp.where(kept, 0.0, -1e10)


@needs_rows
@pytest.mark.parametrize("scores_of", [with_a_bias, with_a_cap, with_a_row_of_no_score])
def test_what_xla_joins_behind_a_kernel(scores_of, rng):
    fun, args = scored(scores_of), arrays(rng, *SHAPES)
    program = lowered(fun, *args)
    text = program.as_text()
    assert "attention_grad_v1(" in text
    assert f"@{TARGET}(" not in text
    assert "stablehlo.concatenate" in joins(text)
    found, wanted = (np.asarray(run(*args), np.float32) for run in (program.compile(), jax.jit(fun)))
    np.testing.assert_allclose(found, wanted, rtol=0.1, atol=0.03)


@needs_rows
@pytest.mark.parametrize("bad", ["offset", "stride", "gap"])
def test_parts_that_no_kernel_stores_are_joined_behind_it(bad, rng, monkeypatch):
    """The equations of the program join what the kernel wrote."""
    real = attention_joined.Joined

    def changed(names, views, join):
        edit = {
            "offset": lambda view: dataclasses.replace(view, offset=view.offset + 4),
            "stride": lambda view: dataclasses.replace(view, strides=(*view.strides[:-1], 2)),
            "gap": lambda view: dataclasses.replace(view, source=(*view.source, 2)),
        }[bad]
        return real(names, {name: edit(view) for name, view in views.items()}, join)

    monkeypatch.setattr(attention_joined, "Joined", changed)
    fun, args = gradient_of(by_split), arrays(rng, *SHAPES)
    program = lowered(fun, *args)
    text = program.as_text()
    assert f"@{TARGET}(" not in text
    assert len(joins(text)) == 1
    monkeypatch.undo()
    for one, other in zip(program.compile()(*args), lowered(fun, *args).compile()(*args), strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


@needs_rows
def test_the_equations_of_the_program_make_the_array(rng):
    """Where no kernel computes the gradients, and for who differentiates them."""
    fun, args = gradient_of(by_split), arrays(rng, *SHAPES)
    with jax_moye.options(interpret=True):
        closed = jax.make_jaxpr(jax_moye.optimize(fun))(*args)
    (equation,) = (one for one in closed.eqns if one.primitive is attention_grad_p)
    assert [x.aval.shape for x in equation.outvars] == [SHAPES[0]]
    values = closed.jaxpr.constvars, [*map(jnp.asarray, closed.consts)]
    known = dict(zip((*closed.jaxpr.invars, *values[0]), (*args, *values[1]), strict=True))
    for one in closed.eqns:  # by what they stand for
        given = [known[x] if isinstance(x, Var) else x.val for x in one.invars]
        original = one.params.get("original")
        made = one.primitive.bind(*given, **one.params) if original is None else original(*given)
        known |= zip(one.outvars, made if isinstance(made, (list, tuple)) else [made], strict=True)
    found = [known[x] for x in closed.jaxpr.outvars]
    for one, other in zip(found, jax.jit(fun)(*args), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.1, atol=0.03)


def test_what_a_kernel_can_store():
    from jax_moye._primitives.attention_call import can_be_joined

    whole = View.whole((B, T, 3, H, D))
    parts = {
        name: whole.sliced((0, 0, i, 0, 0), (B, T, i + 1, H, D), (1,) * 5).reshaped((B, T, H, D))
        for i, name in enumerate(("dq", "dk", "dv"))
    }
    dims = dict.fromkeys(parts, "bqhd") | dict.fromkeys(("dk", "dv"), "bkhd")
    assert can_be_joined(parts, dims, jnp.bfloat16)
    assert not can_be_joined({name: parts[name] for name in ("dq", "dk")}, dims, jnp.bfloat16)
    shifted = parts | {"dk": dataclasses.replace(parts["dk"], offset=4)}
    assert not can_be_joined(shifted, dims, jnp.bfloat16)
    assert can_be_joined(shifted, dims, jnp.float32)  # by 16 bytes
    assert not can_be_joined(parts | {"dk": dataclasses.replace(parts["dk"], strides=(1, 2, 3, 4))}, dims, jnp.bfloat16)
