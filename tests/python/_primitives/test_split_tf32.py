"""f32 as two TF32 parts: exact in TF32, and their sum is what was split."""

import jax.numpy as jnp
import numpy as np

from jax_moye._primitives.split_tf32 import split_tf32


def random_floats(rng, size) -> np.ndarray:
    """Of all exponents, subnormal ones included, and no infinity or NaN."""
    x = rng.integers(0, 2**32, size, np.uint32).view(np.float32)
    return x[np.isfinite(x)]


def test_parts_are_tf32_and_sum_up(rng):
    x = random_floats(rng, 1 << 16)
    high, low = map(np.asarray, split_tf32(jnp.asarray(x)))
    for part in (high, low):
        assert (part.view(np.uint32) & 0x1FFF == 0).all()
    exact = x.astype(np.float64)
    error = np.abs(exact - (high.astype(np.float64) + low.astype(np.float64)))
    # XLA on the CPU takes subnormal numbers, and results, for zero.
    assert (error <= np.maximum(2.0**-22 * np.abs(exact), 2.0**-126)).all()
    assert (np.abs(exact - high) <= np.maximum(2.0**-11 * np.abs(exact), 2.0**-126))[np.abs(x) < 3.4e38].all()


def test_parts_of_what_is_hard():
    largest = np.finfo(np.float32).max  # rounded to TF32 it is infinite
    x = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, largest, -largest, 2.0**-126], np.float32)
    high, low = map(np.asarray, split_tf32(jnp.asarray(x)))
    np.testing.assert_array_equal(high[:6], [0, 0, 1, -1, 1, -1])
    np.testing.assert_array_equal(low[:6], [0, 0, 0, 0, np.inf, -np.inf])
    assert np.isnan(low[6])
    np.testing.assert_allclose(high[7:].astype(np.float64) + low[7:], x[7:].astype(np.float64), rtol=2.0**-22)
    assert np.isfinite(high[7:]).all()
