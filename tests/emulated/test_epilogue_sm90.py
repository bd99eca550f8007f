"""How the Hopper kernels' results reach d (cuda/gemm/epilogue_sm90.h): by TMA or by threads, without a conflict."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import jax_moye
from jax_moye.layout.kernels import kernel_layouts
from jax_moye.layout.kernels.wgmma import CHUNK
from tests.emulated.emulate import emulate
from tests.emulated.problems import Call, Problem, accumulation_bound, make_call, order_for, product
from tests.emulated.test_epilogue import IN_WORDS, SCALED_CASES, assert_within, make

# sm90_split_k stores by threads alone: they add up the parts of other CTAs first.
CONFIGS = [c for c in jax_moye.configs() if c.kernel in ("sm90_cooperative", "sm90_pingpong")]
ROWS = [(c, out_dtype) for c in CONFIGS for out_dtype in c.out_dtypes]
every_row = pytest.mark.parametrize(("config", "out_dtype"), ROWS, ids=[f"{c.name}-{out}" for c, out in ROWS])


def counters_of_rows(config, problem: Problem, out_dtype: str, activation: str = "none") -> dict[str, int]:
    """Of a product, which is right."""
    call = make_call(config, problem, out_dtype)
    report = emulate(config, call, count_transactions=True, activation=activation)
    assert report["ok"], report["message"]
    expected = product(call.values_a, call.values_b).astype(call.d.dtype).astype(np.float64)
    expected = np.maximum(expected, 0) if activation == "relu" else expected
    np.testing.assert_array_equal(call.result().astype(np.float64), expected)
    return report["counters"]


def counters(config, problem: Problem, out_dtype: str, activation: str = "none") -> dict[str, int]:
    """The same, where no bank is met twice."""
    counted = counters_of_rows(config, problem, out_dtype, activation)
    assert {name: number for name, number in counted.items() if name.endswith("_bank_conflicts") and number} == {}
    for name in ("shared_store", "stmatrix"):
        assert counted[f"{name}_wavefronts"] == counted[f"{name}_ideal_wavefronts"]
    return counted


def assert_few_conflicts(counted: dict[str, int]) -> None:
    """Rows that begin at different places of a sector meet some banks in turn."""
    assert counted["shared_store_bank_conflicts"] <= 3 * counted["shared_store_requests"]
    assert counted["shared_load_bank_conflicts"] <= counted["shared_load_requests"] // 8


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
    """relu: by TMA too where there are registers for it, else an element a lane."""
    tile_m, tile_n, _ = config.tile
    m, n = tile_m + 24, tile_n + 40
    counted = counters(config, Problem(m, n, 48, "NT"), out_dtype, activation="relu")
    if kernel_layouts(config, "NT").stores_by_threads(out_dtype, finished=True):
        assert counted["tma_stores"] == 0
        assert counted["global_store_requests"] == m * chunks(config, n)
    else:
        assert counted["global_store_requests"] == counted["shared_load_requests"] == 0 < counted["tma_stores"]


def sectors(config, call, base: int) -> int:
    """Of d, which begins `base` bytes behind a sector: all that a consumer's part of each row touches."""
    batch, m, n, _ = call.sizes
    item, columns = call.d.itemsize, kernel_layouts(config, "NT").columns
    rows = np.add.outer(np.arange(batch) * call.d_strides[0], np.arange(m) * call.d_strides[1])
    first = np.arange(0, n, columns)
    begin = base + (rows[..., None] + first) * item
    end = begin + np.minimum(columns, n - first) * item
    return int((-(-end // 32) - begin // 32).sum())


@every_row
def test_results_of_odd_rows_are_stored_in_sectors(config, out_dtype):
    """Rows that no word divides: a tile's row begins and ends in a part of a sector, and no sector is stored twice.

    Where the sums leave no registers for that, a request is a chunk of one row, an element a lane.
    """
    tile_m, tile_n, _ = config.tile
    m, n = tile_m + 24, tile_n + 37
    shifts = kernel_layouts(config, "NT").shifts
    counted = (counters_of_rows if shifts else counters)(config, Problem(m, n, 48, "NT"), out_dtype)
    assert counted["tma_stores"] == 0
    if shifts:
        assert_few_conflicts(counted)
        call = make_call(config, Problem(m, n, 48, "NT"), out_dtype)
        base = -call.d.nbytes // 16 * 16 % 32  # guarded arrays end at a page
        assert counted["global_store_sectors"] == sectors(config, call, base)
        return
    assert counted["global_store_requests"] == m * chunks(config, n)
    assert counted["global_store_sectors"] <= counted["global_store_ideal_sectors"] + m * chunks(config, n)


# One config for each number of columns of a warpgroup, and each kernel.
SHIFTED = {
    (c.kernel, kernel_layouts(c, "NT").columns): c
    for c in jax_moye.configs()
    if c.kernel in ("sm90_cooperative", "sm90_pingpong") and c.dtype == "bf16" and kernel_layouts(c, "NT").shifts
}.values()
every_shifted = pytest.mark.parametrize("config", SHIFTED, ids=lambda config: config.name)
CANARY = -77


def placed(call, first: int) -> tuple[Call, np.ndarray]:
    """The call with d `first` elements behind an address of 64 bytes, and the memory around it, full of CANARY."""
    memory = np.full(call.d.size + 256, CANARY, call.d.dtype)
    begin = -memory.ctypes.data % 64 // memory.itemsize + 64 + first
    return dataclasses.replace(call, d=memory[begin : begin + call.d.size]), memory


def assert_written(call, memory: np.ndarray, expected: np.ndarray) -> None:
    """What was expected, and nothing outside d's rows."""
    np.testing.assert_array_equal(call.result().astype(np.float64), expected.astype(memory.dtype).astype(np.float64))
    call.result()[...] = CANARY
    assert (memory == CANARY).all()


@every_shifted
@pytest.mark.parametrize("out_dtype", ["bf16", "f32"])
def test_rows_that_begin_anywhere(config, out_dtype):
    """Every shift, rows shorter than a box and longer than a tile, two matrices: each sector is stored once."""
    columns, (_, tile_n, _) = kernel_layouts(config, "NT").columns, config.tile
    sizes = [1, 7, 16, 17, 63, 65, columns - 17, columns - 1, columns, columns + 1, tile_n + 79, 33, 48, 15, 2, 31]
    for first in range(16):
        problem = Problem(19, sizes[first], 16, order_for(config, "NT"), batch=2)
        call, memory = placed(make_call(config, problem, out_dtype), first)
        report = emulate(config, call, guard=False, count_transactions=True)
        assert report["ok"], report["message"]
        counted, base = report["counters"], call.d.ctypes.data % 32
        if counted["tma_stores"] == 0:  # short rows share sectors
            assert counted["global_store_sectors"] <= sectors(config, call, base)
            assert_few_conflicts(counted)
        assert_written(call, memory, product(call.values_a, call.values_b))


@every_shifted
@pytest.mark.parametrize("two", [False, True])
def test_shifted_results_are_finished(config, two):
    """A row of bias, c in place, a residual, and with two results the pre-activation, shifted otherwise than d."""
    rng = np.random.default_rng(0)
    tile_n = config.tile[1]
    for first, n in ((1, tile_n + 13), (6, tile_n - 6), (11, 77), (2, 10), (5, 1), (14, tile_n + 70)):
        made = make_call(config, Problem(21, n, 16, order_for(config, "NT"), batch=2), "bf16")
        (call, memory), (other, other_memory) = placed(made, first), placed(made, first + 3)
        sums = product(call.values_a, call.values_b).astype(np.float64)
        options = {"activation": "relu"} | ({"preactivation": other.d} if two else {})
        if n % 2 == 0:  # whole matrices of pairs
            call.d[...], residual = rng.integers(-3, 4, (2, call.d.size))
            residual = residual.astype(memory.dtype)
            options |= {"c": call.d, "c_strides": call.d_strides, "beta": 2.0}
            options |= {"residual": residual, "residual_strides": call.d_strides}
            before = sums + 2 * call.result().astype(np.float64)
            after = np.maximum(before, 0) + dataclasses.replace(call, d=residual).result().astype(np.float64)
        else:
            bias = rng.integers(-3, 4, n).astype(memory.dtype)
            options |= {"bias": bias, "bias_strides": (0, 0, 1), "alpha": -1.0}
            before = bias.astype(np.float64) - sums
            after = np.maximum(before, 0)
        report = emulate(config, call, guard=False, count_transactions=True, **options)
        assert report["ok"], report["message"]
        results = [(call, memory, after)] + ([(other, other_memory, before)] if two else [])
        is_whole = kernel_layouts(config, "NT").columns % 64 == 0
        few = math.prod(config.consumer_tile) <= 96 * 128
        if few and (is_whole or n % 2 == 1 or not two):  # else, perhaps, an element a lane
            most = sum(sectors(config, of, of.d.ctypes.data % 32) for of, _, _ in results)
            assert report["counters"]["global_store_sectors"] <= most
        for result in results:
            assert_written(*result)


@every_shifted
@pytest.mark.parametrize("flush", ["end", "start"])
def test_nothing_outside_shifted_rows_is_touched(config, flush):
    """d, a row of bias of odd length and the pre-activation end, or begin, at an inaccessible page."""
    for n in (1, 9, 131):
        call = make_call(config, Problem(5, n, 8, order_for(config, "NT")), "bf16")
        bias = np.arange(n).astype(call.d.dtype)
        preactivation = np.empty_like(call.d)
        options = {"bias": bias, "bias_strides": (0, 0, 1), "activation": "relu", "preactivation": preactivation}
        report = emulate(config, call, flush=flush, **options)
        assert report["ok"], report["message"]
        expected = (product(call.values_a, call.values_b) + bias.astype(np.float64)).astype(call.d.dtype)
        np.testing.assert_array_equal(dataclasses.replace(call, d=preactivation).result(), expected)
        np.testing.assert_array_equal(call.result(), np.maximum(expected, 0))


@pytest.mark.parametrize("case", [*IN_WORDS, SCALED_CASES[2]], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_floats_are_finished_in_registers(config, case):
    """All that is read beside sums, in words of two floats, more matrices and cut tiles: within the bound, by TMA."""
    if config.accumulator == "s32":
        pytest.skip("sums of integers are finished element by element on their way to floats")
    if case.lhs_scale and not config.scales:
        pytest.skip("its tile leaves no registers for scales")
    kernel = kernel_layouts(config, case.order if case.order in config.orders else config.orders[0])
    tile_m, tile_n, tile_k = config.tile
    call, epilogue = make(config, case, "f32", (tile_m + 5, tile_n + 12, tile_k), "normal", pad=8)
    report = emulate(config, call, **epilogue.options, count_transactions=True)
    assert report["ok"], report["message"]
    assert_within(config, call, epilogue, "f32", accumulation_bound(config, call.values_a, call.values_b))
    # A last box that begins early would finish c, which may be d, twice.
    in_turn = case.c and (case.bias or kernel.columns % 32)
    by_threads = bool(in_turn) or kernel.stores_by_threads("float32", finished=True)
    assert (report["counters"]["tma_stores"] == 0) == by_threads
