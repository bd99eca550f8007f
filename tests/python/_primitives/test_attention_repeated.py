"""Keys and values that a program repeats for the queries of a group: a kernel reads them in front of that."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attentions import assert_as_exact, needs_rows, use_fake_rows
from python.float64 import exact

import jax_moye

B, T, S, N, G, D = 2, 5, 40, 2, 3, 16
H = N * G


def _operands(rng, dtype=jnp.bfloat16):
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in ((B, T, H, D), (B, S, N, D), (B, S, N, D))]


def _repeat(x):
    return jnp.repeat(x, G, axis=2)


def _copied(x):
    """As Llama's own code has it."""
    return jnp.broadcast_to(x[:, :, :, None], (B, S, N, G, D)).reshape(B, S, H, D)


def _attention(q, k, v, mask=None):
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(wide) * 0.25
    scores = scores if mask is None else jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def _of_a_padded_batch(q, k, v):
    """The second sequence has no key at all."""
    keys = jnp.arange(S) < jnp.array([S - 3, 0])[:, None]
    return _attention(q, _repeat(k), _repeat(v), keys[:, None, None])


def _heads_first(q, k, v):
    q, k, v = (x.swapaxes(1, 2) for x in (q, _repeat(k), _copied(v)))
    shares = jax.nn.softmax((q @ k.swapaxes(2, 3)).astype(jnp.promote_types(q.dtype, jnp.float32)) * 0.25)
    return (shares.astype(q.dtype) @ v).swapaxes(1, 2)


def _at_a_place(q, k, v):
    """The mask of a cache, in which tokens have places."""
    places = jnp.arange(T) + 20
    return _attention(q, _copied(k), _copied(v), jnp.arange(S) <= places[:, None])


FORMS = {
    "repeated": lambda q, k, v: _attention(q, _repeat(k), _repeat(v)),
    "copied": lambda q, k, v: _attention(q, _copied(k), _copied(v)),
    "a padded batch": _of_a_padded_batch,
    "heads first": _heads_first,
    "at a place": _at_a_place,
}


def _keys_of(fun, *operands):
    """The shapes of the keys and values of a program's attentions."""
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr
    found = [equation for equation in jaxpr.eqns if equation.primitive.name == "jax_moye_attention"]
    return [sorted(x.aval.shape) for equation in found for x in equation.invars[1:3]]


@needs_rows
@pytest.mark.parametrize("form", FORMS)
def test_in_the_emulator(rng, form):
    operands, fun = _operands(rng), FORMS[form]
    with jax_moye.options(interpret=True):
        assert _keys_of(fun, *operands) == [sorted((B, S, N, D))] * 2
        lowered = jax.jit(jax_moye.optimize(fun)).lower(*operands)
        result = lowered.compile()(*operands)
    assert lowered.as_text().count("attention_v1(") == 1
    assert f"{B}x{S}x{H}x{D}x" not in lowered.as_text()
    assert (result.shape, result.dtype) == ((B, T, H, D), jnp.bfloat16)
    assert_as_exact([result], [jax.jit(fun)(*operands)], [exact(fun, operands)], jnp.bfloat16)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_kernel_it_is_the_program(rng, monkeypatch, form):
    use_fake_rows(monkeypatch)
    operands, fun = _operands(rng), FORMS[form]
    assert _keys_of(fun, *operands) == [sorted((B, S, N, D))] * 2
    np.testing.assert_array_equal(jax.jit(jax_moye.optimize(fun))(*operands), jax.jit(fun)(*operands))


def _of_each_head(q, k, v):
    mask = jnp.arange(S) <= jnp.arange(H)[:, None, None] + 8
    return _attention(q, _repeat(k), _repeat(v), mask)


def _in_turns(x):
    return jax.lax.reshape(jnp.broadcast_to(x[:, :, :, None], (B, S, N, N, D)), (B, S, N * N, D), (0, 1, 3, 2, 4))


# Those of repeated arrays are read as they are.
LEFT = {
    "a mask of each head": _of_each_head,
    "in turns": lambda q, k, v: _attention(q, jnp.tile(k, (1, 1, G, 1)), jnp.tile(v, (1, 1, G, 1))),
    "in another order": lambda q, k, v: _attention(q[:, :, : N * N], _in_turns(k), _in_turns(v)),
    "one of them": lambda q, k, v: _attention(q, _repeat(k), jnp.tile(v, (1, 1, G, 1))),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_read_as_it_is(rng, monkeypatch, name):
    use_fake_rows(monkeypatch)
    operands, fun = _operands(rng), LEFT[name]
    heads = N * N if name == "in another order" else H
    assert _keys_of(fun, *operands) == [sorted((B, S, heads, D))] * 2
    np.testing.assert_array_equal(jax.jit(jax_moye.optimize(fun))(*operands), jax.jit(fun)(*operands))


def test_gradients_are_of_repeated_keys(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    loss = lambda q, k, v: (FORMS["repeated"](q, k, v).astype(jnp.float32) ** 2).sum()  # noqa: E731
    assert _keys_of(jax.grad(loss, (0, 1, 2)), *_operands(rng)) == [sorted((B, S, H, D))] * 2
