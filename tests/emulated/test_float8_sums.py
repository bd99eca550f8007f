"""Where the sums of 8-bit floats live: in f32 every 128 products, unless a row says f32_fast.

The emulator adds in f32 in the tensor core too, so both are as precise here. But it adds in a known order, and which
numbers meet in which sum is seen in the last bits.
"""

from __future__ import annotations

import numpy as np
import pytest

import jax_moye
from jax_moye._kernels.dtypes import FLOAT8
from tests.emulated.emulate import emulate
from tests.emulated.problems import UNIT, Problem, accumulation_bound, make_call

CONFIGS = [c for c in jax_moye.configs() if c.kernel.startswith("sm90_") and c.dtype in FLOAT8]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def running_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a (M,K) by b (K,N), one product after the other added in f32."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += np.outer(a[:, k], b[k])
    return total


def promoted_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same, anew from zero every 128 products, and these sums added in f32."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], 128):
        total += running_sums(a[:, k : k + 128], b[k : k + 128])
    return total


@every_config
@pytest.mark.parametrize("k", [100, 900])
def test_order_of_additions(config, k):
    """To the bit. 900: more tiles of k than stages, and sums that f32 rounds."""
    tile_m, _, _ = config.tile
    call = make_call(config, Problem(tile_m + 3, 40, k, "NT"), "f32", values="normal")
    report = emulate(config, call)
    assert report["ok"], report["message"]
    a, b = (x[0].astype(np.float32) for x in (call.values_a, call.values_b))
    sums = {"f32": promoted_sums(a, b), "f32_fast": running_sums(a, b)}
    np.testing.assert_array_equal(call.result()[0], sums[config.accumulator])
    assert (k <= 128) == np.array_equal(sums["f32"], sums["f32_fast"])


def test_both_kinds_are_in_the_table():
    if not CONFIGS:
        pytest.skip("no such row in this build")
    assert {config.accumulator for config in CONFIGS} == {"f32", "f32_fast"}


@every_config
@pytest.mark.parametrize("out_dtype", ["f32", "bf16"])
def test_operands_with_a_scale_each(config, out_dtype):
    """Scaled 8-bit floats: alpha is the product of the operands' scales, and the sums are rounded once."""
    scale_a, scale_b = 2.0**-9 * 1.37, 2.0**4 * 1.11
    call = make_call(config, Problem(70, 40, 200, "NT"), out_dtype, values="normal")
    report = emulate(config, call, alpha=scale_a * scale_b)
    assert report["ok"], report["message"]
    a, b = (scale * x[0].astype(np.float64) for scale, x in ((scale_a, call.values_a), (scale_b, call.values_b)))
    error = abs(call.result()[0].astype(np.float64) - a @ b)
    assert (error <= accumulation_bound(config, a, b) + 1.01 * UNIT[out_dtype] * abs(a @ b) + 1e-7 * abs(a @ b)).all()
