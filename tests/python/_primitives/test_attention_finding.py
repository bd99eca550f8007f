"""Attention in jaxprs: which forms are found, that they compute what they did, and what is left as it is."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.attentions import (
    FLAX,
    FORMS,
    GROUPED,
    B,
    D,
    H,
    S,
    T,
    arrays,
    assert_as_exact,
    counts,
    exact,
    gradients,
    operands,
    use_fake_rows,
)
from python.support import without_addresses

import jax_moye
from jax_moye._primitives import rewriting
from jax_moye._primitives.attention import attention_p

plain = FORMS["plain"]


@pytest.fixture(autouse=True)
def fake_rows(monkeypatch):
    use_fake_rows(monkeypatch)


def assert_unchanged(fun, *args):
    """On a CPU the equations as they were run, those of a derivative beside those of the forward pass."""
    before, after = (jax.tree.leaves(jax.jit(f)(*args)) for f in (fun, jax_moye.optimize(fun)))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float64), np.asarray(y, np.float64))
        assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type)
    return before, after


def only(fun, *args):
    equations = jax.make_jaxpr(jax_moye.optimize(fun))(*args).eqns
    (equation,) = (one for one in equations if one.primitive is attention_p)
    return equation.params["attention"]


IN_FLOAT16 = [("plain", jnp.float16), *([("of linen", jnp.float16)] if FLAX else [])]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("form", "dtype"), [*((form, jnp.bfloat16) for form in FORMS), *IN_FLOAT16])
def test_forms(rng, form, causal, dtype):
    q, k, v, d_o = operands(rng, dtype=dtype)
    forward = functools.partial(FORMS[form], causal=causal)
    backward, recomputed = gradients(FORMS[form], causal), gradients(FORMS[form], causal, checkpoint=True)
    assert counts(jax_moye.optimize(forward), q, k, v) == (1, 0, 0)
    assert counts(jax_moye.optimize(backward), q, k, v, d_o) == (1, 1, 0)
    # The body of the checkpoint has one of its own, for what its derivative needs.
    assert counts(jax_moye.optimize(recomputed), q, k, v, d_o) == (2, 1, 0)
    params = only(forward, q, k, v)
    assert params.diagonal == (0 if causal else None)
    assert params.scale == pytest.approx(0.25, rel=1e-6)  # of linen, too, which divides its queries
    before, after = assert_unchanged(backward, q, k, v, d_o)
    assert_unchanged(recomputed, q, k, v, d_o)
    expected = exact(q, k, v, d_o, causal)
    assert_as_exact(after, before, expected, dtype)
    for x, right in zip(after, expected, strict=True):  # the program is what the reference says
        assert np.abs(np.asarray(x, np.float64) - right).max() < 0.05 * np.abs(right).max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", GROUPED)
def test_queries_in_groups(rng, form, causal):
    """Heads of queries share keys: those are read as they are, or as they were repeated."""
    q, k, v, d_o = operands(rng, (B, T, S, 6, 2, D))
    fun = gradients(GROUPED[form], causal)
    assert counts(jax_moye.optimize(fun), q, k, v, d_o) == (1, 1, 0)
    before, after = assert_unchanged(fun, q, k, v, d_o)
    labels = dict(only(functools.partial(GROUPED[form], causal=causal), q, k, v).labels)
    assert "g" not in labels["k"]
    assert "g" in labels["q"]  # also where keys are repeated: they are read once
    assert_as_exact(after, before, exact(q, k, v, d_o, causal), jnp.bfloat16)


@pytest.mark.parametrize("sizes", [(1, 1, S, 1, 1, D), (B, 1, S, H, H, D), (B, 3, 40, H, H, 8), (1, T, S, H, H, D)])
def test_sizes(rng, sizes):
    """One row, as in decoding; fewer rows than keys, which see the ones before them; a batch of one."""
    q, k, v, d_o = operands(rng, sizes)
    for causal in (False, True):
        for form in ("by hand", "mapped"):
            fun = gradients(FORMS[form], causal)
            assert counts(jax_moye.optimize(fun), q, k, v, d_o)[:2] == (1, 1), form
            assert_unchanged(fun, q, k, v, d_o)
            # A single row that sees all has no mask.
            diagonal = only(functools.partial(FORMS[form], causal=causal), q, k, v).diagonal
            assert diagonal == (sizes[2] - sizes[1] if causal and sizes[1] > 1 else None)


def test_queries_without_rows(rng):
    q, k, v = arrays(rng, (B, H, D), (B, S, H, D), (B, S, H, D))

    def decode(q, k, v):
        scores = jnp.einsum("bhd,bkhd->bhk", q, k).astype(jnp.float32) * 0.25
        return jnp.einsum("bhk,bkhd->bhd", jax.nn.softmax(scores).astype(q.dtype), v)

    def seen(q, k, v):  # a row of a cache of which the first ten are full
        scores = jnp.einsum("bhd,bkhd->bhk", q, k).astype(jnp.float32) * 0.25
        scores = jnp.where(jnp.arange(S) < 10, scores, -1e30)
        return jnp.einsum("bhk,bkhd->bhd", jax.nn.softmax(scores).astype(q.dtype), v)

    for fun, diagonal in ((decode, None), (seen, 9)):
        assert counts(jax_moye.optimize(fun), q, k, v) == (1, 0, 0)
        assert only(fun, q, k, v).diagonal == diagonal
        assert_unchanged(fun, q, k, v)


def test_a_single_query_of_a_group_is_a_row(rng):
    """Without a mask heads that share keys are as good as rows: the more of them, the better."""
    q, k, v, _ = operands(rng, (B, 1, S, 8, 2, D))
    labels = dict(only(lambda q, k, v: GROUPED["in groups"](q, k, v, False), q, k, v).labels)
    assert labels["q"] == "A.BqD".replace("D", "d")


@pytest.mark.parametrize("own", [1, 3])
def test_other_scores_beside_a_cache(rng, own):
    """Decoding: the softmax is over the keys of a cache and a token's own."""
    q, keys, values, k, v = arrays(rng, (B, 1, H, D), *[(B, S, H, D)] * 2, *[(B, own, H, D)] * 2)

    def decode(q, keys, values, k, v, own_first=False):
        scores = [jnp.einsum("bqhd,bkhd->bhqk", q, one).astype(jnp.float32) for one in (keys, k)]
        order = slice(None, None, -1 if own_first else 1)
        shares = jax.nn.softmax(jnp.concatenate(scores[order], axis=-1) * 0.25).astype(q.dtype)
        of_keys, of_own = (
            (shares[..., own:], shares[..., :own]) if own_first else (shares[..., :-own], shares[..., -own:])
        )
        of_cache = jnp.einsum("bhqk,bkhd->bqhd", of_keys, values)
        return of_cache + jnp.einsum("bhqk,bkhd->bqhd", of_own, v)

    for fun in (decode, functools.partial(decode, own_first=True)):
        assert counts(jax_moye.optimize(fun), q, keys, values, k, v) == (1, 0, 2)
        assert only(fun, q, keys, values, k, v).others == pytest.approx(0.25)
        assert_unchanged(fun, q, keys, values, k, v)


def test_other_scores_that_are_not_taken_apart(rng):
    """Shares that are cut elsewhere, scores that were not rounded, gradients: left as they are."""
    q, keys, values, k, v = arrays(rng, (B, 2, H, D), *[(B, S, H, D)] * 2, *[(B, 2, H, D)] * 2)

    def decode(q, keys, values, k, v, cut=2, dtype=None):
        scores = [jnp.einsum("bqhd,bkhd->bhqk", q, x, preferred_element_type=dtype) for x in (keys, k)]
        shares = jax.nn.softmax(jnp.concatenate(scores, axis=-1).astype(jnp.float32)).astype(q.dtype)
        padded = jnp.pad(values, ((0, 0), (0, 2 - cut), (0, 0), (0, 0)))
        of_cache = jnp.einsum("bhqk,bkhd->bqhd", shares[..., : S + 2 - cut], padded)
        return of_cache + jnp.einsum("bhqk,bkhd->bqhd", shares[..., -cut:], v[:, -cut:])

    found = lambda fun, *args: counts(jax_moye.optimize(fun), *args)[:2]  # noqa: E731
    args = q, keys, values, k, v
    assert found(decode, *args) == (1, 0)
    assert found(functools.partial(decode, cut=1), *args) == (0, 0)
    assert found(functools.partial(decode, dtype=jnp.float32), *args) == (0, 0)
    of_sum = lambda *args: decode(*args).astype(jnp.float32).sum()  # noqa: E731
    assert found(jax.grad(of_sum, argnums=(0, 1, 2)), *args) == (0, 0)


def test_inside_of_loops_calls_and_maps(rng):
    q, k, v, d_o = operands(rng)
    of_two = lambda q, k, v: plain(q, k, v, True)  # noqa: E731

    def scanned(q, k, v):
        return lax.scan(lambda c, _: (of_two(c, k, v), None), q, length=2)[0]

    programs = {
        "scan": scanned,
        "scan of checkpoints": lambda q, k, v: lax.scan(lambda c, _: (jax.checkpoint(of_two)(c, k, v), 0), q, length=2)[
            0
        ],
        "jit": lambda q, k, v: jax.jit(of_two)(q, k, v),
        "cond": lambda q, k, v: lax.cond(q[0, 0, 0, 0] > 0, of_two, lambda q, k, v: q, q, k, v),
        "while": lambda q, k, v: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, of_two(c[1], k, v)), (0, q))[
            1
        ],
    }
    for name, fun in programs.items():
        assert counts(jax_moye.optimize(fun), q, k, v) == (1, 0, 0), name
        assert_unchanged(fun, q, k, v)
    of_scan = lambda *args: jax.vjp(programs["scan of checkpoints"], *args[:3])[1](args[3])  # noqa: E731
    assert counts(jax_moye.optimize(of_scan), q, k, v, d_o)[1] == 1
    assert_unchanged(of_scan, q, k, v, d_o)
    several = [jnp.stack([x, 2 * x]) for x in (q, k, v, d_o)]
    mapped = jax.vmap(gradients(plain, True))
    assert counts(jax_moye.optimize(mapped), *several) == (1, 1, 0)
    assert_unchanged(mapped, *several)


def test_a_part_of_the_gradients(rng):
    """What the program does not ask for is not computed."""
    q, k, v, d_o = operands(rng)
    for argnums in ((0,), (1,), (2,), (0, 2)):
        of_sum = lambda q, k, v, d_o: jnp.sum(plain(q, k, v, True) * d_o)  # noqa: E731
        fun = jax.value_and_grad(of_sum, argnums=argnums)
        assert counts(jax_moye.optimize(fun), q, k, v, d_o) == (1, 1, 0)
        assert_unchanged(fun, q, k, v, d_o)


def test_when_a_kernel_gives_what_rounding_took(rng):
    """Where delta is needed, and the program computes the derivative of its softmax in f32."""
    q, k, v, d_o = operands(rng)

    def has_rest(form, argnums):
        fun = jax_moye.optimize(jax.value_and_grad(lambda *x: jnp.sum(form(*x, True) * d_o), argnums))
        (equation,) = (one for one in jax.make_jaxpr(fun)(q, k, v).eqns if one.primitive is attention_p)
        assert len(equation.outvars) == 2 + equation.params["attention"].has_rest
        return equation.params["attention"].has_rest

    for name in ("plain", "by hand", "by logarithms", "of jax"):
        assert [has_rest(FORMS[name], argnums) for argnums in ((0,), (1,), (2,), (0, 1, 2))] == [
            True,
            True,
            False,
            True,
        ]
    assert not has_rest(FORMS["of 16 bits"], (0, 1, 2))


def test_products_that_round_less_than_a_kernel(rng):
    """Scores in f32 have a derivative in f32, which the program rounds to TF32, and a kernel takes in two parts."""
    q, k, v, d_o = operands(rng)

    def of_f32(q, k, v, causal, precision=None):
        of_product = {"precision": precision, "preferred_element_type": jnp.float32}
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, **of_product) * 0.25
        return _times(jax.nn.softmax(scores), v)

    assert counts(jax_moye.optimize(functools.partial(of_f32, causal=False)), q, k, v) == (1, 0, 0)
    parts = {None: 2, "BF16_BF16_F32": 1}  # the last one rounds it to 16 bits
    for precision, count in parts.items():
        fun = jax_moye.optimize(gradients(functools.partial(of_f32, precision=precision), False))
        assert counts(fun, q, k, v, d_o) == (1, 1, 0), precision
        assert f"ds_parts={count}" in str(jax.make_jaxpr(fun)(q, k, v, d_o)), precision
    for precision in ("highest", "high", "BF16_BF16_F32_X6"):
        fun = gradients(functools.partial(of_f32, precision=precision), False)
        assert counts(jax_moye.optimize(fun), q, k, v, d_o)[:2] == (0, 0), precision
    f16 = [x.astype(jnp.float16) for x in (q, k, v, d_o)]
    assert counts(jax_moye.optimize(gradients(of_f32, False)), *f16)[:2] == (0, 0)
    split = functools.partial(of_f32, causal=False, precision="BF16_BF16_F32_X3")
    assert counts(jax_moye.optimize(split), q, k, v)[0] == 0


def test_operands_that_are_converted_to_f32(rng):
    """Their products are those of 16 bits, whatever the precision; the derivative of scores is rounded to TF32."""
    q, k, v, d_o = operands(rng)

    def wide(q, k, v, causal, precision=None, factor=None):
        q, k = (x.astype(jnp.float32) for x in (q, k))
        q = q if factor is None else q * factor
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision=precision) * 0.25
        scores = jnp.where(jnp.tril(jnp.ones((T, S), bool)), scores, -1e9) if causal else scores
        return _times(jax.nn.softmax(scores), v)

    fun = gradients(wide, True)
    assert counts(jax_moye.optimize(fun), q, k, v, d_o) == (1, 1, 0)
    assert "ds_parts=2" in str(jax.make_jaxpr(jax_moye.optimize(fun))(q, k, v, d_o))
    before, after = assert_unchanged(fun, q, k, v, d_o)
    assert_as_exact(after, before, exact(q, k, v, d_o, True), jnp.bfloat16)
    of_highest = functools.partial(wide, causal=True, precision="highest")
    assert counts(jax_moye.optimize(of_highest), q, k, v) == (1, 0, 0)
    for precision in (None, "highest"):  # a kernel multiplies sums of exact products by the factor
        scaled = functools.partial(wide, causal=True, precision=precision, factor=0.3)
        assert counts(jax_moye.optimize(scaled), q, k, v) == (1, 0, 0)
    left = {"its derivative": (gradients(functools.partial(wide, precision="highest"), True), (q, k, v, d_o))}
    left["of two types"] = functools.partial(wide, causal=True), (q, k.astype(jnp.float16), v)
    for name, (other, args) in left.items():
        assert counts(jax_moye.optimize(other), *args)[:2] == (0, 0), name


def test_layers(rng):
    """Several in one program, each with its own mask; one array may be queries, keys and values."""
    q, k, v, d_o = operands(rng)

    def layers(q, k, v, d_o):
        for _ in range(3):
            q = q + plain(q, k, v, True)
        return jnp.sum(plain(q, q, q, True) * d_o)

    fun = jax.value_and_grad(layers, argnums=(0, 1, 2))
    assert counts(jax_moye.optimize(fun), q, k, v, d_o) == (4, 4, 0)
    assert_unchanged(fun, q, k, v, d_o)


def test_twice_differentiated(rng):
    """What is rewritten can be differentiated: as the program as it was."""
    q, k, v, d_o = operands(rng)
    of_sum = lambda q: jnp.vdot(plain(q, k, v, True), d_o).astype(jnp.float32)  # noqa: E731
    first = lambda q: jnp.vdot(jax.grad(of_sum)(q), d_o).astype(jnp.float32)  # noqa: E731
    after, before = (jax.grad(f)(q) for f in (jax_moye.optimize(first), first))
    np.testing.assert_allclose(np.asarray(after, np.float32), np.asarray(before, np.float32), atol=0.1)
    mapped = jax.vmap(jax_moye.optimize(of_sum))(jnp.stack([q, 2 * q]))
    np.testing.assert_allclose(mapped, [of_sum(q), of_sum(2 * q)], rtol=0.02)


# ------------------------------------------------------------------------------------------------- what is left alone


def _shares(q, k, scale=0.25):
    return jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * scale)


def _times(shares, v):
    return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(v.dtype), v)


def _scores(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)


def _traced(x):
    """A mask of keys that is made of an array."""
    return x[:, None, None, :, 0, 0] > 0


_NO_BAND = np.tril(np.ones((T, S), np.float32)) * (np.arange(S) != 3)
LEFT = {
    "the shares are returned": lambda q, k, v, d_o: (lambda p: (_times(p, v), p))(_shares(q, k)),
    "the scores are returned": lambda q, k, v, d_o: (lambda s: (_times(jax.nn.softmax(s), v), s))(
        jnp.einsum("bqhd,bkhd->bhqk", q, k)
    ),
    "their sum is read": lambda q, k, v, d_o: (lambda p: _times(p, v) * p.sum().astype(v.dtype))(_shares(q, k)),
    "a mask made of scores": lambda q, k, v, d_o: _times(
        (lambda s: jax.nn.softmax(jnp.where(s > -1, s, -1e30)))(jnp.einsum("bqhd,bkhd->bhqk", q, k)), v
    ),
    "masks of other numbers": lambda q, k, v, d_o: _times(
        jax.nn.softmax(jnp.where(_traced(d_o), jnp.where(_traced(k), _scores(q, k), -1e30), -1e10)), v
    ),
    "-inf behind another number": lambda q, k, v, d_o: _times(
        jax.nn.softmax(jnp.where(_traced(d_o), jnp.where(_traced(k), _scores(q, k), -jnp.inf), -1e10)), v
    ),
    "masks that are added": lambda q, k, v, d_o: _times(
        jax.nn.softmax(_scores(q, k) + jnp.where(_traced(d_o), 0, -1e30) + jnp.where(_traced(k), 0, -1e30)), v
    ),
    "an added number beside which a score is left": lambda q, k, v, d_o: _times(
        jax.nn.softmax(_scores(q, k).astype(jnp.float16) + jnp.where(_traced(k), 0, -65504).astype(jnp.float16)), v
    ),
    "a traced number where the mask is": lambda q, k, v, d_o: _times(
        jax.nn.softmax(jnp.where(_traced(k), _scores(q, k), -1e30 - d_o[0, 0, 0, 0].astype(jnp.float32))), v
    ),
    "shares that are masked": lambda q, k, v, d_o: _times(
        (lambda kept: jnp.where(kept, jax.nn.softmax(jnp.where(kept, _scores(q, k), -1e30)), 0))(_traced(k)), v
    ),
    "exponentials that are masked": lambda q, k, v, d_o: _times(
        (lambda e: e / e.sum(-1, keepdims=True))(
            (lambda s: jnp.where(_traced(k), jnp.exp(s - s.max(-1, keepdims=True)), 0))(
                jnp.where(_traced(k), _scores(q, k), -1e30)
            )
        ),
        v,
    ),
    "a mask that lets something through": lambda q, k, v, d_o: _times(
        jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((T, S), bool)), jnp.einsum("bqhd,bkhd->bhqk", q, k), -5.0)), v
    ),
    "a traced mask that lets all through": lambda q, k, v, d_o: _times(
        jax.nn.softmax(jnp.where(_traced(d_o) | jnp.ones(S, bool), _scores(q, k), -1e30)), v
    ),
    "a traced mask that adds nothing": lambda q, k, v, d_o: _times(
        jax.nn.softmax(_scores(q, k) + 0.0 * _traced(d_o)), v
    ),
    "a mask that makes scores 0": lambda q, k, v, d_o: _times(
        jax.nn.softmax(_scores(q, k) * _traced(k).astype(jnp.float32)), v
    ),
    "0 in the place of some scores, a number added to others": lambda q, k, v, d_o: _times(
        jax.nn.softmax(_scores(q, k) * _traced(k).astype(jnp.float32) - 1e30 * _traced(d_o).astype(jnp.float32)), v
    ),
    "a factor of floats that are no mask": lambda q, k, v, d_o: _times(
        (lambda m: jax.nn.softmax(_scores(q, k) * m - 1e30 * (1 - m)))(jnp.asarray(_NO_BAND)), v
    ),
    "heads and keys in one": lambda q, k, v, d_o: _times(
        jax.nn.softmax(_scores(q, k).transpose(0, 2, 1, 3).reshape(B, T, H * S)).reshape(B, T, H, S).swapaxes(1, 2), v
    ),
    "heads among others": lambda q, k, v, d_o: _times(
        jax.nn.softmax(_scores(q, k).reshape(B, H * T, S)).reshape(B, T, H, S).swapaxes(1, 2), v
    ),
    "the largest of a column": lambda q, k, v, d_o: _times(
        (lambda s: jax.nn.softmax(s - s.max(axis=2, keepdims=True)))(_scores(q, k)), v
    ),
    "another axis": lambda q, k, v, d_o: _times(jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=1), v),
    "the queries' axis": lambda q, k, v, d_o: _times(jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=2), v),
    "a traced scale": lambda q, k, v, d_o: _times(_shares(q, k, d_o[0, 0, 0, 0].astype(jnp.float32)), v),
    "a negative scale": lambda q, k, v, d_o: _times(_shares(q, k, -0.25), v),
    "float32": lambda q, k, v, d_o: _times(*(x.astype(jnp.float32) for x in (_shares(q, k), v))),
    "shares of f32": lambda q, k, v, d_o: jnp.einsum("bhqk,bkhd->bqhd", _shares(q, k), v.astype(jnp.float32)),
    "no softmax": lambda q, k, v, d_o: _times(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, v),
    "no division": lambda q, k, v, d_o: _times(
        (lambda s: jnp.exp(s - s.max(-1, keepdims=True)))(jnp.einsum("bqhd,bkhd->bhqk", q, k)), v
    ),
    "sums of squares": lambda q, k, v, d_o: _times(
        (lambda e: e / jnp.sum(e * e, -1, keepdims=True))(
            (lambda s: jnp.exp(s - s.max(-1, keepdims=True)))(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        ),
        v,
    ),
    "values of a larger width": lambda q, k, v, d_o: _times(_shares(q, k), jnp.concatenate([v, v], axis=-1)),
    "f32 that stays": lambda q, k, v, d_o: jnp.einsum(
        "bhqk,bkhd->bqhd", _shares(q, k).astype(v.dtype), v, preferred_element_type=jnp.float32
    ),
}


def without_attention(monkeypatch, fun, *args):
    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "with_attention", lambda jaxpr, parameters, rewrite: jaxpr)
        return without_addresses(jax.make_jaxpr(jax_moye.optimize(fun))(*args))


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_it_is(rng, monkeypatch, name):
    args = operands(rng)
    fun = LEFT[name]

    def derivative(*args):
        out, pullback = jax.vjp(fun, *args)
        return pullback(out)

    for program in (fun, derivative):
        after = without_addresses(jax.make_jaxpr(jax_moye.optimize(program))(*args))
        assert "jax_moye_attention" not in after
        assert after == without_attention(monkeypatch, program, *args)


def test_what_else_reads_a_derivative(rng, monkeypatch):
    """A program that uses the derivative by the shares, or by the scores, for something else."""
    q, k, v, d_o = operands(rng)

    def by_shares(q, k, v, d_o):
        shares, pullback = jax.vjp(lambda q, k: _shares(q, k), q, k)
        dp = jnp.einsum("bqhd,bkhd->bhqk", d_o, v)
        return _times(shares, v), *pullback(dp.astype(jnp.float32)), dp.sum()

    def wrong(q, k, v, d_o):  # no derivative: the sum is missing
        shares = _shares(q, k)
        dp = jnp.einsum("bqhd,bkhd->bhqk", d_o, v).astype(jnp.float32)
        return _times(shares, v), _times(shares * dp, k)

    def of_other_columns(q, k, v, d_o):  # no derivative: a sum of what is behind a mask, and of all
        mask = jnp.tril(jnp.ones((T, S), bool))
        shares = jax.nn.softmax(jnp.where(mask, _scores(q, k), -1e30))
        dp = jnp.einsum("bqhd,bkhd->bhqk", d_o, v).astype(jnp.float32)
        kept = jnp.where(mask, dp, 0)
        ds = shares * (dp - (shares * dp).sum(-1, keepdims=True) + (kept - dp).sum(-1, keepdims=True))
        return _times(shares, v), _times(ds, k)

    for fun in (by_shares, wrong, of_other_columns):
        assert counts(jax_moye.optimize(fun), q, k, v, d_o)[:2] == (0, 0)
        assert str(jax.make_jaxpr(jax_moye.optimize(fun))(q, k, v, d_o)) == without_attention(
            monkeypatch, fun, q, k, v, d_o
        )


def test_options(rng):
    q, k, v, _ = operands(rng)
    fun = jax_moye.optimize(lambda q, k, v: plain(q, k, v, True))
    with jax_moye.options(implementation="xla"):
        assert counts(fun, q, k, v)[0] == 0
    with jax_moye.options(deterministic=True, batch_invariant=True):
        request = only(lambda q, k, v: plain(q, k, v, True), q, k, v).request
    assert request.deterministic
    assert request.batch_invariant


def test_head_dims_and_sizes_that_no_kernel_has(rng, monkeypatch):
    from jax_moye._selection import attention

    fun = functools.partial(plain, causal=True)
    for d in (12, 136):
        assert counts(jax_moye.optimize(fun), *operands(rng, (B, T, S, H, H, d))[:3])[0] == 0
    monkeypatch.setattr(attention, "LEAST_SCORES", B * H * T * S + 1)
    assert counts(jax_moye.optimize(lambda *args: fun(*args)), *operands(rng)[:3])[0] == 0
    with jax_moye.options(implementation="moye"):
        assert counts(jax_moye.optimize(lambda *args: fun(*args)), *operands(rng)[:3])[0] == 1
