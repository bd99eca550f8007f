"""Several arrays that are added to scores in turn, in front of the scale and behind it: one bias of a kernel."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python import float64
from python.attentions import B, D, H, T, arrays, assert_as_exact, counts, mask_of, needs_rows, operands, use_fake_rows

import jax_moye
from jax_moye._inspect.products import attentions_of
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives import attention_lowering


def _wide(q):
    return jnp.promote_types(q.dtype, jnp.float32)


def _product(q, k, dtype=None):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=dtype)


def _weighted(scores, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def _shifted(x):
    """Of positions relative to the last query those relative to each, as Transformer-XL moves them."""
    b, h, q, n = x.shape
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (1, 0)))
    return padded.reshape(b, h, n + 1, q)[:, :, 1:].reshape(b, h, q, n)[..., :q]


def _pairs(q, k, v, of_keys, of_pairs):
    """AlphaFold's, of scores of 16 bits: a mask of floats, and a product of pairs."""
    return _weighted(_product(q, k) + of_keys.astype(_wide(q))[:, None, None] + of_pairs[None], v)


def _of_16_bits(q, k, v, of_keys, of_pairs):
    return _weighted(_product(q, k) * 0.25 + of_keys[:, None, None] + of_pairs[None], v)


def _relative(q, k, v, of_keys, positions, u, w):
    """Transformer-XL's, as a Conformer has it: the scores are rounded in front of the scale, and masked behind it."""
    of_positions = _shifted(jnp.einsum("bqhd,rhd->bhqr", q + w, positions))
    scores = (_product(q + u, k) + of_positions).astype(_wide(q)) * 0.3
    return _weighted(jnp.where((of_keys > -1)[:, None, None], scores, -1e9), v)


def _relative_and_causal(q, k, v, of_keys, positions, u, w):
    """All of float32, the division behind two biases, the gradients of which are a sum and a product."""
    of_positions = jnp.einsum("bqhd,khd->bhqk", q + w, positions[:T], preferred_element_type=_wide(q))
    scores = (_product(q + u, k, _wide(q)) + of_positions + of_keys[:, None, None]) / math.sqrt(12)
    return _weighted(jnp.where(mask_of(q, k), scores, -jnp.inf), v)


def _on_both_sides(q, k, v, of_keys, of_pairs):
    """One in front of the scale, in 16 bits, and another one behind it, in float32: and so are their gradients."""
    return _weighted((_product(q, k) + of_pairs).astype(_wide(q)) * 0.3 + of_keys.astype(_wide(q))[:, None, None], v)


def _exactly_scaled(q, k, v, of_pairs):
    """A power of 2."""
    return _weighted((_product(q, k, _wide(q)) + of_pairs) * 0.25, v)


def _subtracted(q, k, v, of_keys, of_pairs):
    """ALiBi's distances, and a sum."""
    distances = (jnp.arange(T)[:, None] - jnp.arange(T)).astype(_wide(q))
    scores = _product(q, k, _wide(q)) * 0.25 - 2.0 ** -jnp.arange(1, H + 1)[:, None, None] * distances
    return _weighted(jnp.where(mask_of(q, k), scores - (of_pairs[None] + of_keys[:, None, None]), -1e9), v)


def _of_three(q, k, v, of_keys, of_pairs):
    """One of them twice, and a mask that is added."""
    scores = _product(q, k, _wide(q)) * 0.25 + of_pairs + jnp.arange(T, dtype=_wide(q)) / 8 + of_pairs
    return _weighted(scores + of_keys[:, None, None] + jnp.where(mask_of(q, k), 0.0, -1e9), v)


def _dropped(q, k, v, of_keys, of_pairs):
    scores = (_product(q, k, _wide(q)) + of_pairs) * 0.3 + of_keys[:, None, None]
    keep = (3 * jnp.arange(T) + 5 * jnp.arange(T)[:, None] + jnp.arange(H)[:, None, None]) % 4 > 0
    shares = jnp.where(keep, jax.nn.softmax(scores) / 0.75, 0)
    return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(v.dtype), v)


def _of_queries_and_keys(q, k, v, positions):
    """DeBERTa's: a product of the queries, and one of the keys, each as large as the scores."""
    of_queries = jnp.einsum("bqhd,khd->bhqk", q, positions)
    of_keys = jnp.einsum("bkhd,qhd->bhqk", k, positions)
    return _weighted((_product(q, k) + of_queries + of_keys) / math.sqrt(3 * D), v)


def _of_scaled_queries(q, k, v, positions):
    """The scale is a factor of the queries, which both products have."""
    q = q * 0.3
    return _weighted((_product(q, k) + jnp.einsum("bqhd,khd->bhqk", q, positions)).astype(_wide(q)), v)


def _in_groups(q, k, v, of_keys, of_pairs):
    """Queries share keys, each head with a bias of its own."""
    scores = jnp.einsum("btngd,bsnd->bngts", q.reshape(B, T, H, 2, D), k).astype(_wide(q))
    scores = (scores + of_pairs.reshape(H, 2, T, T)) * 0.3 + of_keys[:, None, None, None]
    return jnp.einsum("bngts,bsnd->btngd", jax.nn.softmax(scores).astype(v.dtype), v).reshape(q.shape)


def _checkpointed(q, k, v, of_keys, of_pairs):
    return jax.checkpoint(_on_both_sides)(q, k, v, of_keys, of_pairs)


OF_KEYS, OF_PAIRS = ((B, T), "float32"), ((H, T, T), "bfloat16")
POSITIONS = OF_KEYS, ((2 * T - 1, H, D), "bfloat16"), ((H, D), "bfloat16"), ((H, D), "bfloat16")
POSITION = (T, H, D), "bfloat16"
WHOLE, OF_ALL = (B, H, T, T), (H, T, T)
# By name: the function, the shapes and types of what is behind q, k and v, the bias, and the type of its gradient.
FORMS = {
    "pairs": (_pairs, [OF_KEYS, OF_PAIRS], (WHOLE, "float32"), "float32"),
    "of 16 bits": (_of_16_bits, [((B, T), "bfloat16"), OF_PAIRS], (WHOLE, "bfloat16"), "bfloat16"),
    "relative": (_relative, POSITIONS, (WHOLE, "bfloat16"), "float32"),
    "relative and causal": (_relative_and_causal, POSITIONS, (WHOLE, "float32"), "float32"),
    "on both sides": (_on_both_sides, [OF_KEYS, OF_PAIRS], (WHOLE, "float32"), "float32"),
    "exactly scaled": (_exactly_scaled, [OF_PAIRS], (OF_ALL, "bfloat16"), "float32"),
    "subtracted": (_subtracted, [OF_KEYS, OF_PAIRS], (WHOLE, "float32"), "float32"),
    "of three": (_of_three, [OF_KEYS, OF_PAIRS], (WHOLE, "float32"), "float32"),
    "dropped": (_dropped, [OF_KEYS, OF_PAIRS], (WHOLE, "float32"), "float32"),
    "in groups": (_in_groups, [OF_KEYS, ((2 * H, T, T), "bfloat16")], ((B, H, 2, T, T), "float32"), "float32"),
    "of queries and keys": (_of_queries_and_keys, [POSITION], (WHOLE, "bfloat16"), "bfloat16"),
    "of scaled queries": (_of_scaled_queries, [POSITION], (WHOLE, "bfloat16"), "bfloat16"),
    "checkpointed": (_checkpointed, [OF_KEYS, OF_PAIRS], (WHOLE, "float32"), "float32"),
}


def _program(name, rng):
    """A function of arrays, its gradients by all of them in one program, and the arrays."""
    fun, shapes, *_ = FORMS[name]
    q, k, v, d_o = operands(rng, (B, T, T, 2 * H if name == "in groups" else H, H, D))
    behind = [arrays(rng, shape)[0].astype(dtype) for shape, dtype in shapes]

    def both(d_o, *given):
        out, pullback = jax.vjp(fun, *given)
        return (out, *pullback(d_o))

    return both, (d_o, q, k, v, *behind)


def _equations(jaxpr):
    """Those of bodies of jax.checkpoint among them."""
    for one in jaxpr.eqns:
        yield one
        if one.primitive.name in ("checkpoint", "remat2"):
            yield from _equations(one.params["jaxpr"])


def _found(fun, *args):
    """The bias, and the results with the type of the bias' gradient, of each equation of attention."""
    found = []
    for one in _equations(jax.make_jaxpr(jax_moye.optimize(fun))(*args).jaxpr):
        if one.primitive.name.startswith("jax_moye_attention"):
            params, at = one.params["attention"], 6 if "grad" in one.primitive.name else 3
            bias = one.invars[at].aval if params.has_bias else None
            found.append((bias and (bias.shape, str(bias.dtype)), one.params["results"], params.ds_dtype))
    return found


@pytest.mark.parametrize("name", FORMS)
def test_is_found(rng, monkeypatch, name):
    """As one array, no larger than the arrays together, and of 16 bits where the program rounds its scores so."""
    use_fake_rows(monkeypatch)
    both, given = _program(name, rng)
    _, _, (shape, dtype), of_gradient = FORMS[name]
    (forward, *_, gradients) = _found(both, *given)
    assert forward[:2] == ((shape, dtype), ("o",))
    assert gradients == ((shape, dtype), ("dq", "dk", "dv", "ds"), of_gradient)
    (alone,) = _found(lambda *given: FORMS[name][0](*given), *given[1:])
    assert alone[:2] == ((shape, dtype), ("o",))


def test_of_float16_it_has_32_bits(rng, monkeypatch):
    """Together the biases are below -65504, and with a score they are not: in float16 nothing would be left of it."""
    use_fake_rows(monkeypatch)
    q, k, v, _ = operands(rng, (B, T, T, H, H, D), jnp.float16)
    given = q, k, v, jnp.full((B, T), -65000, jnp.float16), jnp.full((H, T, T), -600, jnp.float16)
    (found,) = _found(_of_16_bits, *given)
    assert found[0] == (WHOLE, "float32")


@needs_rows
@pytest.mark.parametrize("name", FORMS)
def test_in_the_emulator(rng, name):
    """Results and gradients, those of what the biases are made of among them, are as precise as the program's."""
    both, given = _program(name, rng)
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(both)).lower(*given)
        text = lowered.as_text()
        kind = "dropped" if name == "dropped" else "biased"
        assert [text.count(f"{kind}_attention{of}_v1(") >= 1 for of in ("", "_grad")] == [True, True]
        results = lowered.compile()(*given)
    for result, x in zip(results, (given[1], *given[1:]), strict=True):
        assert (result.dtype, result.shape) == (x.dtype, x.shape)
    assert_as_exact(results, jax.jit(both)(*given), list(float64.exact(both, given)), jnp.bfloat16)


@needs_rows
def test_a_query_without_keys_in_the_emulator(rng):
    """Of which a mask of floats leaves nothing: a mean in both, or NaN, with a second bias beside it."""
    both, (d_o, q, k, v, _, of_pairs) = _program("pairs", rng)
    for low in (-1e9, float(jnp.finfo(jnp.float32).min), -jnp.inf):
        given = d_o, q, k, v, jnp.zeros((B, T), jnp.float32).at[1].set(low).at[0, 5:].set(low), of_pairs
        with jax_moye.options(interpret=True):
            results = jax.jit(jax_moye.optimize(both))(*given)
        before = jax.jit(both)(*given)
        for result, other in zip(results, before, strict=True):
            np.testing.assert_array_equal(np.isnan(result), np.isnan(other))
            exact = [np.nan_to_num(np.asarray(other, np.float64))]
            assert_as_exact(*([jnp.nan_to_num(x)] for x in (result, other)), exact, jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("name", ["pairs", "on both sides", "of three"])
def test_contenders_compute_one_thing(rng, name):
    """What is timed: our kernels behind the sum, and XLA, of the arrays that the program adds."""
    both, given = _program(name, rng)
    with jax_moye.options(implementation="moye"):
        one = next(attentions_of(jax.make_jaxpr(jax_moye.optimize(both))(*given).jaxpr))[0]
    contest = attention_lowering.contest(one.interpreted(InterpretParams()), one.operands, None, one.together)
    values = [arrays(rng, x.shape)[0].astype(x.dtype) for x in contest.types]
    ours, xlas = (jax.jit(by)(*values) for by in (next(iter(contest.ours.values())), contest.xla))
    assert [x.shape for x in values[4:]][:2] == [(H, T, T), (T,)] if name == "of three" else len(values) == 6
    for result, wanted in zip(ours, xlas, strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        float64.assert_close(result, np.asarray(wanted, np.float64), 0.03)


@pytest.mark.parametrize("name", ["of 16 bits", "of three"])
def test_in_a_loop(rng, monkeypatch, name):
    """The derivative in another one, of what is stacked; and mapped."""
    use_fake_rows(monkeypatch)
    _, (d_o, *given) = _program(name, rng)

    def layers(q, k, v, *behind):
        layer = lambda q, x: ((q + FORMS[name][0](q, k, v, *x)).astype(q.dtype), None)  # noqa: E731
        return jax.lax.scan(layer, q, tuple(jnp.stack([x, x]) for x in behind))[0]

    def mapped(q, k, v, *behind):
        return jax.vmap(FORMS[name][0])(*(x[None] for x in (q, k, v, *behind)))[0]

    for fun in (layers, mapped):
        both = lambda d_o, *given, fun=fun: jax.vjp(fun, *given)[1](d_o)  # noqa: E731
        assert counts(jax_moye.optimize(both), d_o, *given) == (1, 1, 0)


def test_says_that_there_is_one(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    both, given = _program("on both sides", rng)
    text = str(jax_moye.explain(jax.jit(jax_moye.optimize(both)), *given))
    assert re.search(r"attention and its gradients, .* with a bias", text), text


def test_one_gradient_alone(rng, monkeypatch):
    """Of the bias that is in front of the scale, and none of the other one: then none is written for it."""
    use_fake_rows(monkeypatch)
    _, (d_o, q, k, v, of_keys, of_pairs) = _program("on both sides", rng)

    def by_pairs(of_pairs):
        return jax.vjp(lambda x: _on_both_sides(q, k, v, of_keys, x), of_pairs)[1](d_o)

    def by_queries(q):
        return jax.vjp(lambda x: _on_both_sides(x, k, v, of_keys, of_pairs), q)[1](d_o)

    assert [one[1] for one in _found(by_pairs, of_pairs)] == [(), ("ds",)]
    assert [one[1:] for one in _found(by_queries, q)] == [((), None), (("dq",), None)]


def test_a_gradient_that_is_a_result(rng, monkeypatch):
    """Of a bias as large as the scores, in front of the scale: the program multiplies the derivative itself."""
    use_fake_rows(monkeypatch)
    q, k, v, d_o = operands(rng)
    (bias,) = arrays(rng, (B, H, T, T), dtype=jnp.float32)
    fun = lambda bias: jax.vjp(lambda x: _exactly_scaled(q, k, v, x), bias)[1](d_o)  # noqa: E731
    assert [one[1:] for one in _found(fun, bias)] == [((), "float32"), (("ds",), "float32")]
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(bias).jaxpr
    (written,) = (one.outvars[-1] for one in jaxpr.eqns if one.primitive.name == "jax_moye_attention_grad")
    assert [one.primitive.name for one in jaxpr.eqns if written in one.invars] == ["mul"]


def _of_rows(d_o):
    return d_o.sum(-1).swapaxes(1, 2)[..., None].astype(jnp.float32)


LEFT = {
    "made of the scores, computed anew": lambda q, k, v, d_o: _weighted(
        _product(q, k) + _of_rows(d_o) + jnp.sort(_product(q, k)).astype(jnp.float32), v
    ),
    "made of the scores": lambda q, k, v, d_o: (lambda s: _weighted(s + _of_rows(d_o) + jnp.sort(s), v))(
        _product(q, k, jnp.float32)
    ),
    "made of the result of the same scores": lambda q, k, v, d_o: (
        lambda s: _weighted(s + _weighted(s, v).sum(-1).swapaxes(1, 2)[:, :, None, :], v)
    )(_product(q, k, jnp.float32)),
    "beside a mean of the scores": lambda q, k, v, d_o: (
        lambda s: _weighted(s + _of_rows(d_o) + s.mean(-1, keepdims=True), v)
    )(_product(q, k, jnp.float32)),
    "of which others read the sum": lambda q, k, v, d_o: (lambda s: (_weighted(s, v), s.sum()))(
        (_product(q, k) + _of_rows(d_o)) * 0.3 + _of_rows(d_o)
    ),
    "in front of a negative scale": lambda q, k, v, d_o: _weighted((_product(q, k) + _of_rows(d_o)) * -0.3, v),
    "in front of a scale that is not known": lambda q, k, v, d_o: _weighted(
        (_product(q, k) + _of_rows(d_o)) * d_o[0, 0, 0, 0], v
    ),
    "in front of a cap": lambda q, k, v, d_o: _weighted(jnp.tanh(_product(q, k) + _of_rows(d_o)), v),
    "behind a cap": lambda q, k, v, d_o: _weighted(jnp.tanh(_product(q, k)) + _of_rows(d_o), v),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_it_is(rng, monkeypatch, name):
    use_fake_rows(monkeypatch)
    given = operands(rng)
    assert not _found(lambda *x: LEFT[name](*x), *given)
    assert not counts(jax_moye.optimize(LEFT[name]), *given)[0]
