"""Attention whose scores a policy of jax.checkpoint saves: it is found, they are not saved, and values are the same."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from python.attentions import (
    FORMS,
    GROUPED,
    ROUNDING,
    D,
    H,
    T,
    assert_as_exact,
    counts,
    exact,
    gradients,
    mask_of,
    needs_rows,
    operands,
    products_in_tf32,
    use_fake_rows,
)

import jax_moye
from jax_moye._primitives.equations import is_checkpoint

DOTS = jax.checkpoint_policies.checkpoint_dots
WITHOUT_BATCHES = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


@pytest.fixture
def fake_rows(monkeypatch):
    use_fake_rows(monkeypatch)


def saving(fun, policy=DOTS):
    return lambda q, k, v, causal: jax.checkpoint(lambda *x: fun(*x, causal), policy=policy)(q, k, v)


def sizes_given(fun, *args):
    """The numbers of elements of what checkpoints are given."""
    jaxpr = jax.make_jaxpr(fun)(*args)
    return {x.aval.size for one in jaxpr.eqns if is_checkpoint(one) for x in one.invars}


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms(rng, form, causal):
    """The body of the checkpoint has the derivative alone; it is given no array of all pairs."""
    args = operands(rng, (2, 24, 32, 2, 2, 16))
    fun = gradients(saving(FORMS[form]), causal)
    found = jax_moye.optimize(fun)
    assert counts(found, *args) == (1, 1, 0)
    assert 2 * 2 * 24 * 32 in sizes_given(fun, *args)
    assert 2 * 2 * 24 * 32 not in sizes_given(found, *args)
    assert_as_exact(jax.jit(found)(*args), jax.jit(fun)(*args), exact(*args, causal), jnp.bfloat16)


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("form", [x for x in GROUPED if x != "repeated"])
def test_queries_in_groups(rng, form):
    args = operands(rng, (2, 24, 24, 6, 2, 16))
    fun = gradients(saving(GROUPED[form]), True)
    assert counts(jax_moye.optimize(fun), *args) == (1, 1, 0)
    assert_as_exact(jax.jit(jax_moye.optimize(fun))(*args), jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)


def _named(q, k, v, causal):
    scores = checkpoint_name(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * 0.25, "scores")
    scores = checkpoint_name(jnp.where(mask_of(q, k), scores, -1e30) if causal else scores, "masked")
    weights = checkpoint_name(jax.nn.softmax(scores).astype(q.dtype), "weights")
    return checkpoint_name(jnp.einsum("bhqk,bkhd->bqhd", weights, v), "result")


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("saved", ["scores", "masked", "weights", "scores, weights, result", "result", "nothing"])
def test_policies_of_names(rng, saved):
    """Of a result alone, or of nothing, the body computes its attention anew."""
    args = operands(rng, (2, 24, 32, 2, 2, 16))
    fun = gradients(saving(_named, jax.checkpoint_policies.save_only_these_names(*saved.split(", "))), True)
    found = jax_moye.optimize(fun)
    assert counts(found, *args) == ((2, 1, 0) if saved in ("result", "nothing") else (1, 1, 0))
    assert 2 * 2 * 24 * 32 not in sizes_given(found, *args)
    assert_as_exact(jax.jit(found)(*args), jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)


@needs_rows
def test_in_the_emulator(rng):
    args = operands(rng)
    fun = gradients(saving(FORMS["plain"]), True)
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(fun)).lower(*args)
        assert [lowered.as_text().count(f"attention{of}_v1(") for of in ("", "_grad")] == [1, 1]
        results = lowered.compile()(*args)
    assert_as_exact(results, jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)


# ------------------------------------------------------------------------------------------------------------- layers


def _turned(x):
    """Rotary positions."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * (100.0 ** (-jnp.arange(half) / half))
    cos, sin = (y[:, None].astype(x.dtype) for y in (jnp.cos(angles), jnp.sin(angles)))
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def _weighted(q, k, v, change=lambda s: s, of_weights=lambda p: p):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = change(scores.astype(jnp.promote_types(q.dtype, jnp.float32)) / 4)
    return jnp.einsum("bhqk,bkhd->bqhd", of_weights(jax.nn.softmax(scores)).astype(q.dtype), v)


def _rotary(w, q, k, v, mask):
    return jax.nn.dot_product_attention(_turned(q), _turned(k), v, is_causal=True)


def _grouped(w, q, k, v, mask):
    return jax.nn.dot_product_attention(q, k[:, :, ::2], v[:, :, ::2], mask=mask[:, None, None])


def _padded(w, q, k, v, mask):
    return _weighted(q, k, v, lambda s: jnp.where(mask[:, None, None], s, -1e9))


def _segments(w, q, k, v, mask):
    return _weighted(q, k, v, lambda s: jnp.where((mask[:, None] == mask[:, :, None])[:, None], s, -1e9))


def _biased(w, q, k, v, mask):
    return _weighted(q, k, v, lambda s: s + w["bias"].astype(s.dtype))


def _capped(w, q, k, v, mask):
    return _weighted(q, k, v, lambda s: jnp.where(mask_of(q, k), 5 * jnp.tanh(s / 5), -1e30))


def _dropped(w, q, k, v, mask):
    def of_weights(p):
        return jnp.where(jax.random.bernoulli(w["key"], jnp.float32(0.9), p.shape), p / 0.9, 0)

    return _weighted(q, k, v, lambda s: jnp.where(mask_of(q, k), s, -1e30), of_weights)


def _relative(w, q, k, v, mask):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + jnp.einsum("bqhd,khd->bhqk", q, w["positions"])
    wide = jnp.promote_types(q.dtype, jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores.astype(wide) / 4).astype(q.dtype), v)


def _of_arrays(w, q, k, v, mask):
    """JAX makes what a loop copies of arrays in front of it, and the body of a checkpoint makes it anew."""
    rng = np.random.default_rng(1)
    bias, seen = jnp.asarray(rng.normal(size=(H, T, T)), jnp.float32), rng.random((T, T)) < 0.7
    seen = jnp.asarray(seen | np.eye(T, dtype=bool))
    return _weighted(q, k, v, lambda s: jnp.where(seen, s, -1e30) + bias.astype(s.dtype))


LAYERS = {
    "arrays": _of_arrays,
    "segments in a call": jax.jit(_segments),
    "rotary": _rotary,
    "in groups": _grouped,
    "padded": _padded,
    "segments": _segments,
    "biased": _biased,
    "capped": _capped,
    "dropped": _dropped,
    "relative": _relative,
}


def training(attention, way, policy=DOTS):
    """The loss of two layers, and its gradients."""

    def block(w, x, mask):
        y = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True))
        q, k, v = (z.reshape(*x.shape[:2], H, D) for z in jnp.split(y @ w["qkv"], 3, axis=-1))
        return x + attention(w, q, k, v, mask).reshape(x.shape) @ w["out"]

    block = jax.checkpoint(block, policy=policy)
    block = jax.jit(block) if way == "calls" else block

    def loss(floats, keys, x, mask):
        layers = floats | {"key": keys}
        if way == "scan":
            x, _ = lax.scan(lambda x, w: (block(w, x, mask), None), x, layers)
        else:
            for i in range(2):
                x = block(jax.tree.map(lambda y, i=i: y[i], layers), x, mask)
        return jnp.mean(x.astype(jnp.promote_types(x.dtype, jnp.float32)) ** 2)

    return jax.value_and_grad(loss, (0, 2))


def given(rng, dtype=jnp.bfloat16, rows=T):
    width = H * D
    shapes = {"qkv": (2, width, 3 * width), "out": (2, width, width), "bias": (2, H, rows, rows)}
    floats = {name: jnp.asarray(rng.normal(size=shape) / 4, dtype) for name, shape in shapes.items()}
    floats["positions"] = jnp.asarray(rng.normal(size=(2, rows, H, D)) / 4, dtype)
    x = jnp.asarray(rng.normal(size=(2, rows, width)), dtype)
    return floats, jax.random.split(jax.random.key(0), 2), x, jnp.arange(rows) < jnp.asarray([[rows - 5], [rows]])


def assert_precise(fun, args):
    """Against float64 the error is no larger than the program's own."""
    before, found = (jax.tree.leaves(jax.jit(f)(*args)) for f in (fun, jax_moye.optimize(fun)))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, args)
        wanted = [np.asarray(x) for x in jax.tree.leaves(fun(*wide))]
    for x, own, right in zip(found, before, wanted, strict=True):
        errors = [np.abs(np.asarray(y, np.float64) - right).max() for y in (x, own)]
        assert errors[0] <= max(1.2 * errors[1], 4 * ROUNDING["bfloat16"] * np.abs(right).max()), errors


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in LAYERS for way in ("loop", "scan", "calls") if (name, way) != ("arrays", "calls")],
)
def test_layers(rng, name, way):
    """Calls of jit that hold arrays stay calls, as without a checkpoint."""
    args, fun = given(rng), training(LAYERS[name], way)
    count = 1 if way == "scan" else 2
    assert counts(jax_moye.optimize(fun), *args)[:2] == (count, count)
    assert_precise(fun, args)


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("way", ["loop", "scan"])
def test_layers_of_float32(rng, way):
    args, fun = given(rng, jnp.float32), training(_rotary, way)
    count = 1 if way == "scan" else 2
    assert counts(jax_moye.optimize(fun), *args)[:2] == (count, count)
    results = jax.jit(jax_moye.optimize(fun))(*args)
    with products_in_tf32():
        before = jax.jit(jax_moye.optimize(lambda *x: fun(*x)))(*args)
    for x, y in zip(jax.tree.leaves(results), jax.tree.leaves(before), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-2, atol=2e-2 * float(jnp.abs(y).max()))


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("way", ["loop", "scan"])
def test_a_body_computes_anew_what_it_did(rng, way):
    """Rotated queries and keys, and the mask, are not saved: what is given is smaller."""
    args, fun = given(rng), training(_rotary, "loop")
    before, after = (jax.make_jaxpr(f)(*args).eqns for f in (fun, jax_moye.optimize(fun)))
    bodies = [[one for one in equations if is_checkpoint(one)] for equations in (before, after)]
    for own, found in zip(*bodies, strict=True):
        names = [one.primitive.name for one in found.params["jaxpr"].eqns]
        assert names.count("concatenate") >= 2  # in front of the kernel, of its operands
        assert "exp" not in names
        own_sizes, sizes = (sum(x.aval.size for x in one.invars) for one in (own, found))
        # The logarithms, and what rounding took from the result, in the place of the scores.
        assert sizes == own_sizes - 2 * H * T * T + 2 * T * H * D + 2 * H * T


# ---------------------------------------------------------------------------------------------------- what stays


@pytest.mark.usefixtures("fake_rows")
def test_scores_that_are_computed_anew(rng):
    """Such a policy saves no products of a batch, and the body has all of its attention, as without a policy."""
    args = given(rng)
    for policy in (WITHOUT_BATCHES, None):
        for way, count in (("loop", 2), ("scan", 1)):
            fun = training(_rotary, way, policy)
            assert counts(jax_moye.optimize(fun), *args)[:2] == (2 * count, count)


def _penalized(q, k, v, causal):
    """Somebody else reads the scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * 0.25
    o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)
    return o + jnp.mean(scores**2).astype(o.dtype)


@pytest.mark.usefixtures("fake_rows")
def test_scores_that_others_read(rng):
    args = operands(rng)
    fun = gradients(saving(_penalized), False)
    assert counts(jax_moye.optimize(fun), *args)[:2] == (0, 0)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax_moye.optimize(fun))(*args), jax.jit(fun)(*args))


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("factor", [0.25, 0.5])
def test_a_checkpoint_that_has_another_softmax(rng, factor):
    """Of the same scores: that is attention and its derivative if the factors are the same, and else nothing."""
    q, k, v, d_o = operands(rng)

    def both(q, k, v, d_o):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        o = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores * 0.25), v)

        @functools.partial(jax.checkpoint, policy=DOTS)
        def of_values(s, d_o):
            return jnp.einsum("bhqk,bqhd->bkhd", jax.nn.softmax(s * factor), d_o)

        return o, of_values(scores, d_o)

    found = counts(jax_moye.optimize(both), q, k, v, d_o)[:2]
    assert found == ((1, 1) if factor == 0.25 else (0, 0))
    for x, y in zip(jax.jit(jax_moye.optimize(both))(q, k, v, d_o), both(q, k, v, d_o), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("fake_rows")
def test_a_checkpoint_that_is_given_numbers_and_an_array_twice(rng):
    q, k, v, d_o = operands(rng)

    def both(q, k, v, d_o):
        block = lambda q, k, v, factor, x: FORMS["plain"](q * factor.astype(q.dtype), k, v, True) + x  # noqa: E731
        saved = jax.checkpoint(block, policy=DOTS)
        out, pullback = jax.vjp(lambda q, k, v: saved(q, k, v, jnp.float32(1), q), q, k, v)
        return (out, *pullback(d_o))

    assert counts(jax_moye.optimize(both), q, k, v, d_o) == (1, 1, 0)
    for x, y in zip(jax.jit(jax_moye.optimize(both))(q, k, v, d_o), jax.jit(both)(q, k, v, d_o), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2e-2, atol=2e-2)
    once = jax.checkpoint(lambda q, k, v: FORMS["plain"](q, k, v, True), policy=DOTS)
    of_one = lambda q, d_o: jax.vjp(once, q, q, q)[1](d_o)  # noqa: E731
    assert counts(jax_moye.optimize(of_one), q, d_o)[:2] == (1, 1)
    for x, y in zip(jax.jit(jax_moye.optimize(of_one))(q, d_o), jax.jit(of_one)(q, d_o), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2e-2, atol=2e-2)
