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
from python.attentions import FLAX, FORMS, GROUPED, assert_as_exact, counts, exact, use_fake_rows

import jax_moye
from jax_moye import _compat
from jax_moye._bench.models.images import vision_transformer
from jax_moye._bench.models.parts import Random
from jax_moye._bench.models.table import MODELS
from jax_moye._kernels.configs import attention_configs
from jax_moye._primitives import rewriting
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.residuals import with_fewer_residuals
from jax_moye._primitives.scan_pairs import rewritten_pair
from jax_moye._primitives.scans import Scan, is_known

LAYERS, B, T, H, D = 4, 2, 24, 2, 16  # batch, rows, heads, head_dim
WIDTH = H * D
CAUSAL = "causal"
needs_rows = pytest.mark.skipif(
    len({config.kernel for config in attention_configs()}) < 2, reason="no rows of sm90_attention in this build"
)


def weights(rng, layers=LAYERS, kv_heads=H):
    """x (B,T,WIDTH), its cotangent behind the layers, and of each layer wq, wk, wv and wo."""
    shapes = [(WIDTH, WIDTH), *[(WIDTH, kv_heads * D)] * 2, (WIDTH, WIDTH)]
    x, d_x = (jnp.asarray(rng.normal(size=(B, T, WIDTH)), jnp.bfloat16) for _ in range(2))
    blocks = tuple(jnp.asarray(rng.normal(size=(layers, *shape)) / 6, jnp.bfloat16) for shape in shapes)
    return x, d_x, blocks


def in_heads(x):
    return x.reshape(*x.shape[:2], -1, D)


def block(x, layer, attention):
    wq, wk, wv, wo = layer
    q, k, v = (in_heads(x @ w) for w in (wq, wk, wv))
    return x + attention(q, k, v).reshape(x.shape) @ wo


def exact_layers(x, d_x, blocks, causal):
    """What the layers make of x, and the derivatives by x and the weights, in float64, by NumPy."""
    x, d_x, *blocks = (np.asarray(one, np.float64) for one in (x, d_x, *blocks))
    seen = []
    for wq, wk, wv, wo in zip(*blocks, strict=True):
        q, k, v = (in_heads(x @ w) for w in (wq, wk, wv))
        o = exact(q, k, v, np.zeros_like(q), causal)[0].reshape(x.shape)
        seen.append((x, q, k, v, o, (wq, wk, wv, wo)))
        x = x + o @ wo
    gradients = []
    for before, q, k, v, o, (*projections, wo) in reversed(seen):
        of_heads = exact(q, k, v, in_heads(d_x @ wo.T), causal)[1:]
        flat = [one.reshape(*d_x.shape[:2], -1) for one in of_heads]
        of_weights = [np.einsum("btw,bti->wi", before, one) for one in flat]
        gradients.append([*of_weights, np.einsum("bti,btw->iw", o, d_x)])
        d_x = d_x + sum(one @ w.T for one, w in zip(flat, projections, strict=True))
    return [x, d_x, *map(np.stack, zip(*reversed(gradients), strict=True))]


def all_of(layers):
    """The result of layers and its derivatives, as `exact_layers` has them."""

    def fun(x, d_x, blocks):
        out, pullback = jax.vjp(layers, x, blocks)
        d_in, d_blocks = pullback(d_x)
        return [out, d_in, *d_blocks]

    return fun


def scanned(attention=FORMS["plain"], causal=True, around=lambda of_layer: of_layer, **of_scan):
    one = around(lambda x, layer: block(x, layer, functools.partial(attention, causal=causal)))
    return lambda x, blocks: lax.scan(lambda x, layer: (one(x, layer), None), x, blocks, **of_scan)[0]


def mask_from_outside(x, blocks):
    mask, scale = jnp.tril(jnp.ones((T, T), bool)), jnp.float32(D**-0.5)

    def attention(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * scale
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
    each = lambda x, pair: (jax.tree.map(lambda w: w[i], pair) for i in range(2))  # noqa: E731

    def both(x, pair):
        for layer in each(x, pair):
            x = block(x, layer, attention)
        return x, None

    return lax.scan(both, x, pairs)[0]


def across_devices(x, blocks):
    """As one device of several computes it that share the heads: the sum of what each makes."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("devices",))

    def of_device(x, blocks):
        def layer(x, weights):
            part = block(jnp.zeros_like(x) + x, weights, functools.partial(FORMS["plain"], causal=True)) - x
            return x + lax.psum(part, "devices"), None

        return lax.scan(layer, x, blocks)[0]

    specs = PartitionSpec()
    return jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)(x, blocks)


PROGRAMS = {
    **{form: scanned(FORMS[form]) for form in ("plain", "by hand", "heads first", "of jax", "keys first")},
    **({"of linen": scanned(FORMS["of linen"])} if FLAX else {}),
    "a mask from outside": mask_from_outside,
    "a call in the body": scanned(jax.jit(FORMS["plain"], static_argnames="causal")),
    "a call in a call": scanned(jax.jit(jax.jit(FORMS["plain"], static_argnames="causal"), static_argnames="causal")),
    "a body that is a call": scanned(around=jax.jit),
    "a call of the scan": jax.jit(scanned()),
    "unrolled": scanned(unroll=2),
    "all unrolled": scanned(unroll=True),
    "backwards": reversed_layers,
    "a scan in a scan": nested,
    "a scan in a scan in a scan": nested_thrice,
    "two scans": two_scans,
    "two in a layer": two_in_a_layer,
    "across devices": across_devices,
    "all saved": scanned(
        around=functools.partial(jax.checkpoint, policy=lambda prim, *_, **__: prim.name == "add_any")
    ),
}
EXPECTED = dict.fromkeys(("two scans", "two in a layer"), (2, 2)) | {"all saved": (2, 1)}


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
def test_programs(rng, alone, name):
    args, fun = weights(rng), all_of(PROGRAMS[name])
    new = jax.make_jaxpr(jax_moye.optimize(fun))(*args).jaxpr
    assert counts(jax_moye.optimize(fun), *args)[:2] == EXPECTED.get(name, (1, 1))
    assert not any(map(are_shares, stacks(new)))
    if name not in ("all saved", "all unrolled"):
        before = alone(fun, *args).jaxpr
        assert any(map(are_shares, stacks(before)))
        assert size(stacks(new)) < size(stacks(before))
    results, as_it_was = (jax.jit(one)(*args) for one in (jax_moye.optimize(fun), fun))
    assert [x.dtype for x in results] == [x.dtype for x in as_it_was]
    assert_as_exact(results, as_it_was, exact_layers(*args, causal=True), jnp.bfloat16)


@pytest.mark.usefixtures("fake_rows")
@pytest.mark.parametrize("form", GROUPED)
def test_queries_in_groups(rng, form):
    args, fun = weights(rng, kv_heads=1), all_of(scanned(GROUPED[form]))
    assert counts(jax_moye.optimize(fun), *args)[:2] == (1, 1)
    results, as_it_was = (jax.jit(one)(*args) for one in (jax_moye.optimize(fun), fun))
    assert_as_exact(results, as_it_was, exact_layers(*args, causal=True), jnp.bfloat16)
