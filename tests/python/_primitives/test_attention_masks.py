"""Masks of attention in jaxprs: those that are found, what a kernel is told, and rows of which no score counts."""

from __future__ import annotations

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.attentions import (
    B,
    D,
    H,
    S,
    T,
    arrays,
    assert_as_exact,
    counts,
    exact_behind,
    needs_rows,
    operands,
    use_fake_rows,
)

import jax_moye
from jax_moye._primitives import attention_finding
from jax_moye._primitives.attention import attention_grad_p, attention_p

needs_flax = pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="flax is not installed")
LOW = float(0.7 * jnp.finfo(jnp.float32).min)
ROW, KEY = np.arange(T)[:, None], np.arange(S)[None]


def scores_of(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5


def weighted(scores, v):
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(v.dtype), v)


def chosen(q, k, v, mask, low=LOW):
    return weighted(jnp.where(mask, scores_of(q, k), low), v)


def gradients(fun):
    """The result, and the derivatives by q, k and v, of a function of these and of what makes a mask."""

    def of_all(q, k, v, d_o, *others):
        out, pullback = jax.vjp(lambda q, k, v: fun(q, k, v, *others), q, k, v)
        return (out, *pullback(d_o))

    return of_all


def assert_unchanged(fun, *args):
    """On a CPU the equations as they were run."""
    before, after = (jax.tree.leaves(jax.jit(f)(*args)) for f in (fun, jax_moye.optimize(fun)))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float64), np.asarray(y, np.float64))
        assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type)
    return before


def found_in(fun, *args, primitive=attention_p):
    """The parameters of the attentions of a program, and the shapes of their masks."""

    def of(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive is primitive:
                params = equation.params["attention"]
                at = {attention_p: 3, attention_grad_p: 6}[primitive] + (params.others is not None)
                yield params, equation.invars[at].aval.shape if params.has_mask else None
            for name in ("jaxpr", "call_jaxpr"):
                if name in equation.params:
                    yield from of(getattr(equation.params[name], "jaxpr", equation.params[name]))

    return list(of(jax.make_jaxpr(jax_moye.optimize(fun))(*args).jaxpr))


def lengths(*of):
    return jnp.array(of, jnp.int32)


SEGMENTS = np.array([[0] * 9 + [1] * (T - 9), [3] * 5 + [5] * (T - 5)])
KEPT = (np.random.default_rng(3).random((B, 1, T, S)) < 0.6) | (ROW == KEY)
KEPT[1, 0, 3] = KEPT[0, 0, 20] = False  # two queries see nothing
LENGTHS = np.array([20, 13])
PADDING, NONE_FIRST = LENGTHS[:, None, None, None] > KEY, np.array([0, 13])[:, None, None, None] > KEY
OF_HEADS = np.array([True, False])[:, None, None]
CAUSAL, WINDOW = ROW >= KEY, (ROW >= KEY) & (ROW - KEY < 4)
of_jax = functools.partial(jax.nn.dot_product_attention, implementation="xla")


def causal():
    return jnp.tril(jnp.ones((T, S), bool))


def before(n):
    """Of each sequence the keys in front of its length, as programs write it."""
    return (jnp.arange(S)[None] < n[:, None])[:, None, None]


def of_16_bits(q, k, v, mask):
    scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e30) / 4
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def by_hand(q, k, v, mask):
    scores = jnp.where(mask, scores_of(q, k), -1e30)
    e = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", (e / jnp.sum(e, axis=-1, keepdims=True)).astype(q.dtype), v)


def of_two(q, k, v, mask, kept, low=LOW):
    return weighted(jnp.where(kept, jnp.where(mask, scores_of(q, k), LOW), low), v)


def behind_a_diagonal(q, k, v, mask, low=-1e9, lower=-jnp.inf):
    return weighted(jnp.where(causal(), jnp.where(mask, scores_of(q, k), low), lower), v)


def mapped(q, k, v, n):
    """Of one head of one sequence, mapped."""

    def of_head(q, k, v, n):
        scores = jnp.where(jnp.arange(S) < n, (q @ k.T).astype(jnp.float32) * 0.25, -1e30)
        return jax.nn.softmax(scores).astype(v.dtype) @ v

    return jax.vmap(jax.vmap(of_head, in_axes=(1, 1, 1, None), out_axes=1))(q, k, v, n)


def inside_of_a_call(q, k, v, n):
    return weighted(jax.jit(lambda s, n: jnp.where(before(n), s, LOW))(scores_of(q, k), n), v)


def left_out(q, k, v, mask):
    return weighted(jnp.where(mask, -1e9, scores_of(q, k)), v)


def of_lengths(q, k, v, n):
    return chosen(q, k, v, before(n))


def of_segments(q, k, v, ids):
    return chosen(q, k, v, (ids[:, :, None] == ids[:, None])[:, None])


def causal_and(q, k, v, mask):
    return chosen(q, k, v, causal() & mask)


def of_both(q, k, v, tokens):
    return chosen(q, k, v, causal() & (tokens[:, None, :, None] & tokens[:, None, None]))


def in_floats(q, k, v, mask):
    return chosen(q, k, v, causal().astype(jnp.float32) * mask.astype(jnp.float32) > 0)


def triangle(of, at):
    return of(jnp.ones((T, S), bool), at)


def window(q, k, v):
    return chosen(q, k, v, causal() & (jnp.arange(T)[:, None] - jnp.arange(S) < 4))


def jax_lengths(q, k, v, n, **options):
    return of_jax(q, k, v, key_value_seq_lengths=n, **options)


def jax_all(q, k, v, mask, n):
    return of_jax(q, k, v, mask=mask, is_causal=True, key_value_seq_lengths=n, local_window_size=4)


def in_the_place_of_zeros(q, k, v, mask):  # as GPT-2 was published
    kept = mask.astype(jnp.float32)
    return weighted(scores_of(q, k) * kept - 1e10 * (1 - kept), v)


def logarithms(q, k, v):
    ones = jnp.ones((T, S))
    return weighted(scores_of(q, k) + jnp.log(jnp.triu(jnp.tril(ones), -3)), v)


def added_twice(q, k, v, mask):
    biases = (jnp.where(x, 0, -jnp.inf) for x in (causal(), mask))
    return weighted(scores_of(q, k) + sum(biases), v)


def less_the_largest(q, k, v, mask):
    scores = jnp.where(mask, scores_of(q, k), -1e30)
    return weighted(scores - lax.stop_gradient(scores.max(axis=-1, keepdims=True)), v)


def cleared(q, k, v):
    shares = jnp.where(causal(), jax.nn.softmax(jnp.where(causal(), scores_of(q, k), LOW)), 0)
    return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(v.dtype), v)


def of_softmax_where(q, k, v):
    shares = jax.nn.softmax(scores_of(q, k), where=causal())
    return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(v.dtype), v)


FLOATS, NO_BAND = np.tril(np.ones((1, 1, T, S), np.float32)), KEPT[1, 0] & (ROW != 5) | (ROW == KEY)

# The program, what it is given beside q, k and v, its mask, the shape of a kernel's, and a kernel's diagonal.
MASKS = {
    "an argument": (chosen, [KEPT], KEPT, (B, 1, T, S), None),
    "without a batch": (chosen, [KEPT[0, 0]], KEPT[:1], (T, S), None),
    "of heads": (chosen, [OF_HEADS], OF_HEADS, (H, 1, 1), None),
    "padding": (chosen, [PADDING], PADDING, (B, 1, 1, S), None),
    "of queries": (chosen, [PADDING.swapaxes(2, 3)], PADDING.swapaxes(2, 3), (B, 1, T, 1), None),
    "a flag": (chosen, [np.array(False)], np.array(False), (), None),
    "left out where true": (left_out, [~PADDING], PADDING, (B, S), None),
    "lengths": (of_lengths, [LENGTHS], PADDING, (B, S), None),
    "no length": (of_lengths, [np.array([0, 13])], NONE_FIRST, (B, S), None),
    "segments": (of_segments, [SEGMENTS], (SEGMENTS[:, :, None] == SEGMENTS[:, None])[:, None], (B, T, S), None),
    "of 16 bits": (of_16_bits, [PADDING], PADDING, (B, 1, 1, S), None),
    "by hand": (by_hand, [KEPT], KEPT, (B, 1, T, S), None),
    "mapped": (mapped, [LENGTHS], PADDING, (B, S), None),
    "inside of a call": (inside_of_a_call, [LENGTHS], PADDING, (B, S), None),
    "causal and padding": (causal_and, [PADDING], PADDING & CAUSAL, (B, 1, 1, S), 0),
    "padding on the left": (causal_and, [PADDING[..., ::-1]], PADDING[..., ::-1] & CAUSAL, (B, 1, 1, S), 0),
    "padding of both": (of_both, [PADDING[:, 0, 0]], PADDING & PADDING.swapaxes(2, 3) & CAUSAL, (B, T, S), 0),
    "all in floats": (in_floats, [PADDING], PADDING & CAUSAL, (B, 1, 1, S), 0),
    "tril of a mask": (lambda q, k, v, x: chosen(q, k, v, jnp.tril(x)), [KEPT], KEPT & CAUSAL, (B, 1, T, S), 0),
    "two masks": (of_two, [PADDING, KEPT], PADDING & KEPT, (B, T, S), None),
    "either of two": (lambda q, k, v, x, y: chosen(q, k, v, x | y), [PADDING, KEPT], PADDING | KEPT, (B, T, S), None),
    "neither": (lambda q, k, v, x, y: chosen(q, k, v, ~(x | y)), [~PADDING, ~KEPT], PADDING & KEPT, (B, T, S), None),
    "a window": (window, [], WINDOW, (T, S), 0),
    "a constant": (lambda q, k, v: chosen(q, k, v, WINDOW), [], WINDOW, (T, S), 0),
    "a constant diagonal": (lambda q, k, v: chosen(q, k, v, CAUSAL), [], CAUSAL, None, 0),
    "a constant without a diagonal": (lambda q, k, v: chosen(q, k, v, NO_BAND), [], NO_BAND, (T, S), None),
    "constant floats": (lambda q, k, v, x: chosen(q, k, v, x * FLOATS), [PADDING], PADDING & CAUSAL, (B, 1, 1, S), 0),
    "shares behind the mask": (cleared, [], CAUSAL, None, 0),
    "jax: softmax": (of_softmax_where, [], CAUSAL, None, 0),
    "in the place of zeros": (in_the_place_of_zeros, [KEPT], KEPT, (B, 1, T, S), None),
    "logarithms": (logarithms, [], WINDOW, (T, S), 0),
    "less the largest": (less_the_largest, [KEPT], KEPT, (B, 1, T, S), None),
    "-inf twice": (added_twice, [PADDING], PADDING & CAUSAL, (B, 1, 1, S), 0),
    "from a diagonal on": (lambda q, k, v: chosen(q, k, v, triangle(jnp.triu, 0)), [], ROW <= KEY, (T, S), None),
    "a row without a key": (lambda q, k, v: chosen(q, k, v, triangle(jnp.tril, -1)), [], ROW > KEY, (T, S), None),
    "the first keys": (lambda q, k, v: chosen(q, k, v, jnp.arange(S) < 10), [], KEY < 10, (S,), None),
    "-inf": (functools.partial(chosen, low=-jnp.inf), [PADDING], PADDING, (B, 1, 1, S), None),
    "jax: mask": (lambda q, k, v, mask: of_jax(q, k, v, mask=mask), [KEPT], KEPT, (B, 1, T, S), None),
    "jax: lengths": (jax_lengths, [LENGTHS], PADDING, (B, 1, S), None),
    "jax: a window": (lambda q, k, v: of_jax(q, k, v, local_window_size=(3, 0)), [], WINDOW, (T, S), None),
    "jax: causal, lengths": (
        functools.partial(jax_lengths, is_causal=True),
        [LENGTHS],
        PADDING & CAUSAL,
        (B, 1, S),
        0,
    ),
    "jax: all": (jax_all, [KEPT, LENGTHS], KEPT & PADDING & CAUSAL & (ROW - KEY <= 4), (B, T, S), 0),
}


@pytest.fixture(autouse=True)
def fake_rows(request, monkeypatch):
    if "emulator" not in request.node.name:
        use_fake_rows(monkeypatch)


@pytest.mark.parametrize("name", MASKS)
def test_masks(rng, name):
    """The forward pass and the derivative: found, with this mask, and what they were; and that is what a mask means."""
    forward, others, mask, shape, diagonal = MASKS[name]
    args, others = operands(rng), [jnp.asarray(x) for x in others]
    for fun, given in ((forward, args[:3]), (gradients(forward), args)):
        ((params, found),) = found_in(fun, *given, *others)
        assert (found, params.diagonal) == (shape, diagonal)
        assert params.mask_is_infinite == name.startswith("-inf")
        program = assert_unchanged(fun, *given, *others)
    assert counts(jax_moye.optimize(gradients(forward)), *args, *others) == (1, 1, 0)
    expected = exact_behind(*args, mask)
    for x, right in zip(program, expected, strict=True):
        assert np.abs(np.asarray(x, np.float64) - right).max() <= 0.05 * np.abs(right).max()


# ------------------------------------------------------------------------------------------ other ways to write a mask


def added(q, k, v, mask, low=-1e10, dtype=jnp.float32):
    bias = jnp.where(mask, 0, low).astype(dtype)
    return weighted(scores_of(q, k).astype(dtype) + bias, v)


def multiplied(q, k, v, mask, low=-1e30):
    return weighted(scores_of(q, k) + (1 - mask.astype(jnp.float32)) * low, v)


def added_in_parts(q, k, v, mask):  # as Flax's models write it
    bias = lax.select(
        mask > 0, jnp.full(mask.shape, 0.0, v.dtype), jnp.full(mask.shape, jnp.finfo(v.dtype).min, v.dtype)
    )
    return weighted((jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 + bias), v)


ADDED = {
    "added": added,
    "of 16 bits": functools.partial(added, low=-1e9, dtype=jnp.bfloat16),
    "multiplied": multiplied,
    "in parts": added_in_parts,
    "-inf": functools.partial(added, low=-jnp.inf),
    "of -1e9": functools.partial(added, low=-1e9),
}


@pytest.mark.parametrize("name", ADDED)
def test_masks_that_are_added(rng, name):
    """Rows of which no score counts included: their scores have gradients, as those of every other row."""
    args = operands(rng)
    kept = (KEPT | (ROW == KEY)) if name == "-inf" else KEPT
    for fun, given in ((ADDED[name], args[:3]), (gradients(ADDED[name]), args)):
        ((params, shape),) = found_in(fun, *given, jnp.asarray(kept))
        assert (shape, params.mask_is_infinite) == ((B, 1, T, S), name == "-inf")
        assert params.scores_have_gradients == (len(given) == 4)
        program = assert_unchanged(fun, *given, jnp.asarray(kept))
    assert counts(jax_moye.optimize(gradients(ADDED[name])), *args, jnp.asarray(kept)) == (1, 1, 0)
    for x, right in zip(program, exact_behind(*args, kept, is_added=True), strict=True):
        assert np.abs(np.asarray(x, np.float64) - right).max() <= 0.05 * np.abs(right).max()


def added_in_front_of_a_diagonal(q, k, v, mask):
    """Of what is behind the diagonal there is no mean: a row's depends on where it is."""
    bias = jnp.where(causal() & mask, 0.0, -1e9)
    return weighted(jnp.where(causal(), scores_of(q, k) + bias, -jnp.inf), v)


def test_what_is_left_says_why(rng, monkeypatch):
    said = []
    monkeypatch.setattr(attention_finding, "say_once", lambda level, message: said.append(message))
    q, k, v, d_o = operands(rng)
    assert found_in(gradients(added_in_front_of_a_diagonal), q, k, v, d_o, jnp.asarray(PADDING)) == []
    assert "a row all of whose scores are masked has a derivative, and none of a kernel's" in said[0]
    said.clear()
    other = functools.partial(of_two, low=-1e9)
    assert found_in(other, q, k, v, jnp.asarray(PADDING), jnp.asarray(KEPT)) == []
    assert "a row all of whose scores are masked has no one number in their place" in said[0]
    said.clear()
    zeroed = lambda q, k, v, mask: jnp.einsum(  # noqa: E731
        "bhqk,bkhd->bqhd", jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores_of(q, k), LOW)), 0).astype(v.dtype), v
    )
    assert found_in(zeroed, q, k, v, jnp.asarray(KEPT)) == []
    assert "a row all of whose scores are masked is 0 behind its mask, and none of a kernel's" in said[0]


def test_known_masks_that_are_added_have_gradients(rng):
    """Each row has a score that counts."""
    args = operands(rng)
    fun = gradients(lambda q, k, v: added(q, k, v, causal() & (jnp.arange(T)[:, None] - jnp.arange(S) < 4)))
    assert counts(jax_moye.optimize(fun), *args) == (1, 1, 0)
    ((params, shape),) = found_in(fun, *args, primitive=attention_grad_p)
    assert (shape, params.diagonal) == ((T, S), 0)
    results = assert_unchanged(fun, *args)
    assert_as_exact(results, results, exact_behind(*args, WINDOW), jnp.bfloat16)


@pytest.mark.parametrize(("low", "lower"), [(-1e9, -np.inf), (-1e9, -1e30), (-np.inf, -np.inf)])
def test_a_diagonal_behind_a_mask(rng, low, lower):
    """What is behind it has less weight than what the mask leaves out: it is part of no mean."""
    args, fun = operands(rng), gradients(functools.partial(behind_a_diagonal, low=low, lower=lower))
    left = PADDING[..., ::-1] | (ROW == KEY) if low == -np.inf else PADDING[..., ::-1]
    ((params, shape),) = found_in(fun, *args, jnp.asarray(left))
    assert (shape, params.diagonal, params.means_of_all) == (left.shape, 0, False)
    results = assert_unchanged(fun, *args, jnp.asarray(left))
    expected = exact_behind(*args, left & CAUSAL, np.where(CAUSAL, -1e9, -1e30))
    assert_as_exact(results, results, expected, jnp.bfloat16)


def test_a_diagonal_behind_itself(rng):
    """A mean is of what is in front of the outermost diagonal, even if the mask inside has the same one."""
    q, k, v, d_o = operands(rng)
    left = jnp.asarray(PADDING[..., ::-1])
    ((params, _),) = found_in(added_in_front_of_a_diagonal, q, k, v, left)
    assert (params.diagonal, params.means_of_all) == (0, False)
    (out,) = assert_unchanged(added_in_front_of_a_diagonal, q, k, v, left)
    expected = exact_behind(q, k, v, d_o, left & CAUSAL, np.where(CAUSAL, -1e9, -1e30))[0]
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=0.05)


# ----------------------------------------------------------------------------------------------------- in the emulator


def emulated(fun, *args):
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(fun)).lower(*args)
        text = lowered.as_text()
        return [text.count(f"attention{of}_v1(") for of in ("", "_grad")], lowered.compile()(*args)


EMULATED = (
    "an argument",
    "without a batch",
    "a flag",
    "no length",
    "causal and padding",
    "padding on the left",
    "of queries",
    "a row without a key",
    "jax: all",
)


@needs_rows
@pytest.mark.parametrize("name", EMULATED)
def test_in_the_emulator(rng, name):
    """A kernel's results are as near to the exact ones as the program's, rows of which no score counts included."""
    forward, others, mask, *_ = MASKS[name]
    args, others = operands(rng), [jnp.asarray(x) for x in others]
    fun = gradients(forward)
    found, results = emulated(fun, *args, *others)
    assert found == [1, 1]
    assert_as_exact(results, jax.jit(fun)(*args, *others), exact_behind(*args, mask), jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("name", ["added", "in parts", "-inf"])
def test_masks_that_are_added_in_the_emulator(rng, name):
    """What a kernel has of rows of which no score counts, and what XLA adds to it: behind a diagonal, in groups."""
    args = operands(rng, (B, T, S, 4, 2, D))
    left = jnp.asarray(PADDING[..., ::-1] if name == "in parts" else KEPT)

    def forward(q, k, v, mask):
        mask = causal() & mask if name == "in parts" else mask
        return ADDED[name](q, *(jnp.repeat(x, 2, axis=2) for x in (k, v)), mask)

    fun = gradients(forward)
    with jax_moye.options(interpret=True):
        ((params, _),) = found_in(fun, *args, left, primitive=attention_grad_p)
    assert params.means_of_all == (name == "in parts")
    found, results = emulated(fun, *args, left)
    assert found == [1, 2]  # of which one runs
    program = jax.jit(fun)(*args, left)
    mask = np.asarray(left) & CAUSAL if name == "in parts" else np.asarray(left)
    low = -np.inf if name == "-inf" else -1e30
    for result, other, right in zip(results, program, exact_behind(*args, mask, low, is_added=True), strict=True):
        assert (np.isnan(result) == np.isnan(right)).all()
        assert np.isnan(right).any() == (name == "-inf")
        assert_as_exact(*([np.nan_to_num(np.asarray(x, np.float64))] for x in (result, other, right)), jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("dims", ["bk", "bngk", "bnqk", "bgqk", "bqk", "n"])
def test_groups_in_the_emulator(rng, dims):
    """Heads of queries share keys: a mask may be along either of them, and lies in memory as it does."""
    args = operands(rng, (B, S, S, 6, 3, D))
    sizes = {"b": B, "n": 3, "g": 2, "q": S, "k": S}
    kept = rng.random([sizes[x] if x in dims else 1 for x in sizes]) < 0.5
    moved = jnp.asarray(np.moveaxis(kept, -1, 0))  # keys first

    def forward(q, k, v, mask):
        grouped = q.reshape(B, S, 3, 2, D)
        scores = jnp.einsum("btngd,bsnd->bngts", grouped, k).astype(jnp.float32) * 0.25
        scores = jnp.where(jnp.moveaxis(mask, 0, -1) & causal(), scores, LOW)
        return jnp.einsum("bngts,bsnd->btngd", jax.nn.softmax(scores).astype(q.dtype), v).reshape(q.shape)

    fun = gradients(forward)
    found, results = emulated(fun, *args, moved)
    assert found == [1, 1]
    mask = np.broadcast_to(kept & CAUSAL, (B, 3, 2, S, S)).reshape(B, 6, S, S)
    assert_as_exact(results, jax.jit(fun)(*args, moved), exact_behind(*args, mask), jnp.bfloat16)


@needs_rows
def test_rows_of_minus_infinity_in_the_emulator(rng):
    """NaN, as the program's; other rows are as without such a row."""
    q, k, v, d_o = operands(rng)
    forward = functools.partial(chosen, low=-jnp.inf)
    found, out = emulated(forward, q, k, v, jnp.asarray(KEPT))
    assert found == [1, 0]
    right = exact_behind(q, k, v, d_o, KEPT, -np.inf)[0]
    assert np.isnan(right).any()
    np.testing.assert_allclose(np.asarray(out, np.float64), right, atol=0.05)


# ------------------------------------------------------------------------------------------------------------ decoding


def decode(q, keys, values, k, v, position):
    """A token sees a cache up to itself, where its own key and value are written first."""
    keys, values = (lax.dynamic_update_slice(x, y, (0, position, 0, 0)) for x, y in ((keys, k), (values, v)))
    scores = jnp.where(jnp.arange(S) <= position, scores_of(q, keys), LOW)
    return weighted(scores, values), keys, values


def beside(q, keys, values, k, v, n):
    """A token sees the keys of a cache in front of its length, and itself beside them."""
    scores = [jnp.einsum("bqhd,bkhd->bhqk", q, x).astype(jnp.float32) * 0.25 for x in (keys, k)]
    scores[0] = jnp.where((jnp.arange(S)[None] < n[:, None])[:, None, None], scores[0], -jnp.inf)
    shares = jax.nn.softmax(jnp.concatenate(scores, axis=-1)).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", shares[..., :-1], values) + jnp.einsum("bhqk,bkhd->bqhd", shares[..., -1:], v)


def of_decoding(rng):
    return arrays(rng, (B, 1, H, D), *[(B, S, H, D)] * 2, *[(B, 1, H, D)] * 2)


def test_decoding_one_token(rng):
    args = of_decoding(rng)
    ((params, shape),) = found_in(decode, *args, jnp.int32(7))
    assert (shape, params.diagonal, params.mask_is_infinite) == ((S,), None, False)
    assert_unchanged(decode, *args, jnp.int32(7))
    ((params, shape),) = found_in(beside, *args, lengths(0, 7))
    assert (shape, params.others, params.mask_is_infinite) == ((B, S), 1.0, False)
    assert_unchanged(beside, *args, lengths(0, 7))


@needs_rows
def test_decoding_in_the_emulator(rng):
    q, keys, values, k, v = args = of_decoding(rng)
    found, (out, new_keys, new_values) = emulated(decode, *args, jnp.int32(7))
    assert found == [1, 0]
    expected = exact_behind(q, new_keys, new_values, q, np.arange(S) <= 7)[:1]
    assert_as_exact([out], [decode(*args, jnp.int32(7))[0]], expected, jnp.bfloat16)
    found, out = emulated(beside, *args, lengths(0, 7))  # of a cache that is still empty
    assert found == [1, 0]
    joined = [jnp.concatenate(pair, axis=1) for pair in ((keys, k), (values, v))]
    mask = (np.arange(S + 1) < np.array([[0], [7]])) | (np.arange(S + 1) == S)
    expected = exact_behind(q, *joined, q, mask[:, None, None])[:1]
    assert_as_exact([out], [beside(*args, lengths(0, 7))], expected, jnp.bfloat16)


# ---------------------------------------------------------------------------------------------------------------- Flax


@needs_flax
@pytest.mark.parametrize("of", ["linen", "nnx"])
def test_flax(rng, of):
    """A layer with a causal mask and padding, in floats as Flax has them, and its derivative by the input."""
    import flax.linen as nn
    from flax import nnx

    x, d_o = arrays(rng, (B, T, H * D), (B, T, H * D))
    tokens = jnp.asarray(PADDING[:, 0, 0]).astype(jnp.float32)
    sizes = {"num_heads": H, "qkv_features": H * D, "dtype": jnp.bfloat16}
    if of == "linen":
        layer = nn.MultiHeadDotProductAttention(**sizes)
        variables = layer.init(jax.random.key(0), x)
        apply = functools.partial(layer.apply, variables)
    else:
        apply = nnx.MultiHeadAttention(in_features=H * D, decode=False, rngs=nnx.Rngs(0), **sizes)
    tools = nn if of == "linen" else nnx

    def forward(x, tokens):
        mask = tools.combine_masks(tools.make_causal_mask(tokens), tools.make_attention_mask(tokens, tokens))
        return apply(x, mask=mask)

    def derivative(x, tokens, d_o):
        out, pullback = jax.vjp(lambda x: forward(x, tokens), x)
        return (out, *pullback(d_o))

    for fun, given in ((forward, (x, tokens)), (derivative, (x, tokens, d_o))):
        ((params, shape),) = found_in(fun, *given)
        assert (shape, params.diagonal, params.means_of_all) == ((B, 1, T, S), 0, True)
        assert_unchanged(fun, *given)
    assert counts(jax_moye.optimize(derivative), x, tokens, d_o)[:2] == (1, 1)


@needs_rows
@pytest.mark.parametrize("name", ["padding", "padding on the left", "added"])
def test_parts_of_one_array_in_the_emulator(rng, name):
    """Queries, keys and values that are parts of one array, which XLA reads, too, for rows of which no score counts."""
    forward, (given,), mask, *_ = (added, [KEPT], KEPT) if name == "added" else MASKS[name]
    (x,) = arrays(rng, (B, T, H, 3 * 16))
    q, k, v = (x[..., 16 * i : 16 * i + 16] for i in range(3))
    d_o = arrays(rng, (B, T, H, 16))[0]

    def fun(x, d_o, given):
        out, pullback = jax.vjp(lambda x: forward(*jnp.split(x, 3, axis=-1), given), x)
        return (out, *jnp.split(*pullback(d_o), 3, axis=-1))

    found, results = emulated(fun, x, d_o, jnp.asarray(given))
    assert found == [1, 1 + (name == "added")]
    expected = exact_behind(q, k, v, d_o, mask, is_added=name == "added")
    assert_as_exact(results, jax.jit(fun)(x, d_o, jnp.asarray(given)), expected, jnp.bfloat16)
