"""How the Hopper kernels' results reach d (cuda/gemm/epilogue_sm90.h): by TMA where they are only converted."""

from __future__ import annotations

import numpy as np
import pytest

import jax_moye
from tests.emulated.emulate import emulate
from tests.emulated.problems import Problem, make_call, product

# sm90_split_k stores by threads alone: they add up the parts of other CTAs first.
CONFIGS = [c for c in jax_moye.configs() if c.kernel in ("sm90_cooperative", "sm90_pingpong")]
ROWS = [(c, out_dtype) for c in CONFIGS for out_dtype in c.out_dtypes]
every_row = pytest.mark.parametrize(("config", "out_dtype"), ROWS, ids=[f"{c.name}-{out}" for c, out in ROWS])


def counters(config, problem: Problem, out_dtype: str) -> dict[str, int]:
    call = make_call(config, problem, out_dtype)
    report = emulate(config, call, count_transactions=True)
    assert report["ok"], report["message"]
    expected = product(call.values_a, call.values_b).astype(call.d.dtype)
    np.testing.assert_array_equal(call.result().astype(np.float64), expected.astype(np.float64))
    return report["counters"]


@every_row
def test_aligned_results_go_by_tma(config, out_dtype):
    """Whole tiles and cut ones, of more matrices than one: no thread stores a result, and no bank is met twice."""
    tile_m, tile_n, _ = config.tile
    counted = counters(config, Problem(tile_m + 24, tile_n + 40, 48, "NT", batch=2), out_dtype)
    assert counted["global_store_requests"] == 0
    assert counted["shared_store_wavefronts"] == counted["shared_store_ideal_wavefronts"]


@every_row
def test_other_results_go_by_threads(config, out_dtype):
    """Rows that 16 bytes do not divide."""
    tile_m, tile_n, _ = config.tile
    assert counters(config, Problem(tile_m + 24, tile_n + 1, 48, "NT"), out_dtype)["global_store_requests"] > 0
