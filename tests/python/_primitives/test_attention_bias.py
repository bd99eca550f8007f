"""Arrays that programs add to the scores of attention: found, computed by a kernel, and their gradients."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python import float64
from python.attentions import B, H, T, arrays, assert_as_exact, needs_rows, operands, use_fake_rows

import jax_moye
from jax_moye._inspect.products import attentions_of
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives import attention_lowering

LOW = -1e9


def _scores(q, k, scale=0.25):
    wide = jnp.promote_types(q.dtype, jnp.float32)
    return jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=wide) * scale


def _weighted(scores, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def _buckets():
    return jnp.clip(jnp.arange(T)[None, :] - jnp.arange(T)[:, None] + 8, 0, 15)


def _t5(q, k, v, table):
    """A table of relative positions, a row for each bucket, and no scale."""
    return _weighted(_scores(q, k, 1.0) + table[_buckets()].transpose(2, 0, 1)[None], v)


def _t5_of_16_bits(q, k, v, table):
    return _weighted(_scores(q, k, 1.0) + table[_buckets()].astype(q.dtype).transpose(2, 0, 1)[None], v)


def _t5_padded(q, k, v, table, kept):
    """With the mask of a padding, in one sum; of the last sequence nothing is left."""
    mask = jnp.where(kept[:, None, None, :], 0.0, LOW).astype(table.dtype)
    return _weighted(_scores(q, k, 1.0) + (table[_buckets()].transpose(2, 0, 1)[None] + mask), v)


def _alibi(q, k, v):
    slopes = 2.0 ** -jnp.arange(1, H + 1, dtype=jnp.float32)
    bias = slopes[:, None, None] * (jnp.arange(T) - jnp.arange(T)[:, None]).astype(jnp.float32)
    return _weighted(jnp.where(jnp.tril(jnp.ones((T, T), bool)), _scores(q, k) + bias, -jnp.inf), v)


def _of_keys(q, k, v):
    """A bias of the keys alone, as ALiBi has where all queries see the same ones."""
    return _weighted(_scores(q, k) + jnp.arange(1 - T, 1, dtype=jnp.float32) / 4, v)


def _bert(q, k, v, kept, dtype=jnp.float32):
    """A number that leaves something of a score of float32: of the last sequence, nothing of which is kept, all."""
    mask = (1.0 - kept[:, None, None, :].astype(dtype)) * -10000.0
    return _weighted(_scores(q, k).astype(jnp.promote_types(q.dtype, dtype)) + mask, v)


def _causal_by_a_mild_number(q, k, v, table):
    """Beside a bias, in one sum, which is a bias then."""
    mask = jnp.where(jnp.tril(jnp.ones((T, T), bool)), 0.0, -100.0)
    return _weighted(_scores(q, k) + (table[_buckets()].transpose(2, 0, 1)[None] + mask), v)


def _swin(q, k, v, table):
    """Windows of 5 x 5, an odd number of columns."""
    q, k, v = (x[:, : T + 1] for x in (q, k, v))
    y, x = jnp.divmod(jnp.arange(25), 5)
    index = (y[:, None] - y + 4) * 9 + x[:, None] - x + 4
    return _weighted(_scores(q, k) + jnp.moveaxis(table[index], -1, 0), v)


def _of_pairs(q, k, v, pairs, w):
    """What a product makes of each pair of a query and a key, for each head."""
    return _weighted(_scores(q, k) + jnp.einsum("bqkc,ch->bhqk", pairs, w).astype(jnp.float32), v)


def _of_jax(q, k, v, bias):
    return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True)


def _kept():
    return jnp.arange(T) < jnp.array([15, 0])[:, None]


# By name: the function, the shapes and types of what is behind q, k and v, what else it is given, and whether the bias
# has a gradient.
FORMS = {
    "T5": (_t5, [((16, H), "float32")], (), True),
    "T5 in 16 bits": (_t5_of_16_bits, [((16, H), "float32")], (), True),
    "T5, padded": (_t5_padded, [((16, H), "float32")], (_kept,), True),
    "ALiBi": (_alibi, [], (), False),
    "of keys": (_of_keys, [], (), False),
    "BERT": (_bert, [], (_kept,), False),
    "BERT in 16 bits": (functools.partial(_bert, dtype=jnp.bfloat16), [], (_kept,), False),
    "causal by a mild number": (_causal_by_a_mild_number, [((16, H), "float32")], (), True),
    "Swin": (_swin, [((81, H), "float32")], (), True),
    "of pairs": (_of_pairs, [((B, T, T, 3), "bfloat16"), ((3, H), "bfloat16")], (), True),
    "of jax": (_of_jax, [((1, H, T, T), "bfloat16")], (), True),
    "of jax, an argument": (_of_jax, [((B, H, T, T), "float32")], (), True),
}


def program(name, rng):
    """A function of arrays, its gradients by all of them in one program, and the arrays."""
    fun, shapes, others, _ = FORMS[name]
    rows = 25 if name == "Swin" else T
    q, k, v, d_o = operands(rng, (B, rows, rows, H, H, 16))
    behind = [arrays(rng, shape)[0].astype(dtype) for shape, dtype in shapes]

    def both(d_o, *given):
        of_arrays = lambda *given: fun(*given, *(other() for other in others))  # noqa: E731
        out, pullback = jax.vjp(of_arrays, *given)
        return (out, *pullback(d_o))

    return both, (d_o, q, k, v, *behind)


def exact(both, given):
    """The same in float64."""
    return list(float64.exact(both, given))


@needs_rows
@pytest.mark.parametrize("name", FORMS)
def test_in_the_emulator(rng, name):
    """Results and gradients, those of what the bias is made of among them, are as precise as the program's."""
    both, given = program(name, rng)
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(both)).lower(*given)
        text = lowered.as_text()
        # Where a row may have no score that counts, there is one gradient call in each branch of a cond.
        assert [text.count(f"biased_attention{of}_v1(") for of in ("", "_grad")] == [1, 1 + (name == "T5, padded")]
        results = lowered.compile()(*given)
    for result, x in zip(results, (given[1], *given[1:]), strict=True):
        assert (result.dtype, result.shape) == (x.dtype, x.shape)
    assert_as_exact(results, jax.jit(both)(*given), exact(both, given), jnp.bfloat16)


@needs_rows
def test_alone_in_the_emulator(rng):
    """A forward pass, and a mapped one."""
    _, (_, q, k, v, table) = program("T5", rng)
    fun = lambda *given: _t5(*given)  # noqa: E731
    for one, given in ((fun, (q, k, v, table)), (jax.vmap(fun, (0, 0, 0, None)), (q[None], k[None], v[None], table))):
        with jax_moye.options(interpret=True):
            lowered = jax.jit(jax_moye.optimize(one)).lower(*given)
            assert lowered.as_text().count("biased_attention_v1(") == 1
            result = lowered.compile()(*given)
        assert_as_exact([result], [one(*given)], exact(lambda *x, one=one: [one(*x)], given), jnp.bfloat16)


def _layers(q, k, v, bias):
    """A loop of layers that share a bias."""

    def layer(q, _):
        return ((q + _weighted(_scores(q, k) + bias, v)) * 0.5).astype(q.dtype), None

    return jax.lax.scan(layer, q, None, length=2)[0]


@needs_rows
@pytest.mark.parametrize(
    ("fun", "sizes"), [(_of_jax, (B, T, T, 2 * H, H, 16)), (_layers, (B, T, T, H, H, 16))], ids=["groups", "a loop"]
)
def test_groups_and_loops_in_the_emulator(rng, fun, sizes):
    """Heads that share keys, each with a bias; and layers of a loop, whose gradients are added up."""
    q, k, v, d_o = operands(rng, sizes)
    (bias,) = arrays(rng, (1, sizes[3], T, T))

    def both(d_o, q, k, v, bias):
        out, pullback = jax.vjp(fun, q, k, v, bias)
        return (out, *pullback(d_o))

    given = d_o, q, k, v, bias
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(both)).lower(*given)
        text = lowered.as_text()
        assert [text.count(f"biased_attention{of}_v1(") for of in ("", "_grad")] == [1, 1]
        results = lowered.compile()(*given)
    assert_as_exact(results, jax.jit(both)(*given), exact(both, given), jnp.bfloat16)


@needs_rows
def test_contenders_compute_one_thing(rng):
    """What is timed: our kernels and XLA, of the bias in memory, and its gradient as the program reduces it itself."""
    q, k, v, d_o = operands(rng)
    bias = arrays(rng, (1, H, T, T))[0].astype(jnp.float32)

    def both(d_o, q, k, v, bias):
        out, pullback = jax.vjp(lambda *given: _weighted(_scores(*given[:2]) + given[3], given[2]), q, k, v, bias)
        return (out, *pullback(d_o))

    given = d_o, q, k, v, bias
    with jax_moye.options(implementation="moye"):
        one = next(attentions_of(jax.make_jaxpr(jax_moye.optimize(both))(*given).jaxpr))[0]
    contest = attention_lowering.contest(one.interpreted(InterpretParams()), one.operands, None, one.together)
    assert [(x.shape, x.dtype) for x in contest.types[3:]] == [(d_o.shape, d_o.dtype), (bias.shape, bias.dtype)]
    *wanted, of_bias = exact(both, given)
    for by in (next(iter(contest.ours.values())), contest.xla):
        *results, ds = jax.jit(by)(q, k, v, d_o, bias)
        assert ds.shape == (B, H, T, T)
        for result, one in zip((*results, ds.sum(axis=0, keepdims=True)), (*wanted, of_bias), strict=True):
            assert np.abs(np.asarray(result, np.float64) - one).max() <= 0.03 * np.abs(one).max()


def _found(fun, *args):
    """The shape of the bias, and the names of gradients, of each equation of a program."""
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*args)
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith("jax_moye_attention"):
            params = equation.params["attention"]
            at = 6 if "grad" in equation.primitive.name else 3
            bias = equation.invars[at].aval if params.has_bias else None
            found.append((None if bias is None else (bias.shape, str(bias.dtype)), equation.params["results"]))
    return found


@pytest.mark.parametrize(
    ("name", "bias"),
    [
        ("T5", ((H, T, T), "float32")),
        ("T5 in 16 bits", ((H, T, T), "bfloat16")),
        ("T5, padded", ((H, T, T), "float32")),
        ("ALiBi", ((H, T, T), "float32")),
        ("BERT", ((B, 1, 1, T), "float32")),
        ("BERT in 16 bits", ((B, 1, 1, T), "bfloat16")),
        ("causal by a mild number", ((1, H, T, T), "float32")),
        ("Swin", ((H, 25, 25), "float32")),
        ("of pairs", ((B, H, T, T), "bfloat16")),
        ("of jax", ((1, H, T, T), "bfloat16")),
        ("of jax, an argument", ((B, H, T, T), "float32")),
    ],
)
def test_is_read_as_small_as_it_is(rng, monkeypatch, name, bias):
    """In front of what broadcasts and widens it; and a bias without a gradient has none."""
    use_fake_rows(monkeypatch)
    both, given = program(name, rng)
    (forward, gradients) = _found(both, *given)
    assert forward == (bias, ("o",))
    assert gradients == (bias, ("dq", "dk", "dv", *["ds"] * FORMS[name][3]))


def test_a_bias_without_a_gradient(rng, monkeypatch):
    """One that nobody differentiates by, or only by way of stop_gradient."""
    use_fake_rows(monkeypatch)
    _, (d_o, q, k, v, bias) = program("of jax", rng)
    for fun in (lambda q: _of_jax(q, k, v, bias), lambda q: _of_jax(q, k, v, jax.lax.stop_gradient(bias))):
        (_, (found, results)) = _found(lambda q, fun=fun: jax.vjp(fun, q)[1](d_o), q)
        assert found is not None
        assert results == ("dq",)


def test_a_bias_whose_gradient_alone_is_asked_for(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    _, (d_o, q, k, v, bias) = program("of jax, an argument", rng)
    (_, (_, results)) = _found(lambda bias: jax.vjp(lambda bias: _of_jax(q, k, v, bias), bias)[1](d_o), bias)
    assert results == ("ds",)


LEFT = {
    "made of the queries and the keys": lambda q, k, v, d_o: _weighted(_scores(q, k) + jnp.sin(_scores(q, k)), v),
    "made of the result": lambda q, k, v, d_o: _weighted(
        _scores(q, k) + _weighted(_scores(q, k), v).sum(-1).swapaxes(1, 2)[:, :, None, :], v
    ),
    "that is subtracted from": lambda q, k, v, d_o: _weighted(
        d_o.sum(-1).swapaxes(1, 2)[:, :, None] - _scores(q, k), v
    ),
    "of float16": lambda q, k, v, d_o: _weighted(
        _scores(q, k).astype(jnp.float16) + d_o.sum(-1).swapaxes(1, 2)[:, :, None].astype(jnp.float16), v
    ),
    "behind a mask that leaves a score": lambda q, k, v, d_o: _weighted(
        jnp.where(v[:, None, None, :, 0, 0] > 0, _scores(q, k).astype(jnp.bfloat16), -1e3)
        + d_o.sum(-1).swapaxes(1, 2)[:, :, None, :],
        v,
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_it_is(rng, monkeypatch, name):
    use_fake_rows(monkeypatch)
    fun = LEFT[name]
    given = operands(rng)
    assert not [one for one in _found(fun, *given) if one[0] is not None]


@jax.custom_vjp
def _with_factors_behind(scores):
    """Scores, whose derivatives are multiplied by the keys' indices."""
    return scores


_with_factors_behind.defvjp(
    lambda scores: (scores, None),
    lambda _, derivative: (derivative * jax.lax.broadcasted_iota(derivative.dtype, derivative.shape, 3),),
)

SMALL = {
    "a number is added": lambda q, k, v, d_o: _weighted(_scores(q, k) + d_o[0, 0, 0, 0].astype(jnp.float32), v),
    "a number is added in 16 bits": lambda q, k, v, d_o: _weighted(
        jnp.einsum("bqhd,bkhd->bhqk", q, k) + d_o[0, 0, 0, 0], v
    ),
    "indices are a factor behind": lambda q, k, v, d_o: _weighted(_with_factors_behind(_scores(q, k)), v),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_is_left_hinders_nothing_else(rng, monkeypatch, name):
    """The search for attention ends without an error, and so the program's products are ours."""
    use_fake_rows(monkeypatch)
    fun, given = SMALL[name], operands(rng)
    derivatives = lambda *x: jax.vjp(lambda *y: fun(*y, x[3]), *x[:3])[1](x[3])  # noqa: E731
    for one in (fun, derivatives):
        assert "dot_general[" not in str(jax.make_jaxpr(jax_moye.optimize(one))(*given))
    assert not [found for found in _found(derivatives, *given) if found[0] is not None]
    results, before = (jax.jit(f)(*given) for f in (jax_moye.optimize(derivatives), derivatives))
    for result, wanted in zip(results, before, strict=True):
        np.testing.assert_array_equal(np.asarray(result, np.float32), np.asarray(wanted, np.float32))


@needs_rows
@pytest.mark.parametrize("has_mask", [False, True])
def test_a_low_bias_is_a_mean(rng, has_mask):
    """A row of which nothing is left is the mean, and has its gradients, as a mask's is; -inf makes NaN of it.

    Behind a mask that is -inf it is the mean of what that lets through, also where each row is known to have some.
    """
    q, k, v, d_o = operands(rng)
    masked = (lambda scores: jnp.where(jnp.arange(T) < T - 5, scores, -jnp.inf)) if has_mask else lambda scores: scores

    def both(d_o, q, k, v, bias):
        fun = lambda *given: _weighted(masked(_scores(*given[:2]) + given[3]), given[2])  # noqa: E731
        out, pullback = jax.vjp(fun, q, k, v, bias)
        return (out, *pullback(d_o))

    for low in (-1e9, float(jnp.finfo(jnp.float32).min), -jnp.inf):
        bias = jnp.zeros((1, 1, T, T), jnp.float32).at[:, :, 3].set(low)
        given = d_o, q, k, v, bias
        with jax_moye.options(interpret=True):
            lowered = jax.jit(jax_moye.optimize(both)).lower(*given)
            results = lowered.compile()(*given)
        assert "biased_attention_grad_v1(" in lowered.as_text()
        before = jax.jit(both)(*given)
        for result, other in zip(results, before, strict=True):
            assert_as_exact(
                [jnp.nan_to_num(result.astype(jnp.float32))],
                [jnp.nan_to_num(other.astype(jnp.float32))],
                [np.nan_to_num(np.asarray(other, np.float64))],
                jnp.bfloat16,
            )
            np.testing.assert_array_equal(np.isnan(result), np.isnan(other))


def test_says_that_there_is_one(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    both, given = program("T5", rng)
    text = str(jax_moye.explain(jax.jit(jax_moye.optimize(functools.partial(both))), *given))
    assert re.search(r"attention and its gradients, .* with a bias", text), text
