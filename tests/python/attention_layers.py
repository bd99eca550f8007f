"""Layers of attention in a scan, and what they are in float64: what tests of loops share."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from python.attentions import FORMS, GROUPED, exact

from jax_moye._primitives.attention import attention_p

LAYERS, B, T, H, D = 4, 2, 24, 2, 16  # batch, rows, heads, head_dim
WIDTH = H * D


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


def attentions(jaxpr):
    """The equations of attention, those inside of equations too."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is attention_p:
            found.append(equation)
            continue
        for value in equation.params.values():
            for one in value if isinstance(value, tuple) else (value,):
                inner = getattr(one, "jaxpr", one)
                found += attentions(inner) if hasattr(inner, "eqns") else []
    return found


def as_usual(rng, kv_heads=H, causal=True):
    """Arguments, and results and derivatives as XLA has them in 16 bits, and in float64."""
    args = weights(rng, kv_heads=kv_heads)
    of_xla = jax.jit(all_of(scanned(GROUPED["repeated"], causal)))(*args)
    return args, of_xla, exact_layers(*args, causal)


def assert_right(results, of_xla, expected):
    """The largest errors are of the size that XLA's are: what is behind the first layer is of roundings before it."""
    assert [(x.dtype, x.shape) for x in results] == [(x.dtype, x.shape) for x in of_xla]
    for result, other, right in zip(results, of_xla, expected, strict=True):
        errors = [np.abs(np.asarray(x, np.float64) - right).max() for x in (result, other)]
        assert errors[0] <= 2 * errors[1], errors
        assert errors[1] < 0.03 * np.abs(right).max()
