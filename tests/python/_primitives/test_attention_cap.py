"""Attention whose scores have a soft cap, as Gemma 2's: found, computed by a kernel, and its gradients."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python import float64
from python.attentions import B, H, T, assert_as_exact, mask_of, needs_rows, operands, use_fake_rows

import jax_moye
from jax_moye._inspect.products import attentions_of
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives import attention_lowering

CAP = 2.0  # most scores feel it
LOW = -2.3819763e38  # Gemma's


def _scores(q, k, scale=0.5):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.promote_types(q.dtype, jnp.float32)) * scale


def _weighted(scores, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def _gemma(q, k, v, keys=None):
    """Gemma 2's, of a local layer, with its padding: groups, a division, a product, a mask of a sliding window."""
    b, t, h, d = q.shape
    n, s = k.shape[2], k.shape[1]
    logits = jnp.einsum("btngd,bsnd->btngs", (q * 0.5).reshape(b, t, n, h // n, d), k).reshape(b, t, h, s)
    logits = jnp.tanh(logits / CAP)
    logits = logits * CAP
    i, j = jnp.arange(t)[:, None], jnp.arange(s)
    mask = ((j <= i) & (j > i - 9))[None] if keys is None else ((j <= i) & (j > i - 9))[None] & keys[:, None]
    shares = jax.nn.softmax(jnp.where(mask[:, :, None], logits, LOW), axis=-1).astype(k.dtype)
    return jnp.einsum("btngs,bsnd->btngd", shares.reshape(b, t, n, h // n, s), v).reshape(q.shape)


def _padded(q, k, v):
    """Of the last sequence's last rows nothing is left."""
    return _gemma(q, k, v, jnp.arange(T) < jnp.array([T, 3])[:, None])


def _causal(q, k, v):
    """maxtext's: tanh of a quotient, times the cap, in float32; the mask is added."""
    scores = jnp.tanh(_scores(q, k) / CAP) * CAP
    return _weighted(scores + jnp.where(mask_of(q, k), 0.0, -1e30), v)


def _of_16_bits(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * jnp.asarray(0.5 / CAP, q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(CAP * jnp.tanh(scores)), v)


def _by_a_reciprocal(q, k, v):
    """What is in front of tanh is one factor; keys first; an odd function of a negative number."""
    scores = jnp.einsum("bkhd,bqhd->bhkq", k, q).astype(jnp.float32) * (-0.5 / CAP)
    shares = jax.nn.softmax(-CAP * jnp.tanh(scores), axis=-2).astype(v.dtype)
    return jnp.einsum("bhkq,bkhd->bqhd", shares, v)


@jax.custom_jvp
def _capped(x):
    return CAP * jnp.tanh(x / CAP)


@_capped.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    t = jnp.tanh(x / CAP)
    return CAP * t, dx * (1 - t**2)


def _by_its_own_rule(q, k, v):
    return _weighted(jnp.where(mask_of(q, k), _capped(_scores(q, k)), -jnp.inf), v)


@jax.custom_jvp
def _as_of_old(x):
    return CAP * jnp.tanh(x / CAP)


@_as_of_old.defjvp
def _(primals, tangents):
    """As JAX's rule of tanh was before it was made of logistic."""
    (x,), (dx,) = primals, tangents
    t = jnp.tanh(x / CAP)
    g = dx / CAP
    return CAP * t, CAP * ((g + g * t) * (1 - t))


def _by_the_old_rule(q, k, v):
    return _weighted(jnp.where(_kept()[:, None, None], _as_of_old(_scores(q, k)), LOW), v)


def _checkpointed(q, k, v):
    return jax.checkpoint(_causal)(q, k, v)


def _layers(q, k, v):
    """A loop of layers."""

    def layer(q, _):
        return ((q + _causal(q, k, v)) * 0.5).astype(q.dtype), None

    return jax.lax.scan(layer, q, None, length=2)[0]


def _kept():
    return jnp.arange(T) < jnp.array([15, 7])[:, None]


FORMS = {
    "Gemma": _gemma,
    "Gemma, padded": _padded,
    "causal": _causal,
    "of 16 bits": _of_16_bits,
    "by a reciprocal": _by_a_reciprocal,
    "by its own rule": _by_its_own_rule,
    "by the old rule": _by_the_old_rule,
    "in a checkpoint": _checkpointed,
    "in a loop": _layers,
}


def program(name, rng, dtype=jnp.bfloat16):
    """A function and its gradients in one program, and the arrays."""
    fun, heads = FORMS[name], 2 * H if name.startswith("Gemma") else H
    q, k, v, d_o = operands(rng, (B, T, T, heads, H, 16), dtype)

    def both(q, k, v, d_o):
        out, pullback = jax.vjp(fun, q, k, v)
        return (out, *pullback(d_o))

    return both, (q, k, v, d_o)


def exact(both, given):
    """The same in float64."""
    return list(float64.exact(both, given))


@needs_rows
@pytest.mark.parametrize("name", FORMS)
def test_in_the_emulator(rng, name):
    """Results and gradients are as precise as the program's."""
    both, given = program(name, rng)
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(both)).lower(*given)
        text = lowered.as_text()
        counts = [text.count(f"capped_attention{of}_v1(") for of in ("", "_grad")]
        assert counts == [1 + (name == "in a checkpoint"), 1]
        results = lowered.compile()(*given)
    assert_as_exact(results, jax.jit(both)(*given), exact(both, given), jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("name", ["causal", "by its own rule"])
def test_scores_of_float32_in_the_emulator(rng, name):
    """float16 rounds weights by 2^-12: tanh is more precise. Large scores, most of which are near the cap."""
    both, (q, k, v, d_o) = program(name, rng, jnp.float16)
    given = 4 * q, k, v, d_o
    with jax_moye.options(interpret=True):
        results = jax.jit(jax_moye.optimize(both))(*given)
    assert_as_exact(results, jax.jit(both)(*given), exact(both, given), jnp.float16)


@needs_rows
def test_alone_in_the_emulator(rng):
    """A forward pass, and a mapped one."""
    _, (q, k, v, _) = program("causal", rng)
    for one, given in ((_causal, (q, k, v)), (jax.vmap(_causal), (q[None], k[None], v[None]))):
        with jax_moye.options(interpret=True):
            lowered = jax.jit(jax_moye.optimize(one)).lower(*given)
            assert lowered.as_text().count("capped_attention_v1(") == 1
            result = lowered.compile()(*given)
        assert_as_exact([result], [one(*given)], exact(lambda *x, one=one: [one(*x)], given), jnp.bfloat16)


@needs_rows
def test_contenders_compute_one_thing(rng):
    """What is timed: our kernels and XLA."""
    both, given = program("causal", rng)
    with jax_moye.options(implementation="moye"):
        one = next(attentions_of(jax.make_jaxpr(jax_moye.optimize(both))(*given).jaxpr))[0]
    contest = attention_lowering.contest(one.interpreted(InterpretParams()), one.operands, None, one.together)
    for by in (next(iter(contest.ours.values())), contest.xla):
        for result, wanted in zip(jax.jit(by)(*given), exact(both, given), strict=True):
            assert np.abs(np.asarray(result, np.float64) - wanted).max() <= 0.03 * np.abs(wanted).max()


def found(fun, *given):
    """The attention and its gradients, as far as they are in a program."""
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*given)
    return [
        (equation.params["attention"], equation.params["results"])
        for equation in jaxpr.eqns
        if equation.primitive.name.startswith("jax_moye_attention")
    ]


@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("in a checkpoint", "in a loop")])
def test_is_found(rng, monkeypatch, name):
    """With the scale that is in front of tanh and behind it together."""
    use_fake_rows(monkeypatch)
    both, given = program(name, rng)
    (forward, _), (params, gradients) = found(both, *given)
    assert (forward.cap, params.cap) == (CAP, CAP)
    np.testing.assert_allclose(params.scale, 1.0 if name.startswith("Gemma") else 0.5, rtol=1e-6)
    assert gradients == ("dq", "dk", "dv")


LEFT = {
    "tanh of masked scores": lambda q, k, v, _: _weighted(
        CAP * jnp.tanh(jnp.where(mask_of(q, k), _scores(q, k), LOW) / CAP), v
    ),
    "tanh of tanh": lambda q, k, v, _: _weighted(CAP * jnp.tanh(jnp.tanh(_scores(q, k))), v),
    "a sum with tanh": lambda q, k, v, _: _weighted(_scores(q, k) + CAP * jnp.tanh(_scores(q, k)), v),
    "a sum with another cap's": lambda q, k, v, _: _weighted(jnp.tanh(_scores(q, k)) + jnp.tanh(2 * _scores(q, k)), v),
    "a cap that is not known": lambda q, k, v, d_o: _weighted(d_o[0, 0, 0, 0] * jnp.tanh(_scores(q, k)), v),
    "a cap that takes away": lambda q, k, v, _: _weighted(-CAP * jnp.tanh(_scores(q, k)), v),
    "a large cap": lambda q, k, v, _: _weighted(1e4 * jnp.tanh(_scores(q, k) / 1e4), v),
    "behind a bias": lambda q, k, v, d_o: _weighted(jnp.tanh(_scores(q, k) + d_o.sum(-1).swapaxes(1, 2)[..., None]), v),
    "in front of a bias": lambda q, k, v, d_o: _weighted(
        jnp.tanh(_scores(q, k)) + d_o.sum(-1).swapaxes(1, 2)[:, :, None].astype(jnp.float32), v
    ),
    "an even function": lambda q, k, v, _: _weighted(jnp.tanh(_scores(q, k)) ** 2, v),
    "logistic": lambda q, k, v, _: _weighted(jax.nn.sigmoid(_scores(q, k)), v),
    "scores that are less the largest": lambda q, k, v, _: _weighted(
        jnp.tanh((s := _scores(q, k)) - s.max(-1, keepdims=True)), v
    ),
    "of tanh the softmax' largest": lambda q, k, v, _: jnp.einsum(
        "bhqk,bkhd->bqhd", jnp.exp(jnp.tanh(s := _scores(q, k)) - s.max(-1, keepdims=True)).astype(v.dtype), v
    ),
    "scores that are read": lambda q, k, v, _: (_weighted(t := jnp.tanh(_scores(q, k)), v), t),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_it_is(rng, monkeypatch, name):
    use_fake_rows(monkeypatch)
    assert not found(LEFT[name], *operands(rng))


# What a program may say that the derivative of the cap is, and whether it is.
RULES = {
    "right": (lambda t, g: g * (1 - t) * (1 + t), True),
    "straight through": (lambda t, g: g, False),
    "of another function": (lambda t, g: g * (1 - t) * (1 - t), False),
    "twice": (lambda t, g: 2 * g * (1 - t * t), False),
}


@pytest.mark.parametrize("name", RULES)
def test_another_derivative_is_left(rng, monkeypatch, name):
    use_fake_rows(monkeypatch)
    rule, is_right = RULES[name]
    cap = jax.custom_vjp(lambda x: CAP * jnp.tanh(x / CAP))
    cap.defvjp(lambda x: (CAP * jnp.tanh(x / CAP), jnp.tanh(x / CAP)), lambda t, g: (rule(t, g),))
    q, k, v, d_o = operands(rng)

    def both(q, k, v, d_o):
        return jax.vjp(lambda *given: _weighted(cap(_scores(*given[:2])), given[2]), q, k, v)[1](d_o)

    assert len(found(both, q, k, v, d_o)) == 2 * is_right


def test_added_masks_whose_rows_have_gradients_are_left(rng, monkeypatch):
    """Of a row all of whose scores are masked the program has gradients of them, which no kernel has behind a cap."""
    use_fake_rows(monkeypatch)
    q, k, v, d_o = operands(rng)

    def fun(q, k, v):
        return _weighted(CAP * jnp.tanh(_scores(q, k) / CAP) + jnp.where(_kept()[:, None, None], 0, -1e9), v)

    assert len(found(fun, q, k, v)) == 1
    assert not found(lambda *given: jax.vjp(fun, *given[:3])[1](given[3]), q, k, v, d_o)


def test_says_that_there_is_one(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    both, given = program("Gemma", rng)
    text = str(jax_moye.explain(jax.jit(jax_moye.optimize(both)), *given))
    assert re.search(r"attention.* with a soft cap", text), text
