"""f32 as two TF32 parts: what 3 x TF32 multiplies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_MANTISSA_BITS = 10  # of TF32, behind the leading one; it has the exponents of f32
_MAX_TF32 = np.float32((2 - 2.0**-_MANTISSA_BITS) * 2.0**127)


def split_tf32(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(high, low), both exact in TF32, with |x - (high + low)| <= 2^-22 |x| for normal x (2^-136 for smaller ones).

    high is x rounded to the nearest, low what that leaves, rounded. A product of two such sums is
        high high' + (low high' + high low') + low low',
    and the last term, 2^-22 of the first at most, is left out.
    Where x is inf or NaN, low is x and high 1 with x's sign: inf times 0 would be NaN, and low is 0 in most places.
    Where x is within 2^-22 of the largest f32, high + low is beyond it.

    Args:
      x: any shape, f32.
    """
    rounded = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=_MANTISSA_BITS)
    is_finite = jnp.isfinite(x)
    # What rounds up to infinity becomes the largest TF32 instead.
    high = jnp.where(is_finite, jnp.clip(rounded, -_MAX_TF32, _MAX_TF32), lax.sign(x))
    low = lax.reduce_precision(x - high, exponent_bits=8, mantissa_bits=_MANTISSA_BITS)
    return high, jnp.where(is_finite, low, x)
