"""How the Hopper kernels' results reach d (cuda/gemm/epilogue_sm90.h): three ways, none with a conflict."""

from __future__ import annotations

import numpy as np
import pytest

import jax_moye
from jax_moye.layout.kernels import kernel_layouts
from jax_moye.layout.kernels.wgmma import CHUNK
from tests.emulated.emulate import emulate
from tests.emulated.problems import Problem, make_call, product

# sm90_split_k stores by threads alone: they add up the parts of other CTAs first.
CONFIGS = [c for c in jax_moye.configs() if c.kernel in ("sm90_cooperative", "sm90_pingpong")]
ROWS = [(c, out_dtype) for c in CONFIGS for out_dtype in c.out_dtypes]
every_row = pytest.mark.parametrize(("config", "out_dtype"), ROWS, ids=[f"{c.name}-{out}" for c, out in ROWS])


def counters(config, problem: Problem, out_dtype: str, activation: str = "none") -> dict[str, int]:
    call = make_call(config, problem, out_dtype)
    report = emulate(config, call, count_transactions=True, activation=activation)
    assert report["ok"], report["message"]
    expected = product(call.values_a, call.values_b).astype(call.d.dtype).astype(np.float64)
    expected = np.maximum(expected, 0) if activation == "relu" else expected
    np.testing.assert_array_equal(call.result().astype(np.float64), expected)
    counted = report["counters"]
    assert {name: number for name, number in counted.items() if name.endswith("_bank_conflicts") and number} == {}
    for name in ("shared_store", "stmatrix"):
        assert counted[f"{name}_wavefronts"] == counted[f"{name}_ideal_wavefronts"]
    return counted


def chunks(config, n: int) -> int:
    """Of a row of d: pieces of 32 columns, and less at the end of a consumer's part and of the row."""
    columns = kernel_layouts(config, "NT").columns
    return sum(-(-min(columns, n - first) // CHUNK) for first in range(0, n, columns))


@every_row
def test_aligned_results_go_by_tma(config, out_dtype):
    """Whole tiles and cut ones, of more matrices than one: no thread stores a result, and no bank is met twice."""
    tile_m, tile_n, _ = config.tile
    counted = counters(config, Problem(tile_m + 24, tile_n + 40, 48, "NT", batch=2), out_dtype)
    assert counted["global_store_requests"] == counted["shared_load_requests"] == 0 < counted["tma_stores"]


@every_row
def test_results_are_finished_on_their_way(config, out_dtype):
    """relu: by TMA too where 16-bit results leave the registers for it, else an element a lane."""
    tile_m, tile_n, _ = config.tile
    m, n = tile_m + 24, tile_n + 40
    counted = counters(config, Problem(m, n, 48, "NT"), out_dtype, activation="relu")
    if kernel_layouts(config, "NT").stores_by_threads(out_dtype, finished=True):
        assert counted["tma_stores"] == 0
        assert counted["global_store_requests"] == m * chunks(config, n)
    else:
        assert counted["global_store_requests"] == counted["shared_load_requests"] == 0 < counted["tma_stores"]


@every_row
def test_results_of_odd_rows_are_stored_side_by_side(config, out_dtype):
    """Rows that no word divides: a request is a chunk of one row, which begins and ends in a part of a sector."""
    tile_m, tile_n, _ = config.tile
    m, n = tile_m + 24, tile_n + 37
    counted = counters(config, Problem(m, n, 48, "NT"), out_dtype)
    assert counted["tma_stores"] == 0
    assert counted["global_store_requests"] == m * chunks(config, n)
    assert counted["global_store_sectors"] <= counted["global_store_ideal_sectors"] + m * chunks(config, n)
