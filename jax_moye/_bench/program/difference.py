"""How far the results of a program are from XLA's."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

# Of the largest element of a result: rounding in other places makes a few hundredths in a deep network of bf16.
TOLERANCE = 0.25
# An array may be rounding errors alone, as the gradient of a bias that cancels, and those of bf16 are some hundredths
# of what cancels: it is held against this share of the largest element of all results of its dtype, too.
LEAST_SCALE = 0.05


def difference(right: Any, result: Any) -> tuple[float, str]:
    """How far results are from the right ones.

    Args:
      right: results, a tree of arrays.
      result: the same, computed otherwise.

    Returns:
      The largest difference of an array's elements, over its scale: its largest element, or LEAST_SCALE times the
      largest of all arrays of its dtype if that is more. And where that array is in the tree. Infinite where one of two
      elements is not a number, or infinite, and the other is something else.
    """
    paths, wanted = (
        zip(*jax.tree_util.tree_leaves_with_path(right), strict=True) if jax.tree.leaves(right) else ((), ())
    )
    found = jax.tree.leaves(result)
    if [(jnp.shape(x), jnp.result_type(x)) for x in wanted] != [(jnp.shape(x), jnp.result_type(x)) for x in found]:
        return math.inf, ""
    of_arrays = [tuple(map(float, _difference(x, y))) for x, y in zip(wanted, found, strict=True) if x.size]
    kept = [(path, x.dtype) for path, x in zip(paths, wanted, strict=True) if x.size]
    largest: dict[Any, float] = {}
    for (_, dtype), (_, scale) in zip(kept, of_arrays, strict=True):
        largest[dtype] = max(scale, largest.get(dtype, 0.0))
    worst, place = 0.0, ""
    for (path, dtype), (apart, scale) in zip(kept, of_arrays, strict=True):
        of_scale = apart / max(scale, LEAST_SCALE * largest[dtype]) if largest[dtype] else math.inf * bool(apart)
        if apart and of_scale > worst:
            worst, place = of_scale, jax.tree_util.keystr(path)
    return worst, place


@jax.jit
def _difference(x: Any, y: Any) -> tuple[Any, Any]:
    """The largest difference of two arrays, and the largest finite element of the first."""
    x, y = (_as_numbers(one) for one in (x, y))
    same = (x == y) | (jnp.isnan(x) & jnp.isnan(y))
    apart = jnp.where(same, 0, jnp.abs(x - y))
    size = jnp.abs(x)
    return jnp.max(jnp.where(jnp.isnan(apart), jnp.inf, apart)), jnp.max(jnp.where(jnp.isfinite(size), size, 0))


def _as_numbers(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype.itemsize >= 4 else x.astype(jnp.float32)
