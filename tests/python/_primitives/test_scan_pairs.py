"""Attention in a scan that is differentiated: one kernel in each of the two loops, and no shares stacked."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from python.attention_layers import (
    LAYERS,
    WIDTH,
    B,
    D,
    H,
    T,
    all_of,
    as_usual,
    assert_right,
    block,
    in_heads,
    scanned,
    weights,
)
from python.attentions import FAKE, FLAX, FORMS, GROUPED, assert_as_exact, counts, needs_rows, use_fake_rows
from python.support import without_addresses

import jax_moye
from jax_moye._bench.models.images import vision_transformer
from jax_moye._bench.models.parts import Random
from jax_moye._bench.models.table import MODELS
from jax_moye._primitives import rewriting
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.residuals import with_fewer_residuals
from jax_moye._primitives.scan_pairs import rewritten_pair
from jax_moye._primitives.scans import Scan, is_known
from jax_moye._selection import attention as selection


def mask_from_outside(x, blocks, is_known=True):
    mask = jnp.tril(jnp.ones((T, T), bool))
    mask = mask if is_known else mask & (x[:, :1, :1, None] < 1e9)

    def attention(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * D**-0.5
        shares = jax.nn.softmax(jnp.where(mask, scores, -1e30))
        return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(q.dtype), v)

    return lax.scan(lambda x, layer: (block(x, layer, attention), None), x, blocks)[0]


def nested(x, blocks):
    pairs = jax.tree.map(lambda w: w.reshape(2, -1, *w.shape[1:]), blocks)
    return lax.scan(lambda x, pair: (scanned()(x, pair), None), x, pairs)[0]


def nested_thrice(x, blocks):
    one = jax.tree.map(lambda w: w[None], blocks)
    return lax.scan(lambda x, layers: (nested(x, layers), None), x, one)[0]


def reversed_layers(x, blocks):
    return scanned(reverse=True)(x, jax.tree.map(lambda w: w[::-1], blocks))


def two_scans(x, blocks):
    first, second = (jax.tree.map(lambda w, part=part: w[part], blocks) for part in (slice(2), slice(2, None)))
    return scanned()(scanned()(x, first), second)


def two_in_a_layer(x, blocks):
    pairs = jax.tree.map(lambda w: w.reshape(2, -1, *w.shape[1:]), blocks)
    attention = functools.partial(FORMS["plain"], causal=True)

    def both(x, pair):
        first, second = (tuple(w[i] for w in pair) for i in range(2))
        return block(block(x, first, attention), second, attention), None

    return lax.scan(both, x, pairs)[0]


def of_heads(x, blocks):
    """As a device makes its part of the heads: what all make is added up."""
    wide = functools.partial(FORMS["plain"], causal=True)
    layer = lambda x, one: (x + lax.psum(block(x, one, wide) - x, "devices"), None)  # noqa: E731
    return lax.scan(layer, x, blocks)[0]


def on_devices(fun):
    mesh = Mesh(np.array(jax.devices()[:1]), ("devices",))
    return jax.shard_map(fun, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)


PROGRAMS = {
    **{form: scanned(FORMS[form]) for form in ("plain", "by hand", "heads first", "of jax", "keys first")},
    **({"of linen": scanned(FORMS["of linen"])} if FLAX else {}),
    "a mask from outside": mask_from_outside,
    "a mask that is not known": functools.partial(mask_from_outside, is_known=False),
    "a call in the body": scanned(jax.jit(FORMS["plain"], static_argnames="causal")),
    "a call in a call": scanned(jax.jit(jax.jit(FORMS["plain"], static_argnames="causal"), static_argnames="causal")),
    "a body that is a call": scanned(around=jax.jit),
    "a call of the scan": jax.jit(scanned()),
    "unrolled": scanned(unroll=2),
    "all unrolled": scanned(unroll=True),
    "backwards": reversed_layers,
    "a scan in a scan": nested,
    "a scan in a scan in a scan": nested_thrice,
    "on devices": of_heads,
    "two scans": two_scans,
    "two in a layer": two_in_a_layer,
}
EXPECTED = dict.fromkeys(("two scans", "two in a layer"), (2, 2))


def stacks(jaxpr):
    """The types of what all scans stack, those inside of equations too."""
    found = []
    for equation in jaxpr.eqns:
        if is_known(equation):
            found += [x.aval for x in Scan(equation).stacked_results]
        for value in equation.params.values():
            for one in value if isinstance(value, tuple) else (value,):
                inner = getattr(one, "jaxpr", one)
                found += stacks(inner) if hasattr(inner, "eqns") else []
    return found


def size(avals):
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in avals)


def are_shares(aval, rows=T):
    return aval.shape[-2:] == (rows, rows)


@pytest.fixture
def fake_rows(monkeypatch):
    use_fake_rows(monkeypatch)


@pytest.fixture(scope="module")
def usual():
    return as_usual(np.random.default_rng(0))


@pytest.fixture
def alone(monkeypatch):
    """Rewrites without looking at two scans together."""

    def rewrite(fun, *args):
        with monkeypatch.context() as patch:
            patch.setattr(rewriting, "with_fewer_residuals", lambda jaxpr, _: with_fewer_residuals(jaxpr))
            return jax.make_jaxpr(jax_moye.optimize(fun))(*args)

    return rewrite


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(usual, alone, name):
    args, of_xla, expected = usual
    fun = all_of(PROGRAMS[name])
    fun = on_devices(fun) if name == "on devices" else fun
    new = jax.make_jaxpr(jax_moye.optimize(fun))(*args).jaxpr
    assert counts(jax_moye.optimize(fun), *args)[:2] == EXPECTED.get(name, (1, 1))
    assert not any(map(are_shares, stacks(new)))
    before = alone(fun, *args).jaxpr
    assert any(map(are_shares, stacks(before)))
    assert size(stacks(new)) < size(stacks(before))
    assert_right(jax.jit(jax_moye.optimize(fun))(*args), of_xla, expected)


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("form", GROUPED)
def test_queries_in_groups(rng, form):
    args, of_xla, expected = as_usual(rng, kv_heads=1)
    fun = jax_moye.optimize(all_of(scanned(GROUPED[form])))
    assert counts(fun, *args)[:2] == (1, 1)
    assert_right(jax.jit(fun)(*args), of_xla, expected)


@pytest.mark.usefixtures("fake_rows")
def test_keys_that_are_the_same_in_each_iteration(rng):
    """Their derivatives are summed up in the second loop, which has them as its constants already."""
    x, d_x, (wq, *_, wo) = weights(rng)

    def layers(x, keys):
        def layer(x, one):
            q, kv = in_heads(x @ one[0]), in_heads(keys)
            return x + FORMS["plain"](q, kv, kv, False).reshape(x.shape) @ one[1], None

        return lax.scan(layer, x, (wq, wo))[0]

    fun = lambda x, keys, d_x: jax.vjp(layers, x, keys)[1](d_x)  # noqa: E731
    args = x, jnp.concatenate([jnp.flip(x, 1), d_x], 1), d_x
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*args).jaxpr
    assert counts(jax_moye.optimize(fun), *args)[:2] == (1, 1)
    _, second = (Scan(one) for one in jaxpr.eqns if is_known(one))
    assert [v.aval.shape for v in second.equation.invars[: second.consts]].count((B, 2 * T, H, D)) == 1
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(one, np.float64)) for one in (*args, wq, wo)]
        wq, wo = wide[3:]
        expected = [np.asarray(one) for one in fun(*wide[:3])]
    wq, wo = (jnp.asarray(one, jnp.bfloat16) for one in (wq, wo))
    assert_as_exact(*(jax.jit(one)(*args) for one in (jax_moye.optimize(fun), fun)), expected, jnp.bfloat16)


@pytest.mark.usefixtures("fake_rows")
def test_what_the_program_returns_beside_it(usual):
    """A loss with something of each layer; the input of a layer is stacked once."""
    args, of_xla, expected = usual
    attention = functools.partial(FORMS["plain"], causal=True)

    def fun(x, d_x, blocks):
        def loss(x, blocks):
            x, seen = lax.scan(lambda x, one: (block(x, one, attention), (x, jnp.sum(x))), x, blocks)
            return jnp.vdot(x.astype(jnp.float32), d_x.astype(jnp.float32)), (x, seen)

        (_, (x, seen)), (d_in, d_blocks) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, blocks)
        return [x, d_in, *d_blocks], seen

    assert counts(jax_moye.optimize(fun), *args)[:2] == (1, 1)
    (first, _) = (Scan(one) for one in jax.make_jaxpr(jax_moye.optimize(fun))(*args).eqns if is_known(one))
    assert [x.aval.shape for x in first.stacked_results].count((LAYERS, B, T, WIDTH)) == 1
    results, seen = jax.jit(jax_moye.optimize(fun))(*args)
    assert_right(results, of_xla, expected)
    np.testing.assert_array_equal(np.asarray(seen[0][0], np.float32), np.asarray(args[0], np.float32))


@needs_rows
@pytest.mark.parametrize("is_known", [True, False])
def test_in_the_emulator(usual, is_known):
    args, of_xla, expected = usual
    layers = functools.partial(mask_from_outside, is_known=is_known)
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(all_of(layers))).lower(*args)
        text, results = lowered.as_text(), lowered.compile()(*args)
    assert [text.count(f"attention{name}_v1(") for name in ("", "_grad")] == [1, 1]
    assert_right(results, of_xla, expected)


@pytest.mark.usefixtures("fake_rows")
def test_where_no_kernel_is(usual):
    """One product is computed anew, no shares are kept, and no logarithms: XLA leaves those out of both loops."""
    args, *_ = usual
    fun = all_of(scanned())
    before, after = (jax.jit(one).lower(*args).compile() for one in (fun, jax_moye.optimize(fun)))
    texts = [one.as_text() for one in (before, after)]
    assert [f"[{LAYERS},{B},{H},{T},{T}]" in text for text in texts] == [True, False]
    assert f"[{LAYERS},{B},{H},{T}]{{" not in texts[1]
    assert texts[1].count(" dot(") == texts[0].count(" dot(") + 1
    sizes = [one.memory_analysis().temp_size_in_bytes for one in (before, after)]
    assert sizes[1] < sizes[0]


@pytest.mark.usefixtures("fake_rows")
def test_twice_differentiated(rng):
    x, d_x, blocks = weights(rng, layers=2)
    first = lambda x: jax.vjp(scanned(), x, blocks)[1](d_x)[0].astype(jnp.float32)  # noqa: E731
    after, before = (
        jax.jit(jax.grad(lambda x, f=f: jnp.vdot(f(x), d_x.astype(jnp.float32))))(x)
        for f in (jax_moye.optimize(first), first)
    )
    np.testing.assert_allclose(np.asarray(after, np.float32), np.asarray(before, np.float32), atol=0.2, rtol=0.05)


# ------------------------------------------------------------------------------------------------- what stays


def _dropped(x, blocks):
    def layer(carry, one):
        x, key = carry
        key, of_layer = jax.random.split(key)

        def attention(q, k, v):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * D**-0.5
            shares = jax.nn.softmax(scores).astype(q.dtype)
            shares *= jax.random.bernoulli(of_layer, 0.9, shares.shape).astype(q.dtype)
            return jnp.einsum("bhqk,bkhd->bqhd", shares, v)

        return (block(x, one, attention), key), None

    return lax.scan(layer, (x, jax.random.key(0)), blocks)[0][0]


def _wanted(x, blocks):
    """The program returns the shares."""

    def layer(x, one):
        seen = []

        def attention(q, k, v):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * D**-0.5
            seen.append(jax.nn.softmax(scores).astype(q.dtype))
            return jnp.einsum("bhqk,bkhd->bqhd", seen[0], v)

        return block(x, one, attention), (seen[0] if seen else None)

    return lax.scan(layer, x, blocks)[1]


def _with_messages(x, blocks):
    def layer(x, one):
        jax.debug.callback(lambda _: None, x[0, 0, 0])
        return block(x, one, functools.partial(FORMS["plain"], causal=True)), None

    return lax.scan(layer, x, blocks)[0]


@pytest.mark.usefixtures("fake_rows")
def test_dropout_of_layers(rng):
    """Which weights are kept the second loop reads as the booleans that the first one stacks."""
    text = str(jax.make_jaxpr(jax_moye.optimize(all_of(_dropped)))(*weights(rng)))
    assert [text.count(f"jax_moye_attention{of}[") for of in ("", "_grad")] == [1, 1]


STAYS = {"messages": _with_messages}


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_attention_stays(rng, alone, name):
    args, fun = weights(rng), all_of(STAYS[name])
    assert without_addresses(jax.make_jaxpr(jax_moye.optimize(fun))(*args)) == without_addresses(alone(fun, *args))


@pytest.mark.usefixtures("fake_rows")
def test_shares_that_the_program_returns_stay(rng, alone):
    x, _, blocks = weights(rng)
    fun = jax.value_and_grad(lambda x: jnp.sum(_wanted(x, blocks).astype(jnp.float32) ** 2))
    assert str(jax.make_jaxpr(jax_moye.optimize(fun))(x)) == str(alone(fun, x))


def test_few_scores_stay(rng, alone):
    args, fun = weights(rng), all_of(scanned())
    assert without_addresses(jax.make_jaxpr(jax_moye.optimize(fun))(*args)) == without_addresses(alone(fun, *args))


def _pair(rng):
    x, d_x, blocks = weights(rng)
    jaxpr = jax.make_jaxpr(all_of(scanned()))(x, d_x, blocks).jaxpr
    first, second = (i for i, one in enumerate(jaxpr.eqns) if is_known(one))
    return Program(jaxpr.eqns, jaxpr.outvars), first, second


def test_a_pair_of_which_nothing_is_made(rng):
    assert rewritten_pair(*_pair(rng), lambda joined: joined) == {}


def test_a_pair_that_cannot_be_parted(rng):
    """What the first loop returns would be made of what the second one gets."""

    def of_second(joined):
        (first, *others), given = joined.outvars, [x for x in joined.invars if x.aval.shape == (B, T, WIDTH)]
        assert first.aval.shape == given[-1].aval.shape
        return joined.replace(outvars=[given[-1], *others])

    assert rewritten_pair(*_pair(rng), of_second) == {}


# ------------------------------------------------------------------------------------------------- true sizes


class _Shapes(Random):
    """Arrays without elements."""

    def normal(self, *shape):
        return jax.ShapeDtypeStruct(shape, self.dtype)

    weight = ones = normal

    def integers(self, below, *shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)


def test_the_vision_transformer_of_the_benchmark(monkeypatch, alone):
    """Of its true size: 12 layers of 128 images of 197 tokens, 12 heads."""
    monkeypatch.setattr(selection, "attention_configs", lambda: FAKE)  # and the fewest scores as they are
    step, args = vision_transformer(_Shapes(jnp.bfloat16), **MODELS["vision_transformer"].sizes)
    before, after = alone(step, *args).jaxpr, jax.make_jaxpr(jax_moye.optimize(step))(*args).jaxpr
    assert counts(jax_moye.optimize(step), *args)[:2] == (1, 1)
    loops = [next(Scan(e) for e in j.eqns if e.primitive.name in ("scan", "jax_moye_scan")) for j in (before, after)]
    of_first = [[x.aval for x in loop.stacked_results] for loop in loops]
    shares, rows, rest = (12 * 128 * 12 * 197 * x for x in (197 * 2, 4, 64 * 2))
    # In the place of the shares, of the rows' maxima and of their sums: the logarithms of the sums, and the rest.
    assert size(of_first[0]) - size(of_first[1]) == shares + rows - rest
    assert not any(are_shares(x, 197) for x in of_first[1])
