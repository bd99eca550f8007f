"""Attention whose weights have dropout: found as programs write it, computed by a kernel, and its gradients."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.attentions import B, H, T, assert_as_exact, exact_behind, mask_of, needs_rows, operands, use_fake_rows

import jax_moye
from jax_moye._inspect.products import attentions_of
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives import attention_lowering

KEEP = 0.7
ALL, SHARED = (B, H, T, T), (1, 1, T, T)  # of which weights are kept


def _kept(key, shape=ALL):
    return jax.random.bernoulli(key, KEEP, shape)


def _scores(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5


def _weighted(weights, v):
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)


def _selected(q, k, v, key):
    """Equinox's, and that of Flax's module."""
    weights = jax.nn.softmax(_scores(q, k)).astype(v.dtype)
    return _weighted(jnp.where(_kept(key), weights / KEEP, 0), v)


def _of_lax(q, k, v, key):
    weights = jax.nn.softmax(_scores(q, k)).astype(v.dtype)
    kept = jnp.broadcast_to(_kept(key, SHARED), ALL)
    return _weighted(lax.select(kept, weights / KEEP, jnp.zeros_like(weights)), v)


def _multiplied(q, k, v, key):
    """That of Flax's attention."""
    weights = jax.nn.softmax(_scores(q, k)).astype(v.dtype)
    return _weighted(weights * (_kept(key, SHARED).astype(v.dtype) / jnp.asarray(KEEP, v.dtype)), v)


def _haiku(q, k, v, key):
    weights = jax.nn.softmax(_scores(q, k))
    return _weighted(_kept(key) * weights / jnp.asarray(KEEP, weights.dtype), v)


def _in_float32(q, k, v, key):
    """The conversion is behind dropout, as where the softmax is of float32."""
    return _weighted(jnp.where(_kept(key), jax.nn.softmax(_scores(q, k)) / KEEP, 0), v)


def _reverse(q, k, v, key):
    """Which are dropped, and a product in front of it."""
    weights = jax.nn.softmax(_scores(q, k)) * (1 / KEEP)
    return _weighted(jnp.where(jnp.logical_not(_kept(key)), 0.0, weights), v)


def _causal(q, k, v, key):
    weights = jax.nn.softmax(jnp.where(mask_of(q, k), _scores(q, k), -jnp.inf))
    return _weighted(jnp.where(_kept(key), weights / KEEP, 0), v)


def _padded(q, k, v, key):
    """BERT's: a mask is added, and of the second sequence no key is left."""
    scores = _scores(q, k) + jnp.where(_padding(), 0.0, jnp.finfo(jnp.float32).min)
    return _weighted(jnp.where(_kept(key), jax.nn.softmax(scores) / KEEP, 0), v)


def _padded_and_causal(q, k, v, key):
    """GPT-2's."""
    scores = _scores(q, k) + jnp.where(_padding() & mask_of(q, k), 0.0, jnp.finfo(jnp.float32).min)
    return _weighted(jax.nn.softmax(scores) * (_kept(key, SHARED) / KEEP), v)


def _in_a_call(q, k, v, key):
    """Random bits are made, and weights dropped, in one call."""

    @jax.jit
    def dropped(weights, key):
        return jnp.where(_kept(key), weights / KEEP, 0)

    return _weighted(dropped(jax.nn.softmax(_scores(q, k)), key), v)


def _keys_first(q, k, v, key):
    scores = jnp.einsum("bkhd,bqhd->bhkq", k, q, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    kept = jnp.swapaxes(_kept(key), 2, 3)
    weights = jnp.where(kept, jax.nn.softmax(scores, axis=2) / KEEP, 0).astype(v.dtype)
    return jnp.einsum("bhkq,bkhd->bqhd", weights, v)


def _checkpointed(q, k, v, key):
    return jax.checkpoint(_multiplied)(q, k, v, key)


def _of_rows(q, k, v, key):
    """A mask of rows behind the softmax: a factor of 1, and as small as it is."""
    return _weighted(jax.nn.softmax(_scores(q, k)) * _kept(key, (B, 1, T, 1)), v)


def _padding():
    return jnp.arange(T) < jnp.array([15, 0])[:, None, None, None]


class Form(NamedTuple):
    fun: Callable[..., Any]
    shape: tuple[int, ...] = ALL
    mask: Any = True
    is_added: bool = False
    factor: float = 1 / KEEP


def _linen(q, k, v, key):
    from flax import linen

    return linen.dot_product_attention(
        q, k, v, dropout_rng=key, dropout_rate=1 - KEEP, deterministic=False, dtype=q.dtype
    )


def _nnx(q, k, v, key):
    from flax import nnx

    given = {"dropout_rng": key, "dropout_rate": 1 - KEEP, "broadcast_dropout": False, "deterministic": False}
    return nnx.dot_product_attention(q, k, v, dtype=q.dtype, **given)


# What 16 bits have of the quotient of 1 and KEEP, and of KEEP.
MULTIPLIER, QUOTIENT = float(jnp.bfloat16(1) / jnp.bfloat16(KEEP)), 1 / float(jnp.bfloat16(KEEP))
TRIANGLE = np.tril(np.ones((T, T), bool))
FORMS = {
    "selected": Form(_selected, factor=QUOTIENT),
    "of lax": Form(_of_lax, SHARED, factor=QUOTIENT),
    "multiplied": Form(_multiplied, SHARED, factor=MULTIPLIER),
    "Haiku's": Form(_haiku),
    "in float32": Form(_in_float32),
    "reverse": Form(_reverse),
    "causal": Form(_causal, mask=TRIANGLE),
    "padded": Form(_padded, mask=np.asarray(_padding()), is_added=True),
    "padded and causal": Form(_padded_and_causal, SHARED, mask=np.asarray(_padding()) & TRIANGLE, is_added=True),
    "in a call": Form(_in_a_call),
    "keys first": Form(_keys_first),
    "in a checkpoint": Form(_checkpointed, SHARED, factor=MULTIPLIER),
    "of rows": Form(_of_rows, (B, 1, T, 1), factor=1.0),
}
if importlib.util.find_spec("flax") is not None:
    FORMS["of linen"] = Form(_linen, SHARED, factor=MULTIPLIER)
    FORMS["of nnx"] = Form(_nnx, factor=MULTIPLIER)
KEY = jax.random.key(7)


def program(name, rng):
    """A function and its gradients in one program, and the arrays."""
    fun = FORMS[name].fun

    def both(q, k, v, d_o, key):
        out, pullback = jax.vjp(lambda *x: fun(*x, key), q, k, v)
        return (out, *pullback(d_o))

    return both, (*operands(rng), KEY)


def exact(name, q, k, v, d_o, key):
    """The same in float64, with the bits of the program."""
    _, shape, mask, is_added, factor = FORMS[name]
    of_weights = factor * np.asarray(_kept(key, shape))
    return exact_behind(q, k, v, d_o, np.broadcast_to(mask, ALL), is_added=is_added, of_weights=of_weights)


@needs_rows
@pytest.mark.parametrize("name", FORMS)
def test_in_the_emulator(rng, name):
    """Results and gradients are as precise as the program's, also of rows all of whose scores are masked."""
    both, given = program(name, rng)
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(both)).lower(*given)
        text = lowered.as_text()
        counts = [text.count(f"dropped_attention{of}_v1(") for of in ("", "_grad")]
        assert counts == [1 + (name == "in a checkpoint"), 1]
        results = lowered.compile()(*given)
    assert_as_exact(results, jax.jit(both)(*given), exact(name, *given), jnp.bfloat16)


@needs_rows
def test_another_mask_behind_the_softmax_in_the_emulator(rng):
    """It is dropout with a factor of 1, also where it leaves nothing of a row."""
    q, k, v, d_o = operands(rng)

    def both(q, k, v, d_o):
        out, pullback = jax.vjp(lambda *x: _masked_again(*x, KEY), q, k, v)
        return (out, *pullback(d_o))

    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(both)).lower(q, k, v, d_o)
        assert [lowered.as_text().count(f"dropped_attention{of}_v1(") for of in ("", "_grad")] == [1, 1]
        results = lowered.compile()(q, k, v, d_o)
    mask = np.broadcast_to(np.asarray(_padding()), ALL)
    wanted = exact_behind(q, k, v, d_o, mask, of_weights=mask.astype(np.float64))
    assert_as_exact(results, jax.jit(both)(q, k, v, d_o), wanted, jnp.bfloat16)


@needs_rows
def test_with_a_bias(rng):
    """T5's, whose gradient is asked for: float32 in front of a broadcast."""
    q, k, v, d_o = operands(rng)
    bias = jnp.asarray(rng.normal(size=(1, H, T, T)), jnp.float32)

    def both(q, k, v, bias, d_o, key):
        def fun(q, k, v, bias):
            weights = jax.nn.softmax(_scores(q, k) + bias)
            return _weighted(jnp.where(_kept(key, SHARED), weights / KEEP, 0), v)

        out, pullback = jax.vjp(fun, q, k, v, bias)
        return (out, *pullback(d_o))

    given = q, k, v, bias, d_o, KEY
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(both)).lower(*given)
        assert [lowered.as_text().count(f"dropped_attention{of}_v1(") for of in ("", "_grad")] == [1, 1]
        results = lowered.compile()(*given)
    q, k, v, bias, d_o = (np.asarray(x, np.float64) for x in given[:5])
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / 4 + bias
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    of_weights = np.asarray(_kept(KEY, SHARED)) / KEEP
    dp = of_weights * np.einsum("bqhd,bkhd->bhqk", d_o, v)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
    wanted = [
        np.einsum("bhqk,bkhd->bqhd", of_weights * p, v),
        np.einsum("bhqk,bkhd->bqhd", ds, k) / 4,
        np.einsum("bhqk,bqhd->bkhd", ds, q) / 4,
        np.einsum("bhqk,bqhd->bkhd", of_weights * p, d_o),
        ds.sum(axis=0, keepdims=True),
    ]
    assert_as_exact(results, jax.jit(both)(*given), wanted, jnp.bfloat16)


@needs_rows
def test_contenders_compute_one_thing(rng):
    """What is timed: our kernels and XLA, of booleans that are given."""
    _, (*given, _) = program("selected", rng)

    def of_booleans(q, k, v, d_o, kept):
        fun = lambda *x: _weighted(jnp.where(kept, jax.nn.softmax(_scores(*x[:2])) / KEEP, 0), x[2])  # noqa: E731
        out, pullback = jax.vjp(fun, q, k, v)
        return (out, *pullback(d_o))

    args = (*given, _kept(KEY))
    with jax_moye.options(implementation="moye"):
        one = next(attentions_of(jax.make_jaxpr(jax_moye.optimize(of_booleans))(*args).jaxpr))[0]
    contest = attention_lowering.contest(one.interpreted(InterpretParams()), one.operands, None, one.together)
    for by in (next(iter(contest.ours.values())), contest.xla):
        for result, wanted in zip(jax.jit(by)(*args), exact("selected", *given, KEY), strict=True):
            assert np.abs(np.asarray(result, np.float64) - wanted).max() <= 0.03 * np.abs(wanted).max()


def found(fun, *given):
    """The attention and its gradients, as far as they are in a program."""
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*given)
    return [
        (equation.params["attention"], equation.params["results"], equation.invars)
        for equation in jaxpr.eqns
        if equation.primitive.name.startswith("jax_moye_attention")
    ]


@pytest.mark.parametrize("name", [name for name in FORMS if name != "in a checkpoint"])
def test_is_found(rng, monkeypatch, name):
    """With the program's factor; the booleans are read in front of broadcasts."""
    use_fake_rows(monkeypatch)
    both, given = program(name, rng)
    (forward, _, operands_of), (params, gradients, _) = found(both, *given)
    np.testing.assert_allclose([forward.dropout, params.dropout], FORMS[name].factor, rtol=1e-6)
    assert gradients == ("dq", "dk", "dv")
    shapes = {x.aval.shape for x in operands_of if x.aval.dtype == np.bool_}
    assert any(np.prod(shape) == np.prod(FORMS[name].shape) for shape in shapes), shapes


def test_a_mean_of_all_values_has_no_diagonal(rng, monkeypatch):
    """Of a row of which no score counts: all keys are read, the diagonal among the booleans of the mask."""
    use_fake_rows(monkeypatch)
    both, given = program("padded and causal", rng)
    (forward, _, _), (params, _, _) = found(both, *given)
    assert forward.diagonal is params.diagonal is None
    assert params.scores_have_gradients
    assert not params.means_of_all


def _capped(q, k, v, key):
    return _weighted(jnp.where(_kept(key), jax.nn.softmax(2 * jnp.tanh(_scores(q, k) / 2)) / KEEP, 0), v)


def _padded_by_infinity(q, k, v, key):
    weights = jax.nn.softmax(jnp.where(_padding(), _scores(q, k), -jnp.inf))
    return _weighted(jnp.where(_kept(key), weights / KEEP, 0), v)


def _twice(q, k, v, key):
    """Two masks, which are not one boolean."""
    weights = jnp.where(_kept(key), jax.nn.softmax(_scores(q, k)), 0)
    return _weighted(jnp.where(_kept(jax.random.fold_in(key, 1)), weights, 0), v)


def _of_weights(q, k, v, key):
    """What is dropped is made of the weights."""
    weights = jax.nn.softmax(_scores(q, k))
    return _weighted(jnp.where(weights > 0.05, weights, 0), v)


def _of_values(q, k, v, key):
    """Booleans that are made of the values: a kernel reads both."""
    return _weighted(jnp.where((v[:, :, :, 0] > 0).swapaxes(1, 2)[:, :, None], jax.nn.softmax(_scores(q, k)), 0), v)


def _masked_again(q, k, v, key):
    """By booleans of which nobody knows that they are those of the scores: of a row of which none counts it is 0."""
    padding = [jnp.isfinite(k[:, :, 0, 0] * x)[:, None, None] & _padding() for x in (1, 2)]
    weights = jax.nn.softmax(jnp.where(padding[0], _scores(q, k), -1e30))
    return _weighted(jnp.where(padding[1], weights, 0), v)


def _read(q, k, v, key):
    weights = jnp.where(_kept(key), jax.nn.softmax(_scores(q, k)) / KEEP, 0)
    return _weighted(weights, v), weights


LEFT = {
    "behind a soft cap": _capped,
    "rows that may be no number": _padded_by_infinity,
    "two masks": _twice,
    "made of the weights": _of_weights,
    "weights that are read": _read,
    "less than nothing": lambda q, k, v, key: _weighted(jax.nn.softmax(_scores(q, k)) * (_kept(key) * -1.0), v),
    "no 0": lambda q, k, v, key: _weighted(jnp.where(_kept(key), jax.nn.softmax(_scores(q, k)), 0.1), v),
    "a factor that is not known": lambda q, k, v, key: _weighted(
        jnp.where(_kept(key), jax.nn.softmax(_scores(q, k)) * v[0, 0, 0, 0].astype(jnp.float32), 0), v
    ),
    "in front of a second sum": lambda q, k, v, key: _weighted(
        (w := jnp.where(_kept(key), jax.nn.softmax(_scores(q, k)), 0)) / jnp.sum(w, axis=-1, keepdims=True), v
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_it_is(rng, monkeypatch, name):
    use_fake_rows(monkeypatch)
    q, k, v, _ = operands(rng)
    assert not found(LEFT[name], q, k, v, KEY)


def test_booleans_of_the_values_are_found(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    q, k, v, _ = operands(rng)
    ((params, _, _),) = found(_of_values, q, k, v, KEY)
    assert params.dropout == 1


# What a program may say that the derivative of dropout is, and whether it is.
RULES = {
    "right": (lambda kept, g: jnp.where(kept, g / KEEP, 0), True),
    "of all": (lambda kept, g: g / KEEP, False),
    "another factor": (lambda kept, g: jnp.where(kept, g, 0), False),
    "of the others": (lambda kept, g: jnp.where(kept, 0, g / KEEP), False),
}


@pytest.mark.parametrize("name", RULES)
def test_another_derivative_is_left(rng, monkeypatch, name):
    use_fake_rows(monkeypatch)
    rule, is_right = RULES[name]
    drop = jax.custom_vjp(lambda weights, kept: jnp.where(kept, weights / KEEP, 0))
    drop.defvjp(lambda weights, kept: (jnp.where(kept, weights / KEEP, 0), kept), lambda kept, g: (rule(kept, g), None))
    q, k, v, d_o = operands(rng)

    def both(q, k, v, d_o, key):
        fun = lambda *x: _weighted(drop(jax.nn.softmax(_scores(*x[:2])), _kept(key)), x[2])  # noqa: E731
        out, pullback = jax.vjp(fun, q, k, v)
        return (out, *pullback(d_o))

    assert len(found(both, q, k, v, d_o, KEY)) == 2 * is_right


def test_says_that_there_is_dropout(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    both, given = program("selected", rng)
    text = str(jax_moye.explain(jax.jit(jax_moye.optimize(both)), *given))
    assert re.search(r"attention.* with dropout", text), text
