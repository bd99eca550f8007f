"""Attention whose values have a smaller head_dim than its keys: found, computed by a kernel of padded values."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python import float64
from python.attentions import assert_as_exact, counts, mask_of, needs_rows, use_fake_rows

import jax_moye
from jax_moye._primitives.attention import attention_p
from jax_moye._primitives.attention_lowering import contest
from jax_moye._primitives.attention_padded import of_padded, resized
from jax_moye._primitives.rewritten import Original
from jax_moye._selection.request import Operand

B, T, H, D, E = 2, 40, 2, 24, 16
SHAPES = (B, T, H, D), (B, T, H, D), (B, T, H, E), (B, T, H, E)


def _operands(rng, dtype=jnp.bfloat16, shapes=SHAPES):
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def _wide(q):
    return jnp.promote_types(q.dtype, jnp.float32)


def _latent(q, k, v):
    """DeepSeek's, as its training has it."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=_wide(q)) * D**-0.5
    shares = jax.nn.softmax(jnp.where(mask_of(q, k), scores, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)


def _heads_first(q, k, v):
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return (jax.nn.softmax((q @ k.swapaxes(2, 3)).astype(_wide(q)) * 0.25).astype(q.dtype) @ v).swapaxes(1, 2)


def _of_a_padded_batch(q, k, v):
    """Of the last sequence's queries but three nothing is left."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(_wide(q)) * D**-0.5
    keys = jnp.arange(T) < jnp.array([T, 3])[:, None]
    scores = jnp.where((keys[:, :, None] & keys[:, None])[:, None], scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def _with_a_bias(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(_wide(q)) * D**-0.5
    bias = jnp.asarray(np.linspace(-1, 1, T * T).reshape(T, T), _wide(q))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores + bias).astype(q.dtype), v)


FORMS = {
    "latent": _latent,
    "heads first": _heads_first,
    "a padded batch": _of_a_padded_batch,
    "a bias": _with_a_bias,
    "recomputed": jax.checkpoint(_latent),
}


def _gradients(form):
    def fun(q, k, v, d_o):
        out, pullback = jax.vjp(form, q, k, v)
        return (out, *pullback(d_o))

    return fun


def _exact(fun, args):
    return list(float64.exact(fun, args))


@needs_rows
@pytest.mark.parametrize("form", FORMS)
def test_in_the_emulator(rng, form):
    """A kernel's errors are at most the program's, or a few roundings; nothing else multiplies."""
    args, fun = _operands(rng), _gradients(FORMS[form])
    with jax_moye.options(interpret=True):
        assert counts(jax_moye.optimize(fun), *args)[1] == 1
        lowered = jax.jit(jax_moye.optimize(fun)).lower(*args)
        results = lowered.compile()(*args)
    assert len(re.findall(r"attention_grad_v1\(", lowered.as_text())) == 1
    assert "stablehlo.dot_general" not in lowered.as_text()
    for result, x in zip(results, (args[2], *args[:3]), strict=True):
        assert (result.dtype, result.shape) == (x.dtype, x.shape)
    assert_as_exact(results, jax.jit(fun)(*args), _exact(fun, args), jnp.bfloat16)


@needs_rows
def test_layers_in_a_scan(rng):
    """No scores are stacked."""
    x, weights = _operands(rng, shapes=((B, T, H * D), (3, H * D, 2 * H * D + H * E)))
    weights = weights / 8

    def loss(weights, x):
        def layer(x, w):
            parts = jnp.split(x @ w, [H * D, 2 * H * D], -1)
            q, k, v = (part.reshape(B, T, H, -1) for part in parts)
            return x + jnp.pad(_latent(q, k, v).reshape(B, T, -1), ((0, 0), (0, 0), (0, H * (D - E)))), None

        return (jax.lax.scan(layer, x, weights)[0].astype(_wide(x)) ** 2).mean()

    fun = lambda weights, x: (jax.grad(loss)(weights, x),)  # noqa: E731
    with jax_moye.options(interpret=True):
        jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(weights, x)
        assert counts(jax_moye.optimize(fun), weights, x)[:2] == (1, 1)
        found = jax.jit(jax_moye.optimize(fun))(weights, x)
    first = next(equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
    stacked = [x.aval.shape for x in first.outvars if x.aval.shape[:1] == (3,)]
    assert (3, B, T, H, E) in stacked
    assert not [shape for shape in stacked if shape.count(T) > 1]
    assert_as_exact(found, jax.jit(fun)(weights, x), _exact(fun, (weights, x)), jnp.bfloat16)


@pytest.mark.parametrize("form", ["latent", "heads first"])
def test_without_a_kernel_it_is_the_program(rng, monkeypatch, form):
    use_fake_rows(monkeypatch)
    args, fun = _operands(rng), _gradients(FORMS[form])
    optimized = jax_moye.optimize(fun)
    assert counts(optimized, *args)[:2] == (1, 1)
    for result, before in zip(jax.jit(optimized)(*args), jax.jit(fun)(*args), strict=True):
        np.testing.assert_array_equal(result, before)


def test_xla_undoes_it(rng):
    """Of equations as they were, between pads and slices, XLA leaves neither."""
    q, k, v, d_o = _operands(rng, jnp.float32)
    fun = _gradients(_latent)
    original = Original(jax.make_jaxpr(fun)(q, k, v, d_o))
    padded = of_padded(original, {2: 3, 3: 3}, {0: 3, 3: 3}, E, D)

    def around(q, k, v, d_o):
        o, dq, dk, dv = padded(q, k, resized(v, 3, D), resized(d_o, 3, D))
        return resized(o, 3, E), dq, dk, resized(dv, 3, E)

    lowered = jax.jit(around).lower(q, k, v, d_o)
    assert lowered.as_text().count("stablehlo.pad") == 4
    text = lowered.compile().as_text()
    assert not {" pad(", " slice("} & set(re.findall(r" \w+\(", text))
    for result, before in zip(around(q, k, v, d_o), fun(q, k, v, d_o), strict=True):
        np.testing.assert_array_equal(result, before)


@needs_rows
@pytest.mark.parametrize("form", ["latent", "a bias"])
def test_who_is_faster_is_measured_with_zeros(rng, form):
    """Of random arrays both have the same results; else no kernel would be chosen."""
    with jax_moye.options(interpret=True):
        jaxpr = jax.make_jaxpr(jax_moye.optimize(_gradients(FORMS[form])))(*_operands(rng)).jaxpr
        (equation,) = (one for one in jaxpr.eqns if one.primitive is attention_p)
        params, together = equation.params["attention"], equation.params["together"]
        given = [Operand(tuple(x.aval.shape), x.aval.dtype) for x in equation.invars[:3]]
        found = contest(params, given, None, together)
    assert found is not None
    values = [jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in found.types]
    values[0] *= found.factor
    ours = next(iter(found.ours.values()))
    for one, other in zip(ours(*values), found.xla(*values), strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert np.abs(one - other).max() <= 2.0**-6 * np.abs(other).max()


def test_larger_values_are_left(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    q, k, v, _ = _operands(rng, shapes=((B, T, H, E), (B, T, H, E), (B, T, H, D), (B, T, H, D)))
    assert counts(jax_moye.optimize(_latent), q, k, v)[0] == 0
