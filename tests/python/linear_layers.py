"""Layers of jax_moye.linear next to what a user would write, and how many products their programs have."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from python.support import FUSED_TARGET, TARGET

import jax_moye

linear = jax_moye.linear
glu = jax_moye.gated_linear_unit
emulated = functools.partial(linear, implementation="moye", interpret=True)

FUNCTIONS = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}
OPERANDS = [names for n in range(4) for names in itertools.combinations(("bias", "c", "residual"), n)]


def unfused(x, w, bias=None, *, activation=None, residual=None, alpha=1.0, beta=1.0, c=None):
    """The layer as a user would write it."""
    z = alpha * jnp.matmul(x, w, precision="highest")
    z = z if c is None else z + beta * c
    z = z if bias is None else z + bias
    y = FUNCTIONS[activation](z)
    return y if residual is None else y + residual


def activate64(activation, z):
    """In float64, by formulas of our own."""
    if activation == "relu":
        return np.maximum(z, 0)
    if activation == "gelu":
        return z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    if activation == "gelu_exact":
        return z / 2 * (1 + np.vectorize(math.erf)(z / np.sqrt(2)))
    if activation == "silu":
        return z / (1 + np.exp(-z))
    return z


def operands(rng, names=(), rows=(6,), k=8, n=5, dtype=np.float32):
    x, w = rng.standard_normal((*rows, k)), rng.standard_normal((k, n))
    shapes = {"bias": (n,), "c": (*rows, n), "residual": (*rows, n)}
    named = {name: jnp.asarray(rng.standard_normal(shapes[name]), dtype) for name in names}
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype), named


def count(fun, *args) -> dict[str, int]:
    """Products in the optimized program of `fun` for this machine, by who computes them."""
    hlo = jax.jit(fun).lower(*args).compile().as_text()
    ours = {target: hlo.count(f'custom_call_target="{target}"') for target in (TARGET, FUSED_TARGET)}
    return ours | {"xla": len(re.findall(r"= \S+ dot\(", hlo))}


def products(jaxpr) -> int:
    """Products in a jaxpr and in those inside it."""
    total = 0
    for equation in jaxpr.eqns:
        total += equation.primitive.name in ("jax_moye_contract", "jax_moye_fused", "dot_general")
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += products(inner) if hasattr(inner, "eqns") else 0
    return total


close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
