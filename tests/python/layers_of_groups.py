"""Layers of groups next to what they are in float32: results, derivatives, tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZES = (30, 0, 50, 20)
M, K, G = 150, 64, 4  # 50 rows belong to no group
TARGET = "jax_moye_grouped_gemm_v1"
ACTIVATIONS = {None: lambda z: z, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


def of_groups(x: Any, sizes: Sequence[int] = SIZES) -> Any:
    """What each of M rows has of an array with an entry for each group, in float32; zeros where it is in no group."""
    group = np.repeat(np.arange(len(sizes) + 1), [*sizes, M - sum(sizes)])
    return jnp.concatenate([x.astype(jnp.float32), jnp.zeros((1, *x.shape[1:]))])[group]


def product(x: Any, w: Any, sizes: Sequence[int] = SIZES) -> Any:
    """Each row with the matrix of its group, in float32."""
    return jnp.einsum("mk,mkn->mn", x.astype(jnp.float32), of_groups(w, sizes), precision="highest")


def near(got: Any, expected: Any, relative: float) -> None:
    """Equal but for a part of the largest element."""
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(expected, np.float32), 0, relative * scale)


def check(fun: Callable[..., Any], reference: Callable[..., Any], operands: tuple, tangents: tuple) -> None:
    """Result, derivatives and a tangent of a layer of bfloat16."""
    result, pullback = jax.vjp(fun, *operands)
    assert result.dtype == jnp.bfloat16
    expected, expected_pullback = jax.vjp(reference, *operands)
    near(result, expected, 2**-8)
    cotangent = jax.random.normal(jax.random.key(1), result.shape, jnp.bfloat16)
    for got, wanted in zip(pullback(cotangent), expected_pullback(cotangent.astype(jnp.float32)), strict=True):
        near(got, wanted, 2**-6)
    near(jax.jvp(fun, operands, tangents)[1], jax.jvp(reference, operands, tangents)[1], 2**-6)
