"""c or a residual on its way to the boxes while its tile is multiplied (cuda/gemm/epilogue_ahead.h): what is added, and
what a derivative is taken at."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jax_moye._selection.epilogue import DERIVATIVES
from jax_moye.layout.kernels import kernel_layouts
from tests.emulated.emulate import emulate
from tests.emulated.problems import Problem, accumulation_bound, make_call, order_for, product
from tests.emulated.test_epilogue import Case, assert_exact, assert_within, make
from tests.emulated.test_epilogue_sm90 import CONFIGS

AHEAD = [config for config in CONFIGS if kernel_layouts(config, "NT").loads_ahead]
# One for each part of a tile that a warpgroup has, each kernel and its clusters, and sums that are promoted; of several
# one whose operands are not packed, by threads that load.
ORDERED = sorted(AHEAD, key=lambda config: config.alignment)
EACH = list({(c.kernel, c.consumer_tile, c.cluster, c.dtype in ("e4m3", "e5m2")): c for c in ORDERED}.values())
every_ahead = pytest.mark.parametrize("config", EACH, ids=lambda config: config.name)
derives_ahead = pytest.mark.parametrize("config", [c for c in EACH if c.derives], ids=lambda config: config.name)
# And one of each kernel that reads c a box ahead.
OTHERS_BY_KERNEL = {config.kernel: config for config in CONFIGS if config.derives and config not in AHEAD}
DERIVING = [*(config for config in EACH if config.derives), *OTHERS_BY_KERNEL.values()]
derives = pytest.mark.parametrize("config", DERIVING, ids=lambda config: config.name)
HALVES = ("bf16", "f16")
# Both operands, with and without all that may be beside them, of one matrix and several; one for each activation.
AHEAD_CASES = [
    Case("none", residual="bmn"),
    Case("none", alpha=1.5, beta=-0.75, c="bmn", batch=2),
    Case("relu", alpha=-0.5, bias="n", residual="mn", batch=2),
    Case("gelu_tanh", alpha=0.25, bias="n", residual="bmn", batch=3),
    Case("gelu_erf", alpha=0.5, beta=0.5, c="mn", batch=2, order="NT"),
    Case("silu", alpha=0.125, bias="n", residual="bmn", order="TT"),
]
AHEAD_EXACT = [
    Case("relu", alpha=2.0, bias="n", residual="bmn", batch=3),
    Case("none", alpha=-1.0, beta=2.0, c="bmn", batch=3),
]
# Calls that read them otherwise: two operands, two results, scales, an operand that TMA cannot read.
OTHERS = [
    Case("relu", beta=1.0, c="bmn", residual="bmn"),
    Case("relu", residual="bmn", preactivation=True),
    Case("relu", beta=1.0, c="bmn", bias="n"),
    Case("none", bias="m", residual="bmn"),
    Case("none", residual="bnm"),
    Case("none", residual="n"),
    Case("none", residual="bmn", lhs_scale="m"),
]


def sizes_of(config) -> tuple[int, int, int]:
    """More tiles than the two multiprocessors have consumers; the last rows and columns of tiles are not there."""
    tile_m, tile_n, tile_k = config.tile
    return 3 * tile_m + 5, 2 * tile_n + 8, tile_k + 16


def boxes_of(call) -> int:
    """Boxes of 16 rows and 64 columns that a matrix like d has, where columns of tiles are whole boxes."""
    batch, m, n, _ = call.sizes
    return batch * -(-m // 16) * -(-n // 64)


def loaded_beside_operands(config, call, options: dict) -> tuple[int, int]:
    """Boxes that TMA loads for the epilogue, and requests of threads to global memory."""
    alone = emulate(config, call, count_transactions=True)
    assert alone["ok"], alone["message"]
    counted = emulate(config, call, count_transactions=True, **options)
    assert counted["ok"], counted["message"]
    number = {name: counted["counters"][name] - alone["counters"][name] for name in ("tma_loads", "tma_load_bytes")}
    if number["tma_loads"]:
        batch, m, n, _ = call.sizes
        assert number["tma_load_bytes"] == batch * m * n * 2  # those that lie in d, once
    counted = counted["counters"]
    for name in ("ldmatrix", "stmatrix"):
        assert counted[f"{name}_wavefronts"] == counted[f"{name}_ideal_wavefronts"]
    return number["tma_loads"], counted["global_load_requests"]


def test_rows_that_load_ahead():
    """Those whose staging holds a warp's part of a tile, of both kernels; a tile of 256 columns has half of it."""
    assert {config.kernel for config in AHEAD} == {"sm90_pingpong", "sm90_cooperative"}
    names = {config.name.split("_s")[0] for config in AHEAD}
    assert "sm90_pingpong_bf16_128x128x64" in names
    assert not [name for name in names if "256x128" in name or "128x256" in name or "s8" in name]


# Every second case of a config.
PAIRS = [(config, case) for i, config in enumerate(EACH) for case in AHEAD_CASES[i % 2 :: 2]]


@pytest.mark.parametrize(("config", "case"), PAIRS, ids=[f"{config.name}-{case}" for config, case in PAIRS])
def test_componentwise_bound(config, case):
    """One output dtype after the other."""
    out_dtype = HALVES[(AHEAD_CASES.index(case) // 2 + EACH.index(config)) % 2]
    call, epilogue = make(config, case, out_dtype, sizes_of(config), "normal", pad=8)
    report = emulate(config, call, **epilogue.options)
    assert report["ok"], report["message"]
    assert_within(config, call, epilogue, out_dtype, accumulation_bound(config, call.values_a, call.values_b))


@every_ahead
@pytest.mark.parametrize("case", AHEAD_EXACT, ids=str)
def test_exact_integers(config, case):
    """However late, or early, the loads land; one row, a tile's corner, a whole tile."""
    modes = ["random", "eager", "lazy", "random"]
    for sizes, mode in zip((sizes_of(config), (1, 8, 40), (16, 72, 8), (*config.tile[:2], 1)), modes, strict=True):
        call, epilogue = make(config, case, "bf16", sizes, "integers", pad=8)
        report = emulate(config, call, **epilogue.options, mode=mode, seed=sizes[1])
        assert report["ok"], report["message"]
        assert_exact(call, epilogue)


@every_ahead
def test_c_in_place(config):
    """c is d: a warp reads all that it writes before, and nothing that another one writes."""
    out_dtype = HALVES[EACH.index(config) % 2]
    problem = Problem(*sizes_of(config), order_for(config, "NT"), batch=2, pad=8)
    call = make_call(config, problem, out_dtype)
    call.d[...] = np.random.default_rng(0).integers(-3, 4, call.d.size)
    expected = 2 * call.result().astype(np.float64) - product(call.values_a, call.values_b)
    whole = kernel_layouts(config, "NT").columns % 64 == 0
    options = {"c": call.d, "c_strides": call.d_strides, "alpha": -1.0, "beta": 2.0}
    report = emulate(config, call, count_transactions=True, **options)
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(call.result(), expected.astype(call.d.dtype))
    if whole:  # else its first columns would be finished twice where a last box begins early
        assert report["counters"]["global_load_requests"] == 0


@every_ahead
def test_by_tma_alone(config):
    """A load of 16 rows of 128 bytes for each box of d, no box beside d, and no thread but for a row of bias."""
    if kernel_layouts(config, "NT").columns % 64:
        pytest.skip("boxes begin early: some are loaded twice")
    case = AHEAD_EXACT[EACH.index(config) % 2]
    call, epilogue = make(config, case, "bf16", sizes_of(config), "integers", pad=8)
    boxes, requests = loaded_beside_operands(config, call, epilogue.options)
    assert boxes == boxes_of(call)
    assert (requests > 0) == bool(case.bias)


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_what_is_not_read_ahead(case):
    """It is right, and no box is loaded: threads read it."""
    config = next(config for config in AHEAD if config.scales)
    call, epilogue = make(config, case, "bf16", (70, 136, 40), "integers", pad=8)
    boxes, requests = loaded_beside_operands(config, call, epilogue.options)
    assert boxes == 0 < requests
    assert_exact(call, epilogue)


def times_derivative(config, activation, sizes, pitch):
    """Runs a call with a batch of two, of normal numbers, whose first row is one of zeros: (c, call, report).

    pitch: elements between rows of c.
    """
    out_dtype = HALVES[(config.tile[1] // 64 + list(DERIVATIVES).index(activation)) % 2]
    call = make_call(config, Problem(*sizes, order_for(config, "NT"), batch=2, pad=8), out_dtype, values="normal")
    _, m, n, _ = call.sizes
    call.a[: call.a_strides[1]] = 0
    rows = (2 * np.random.default_rng(n).standard_normal((2, m, n))).astype(call.d.dtype)
    rows[0, :, :3] = 0, 8, -8  # where a derivative jumps, and where it is 1 or 0
    c = np.zeros((2, m, pitch), call.d.dtype)
    c[..., :n] = rows
    given = {"c": c.ravel(), "c_strides": (m * pitch, pitch, 1), "beta": 1.0, "alpha": -0.25, "activation": activation}
    report = emulate(config, call, count_transactions=True, **given)
    assert report["ok"], report["message"]
    return rows, call, report


@derives_ahead
@pytest.mark.parametrize("activation", DERIVATIVES)
def test_derivatives_are_those_that_threads_read(config, activation):
    """Of c that TMA can read, and of c whose rows are no whole words of 16 bytes, bit by bit, the sign of 0 as well."""
    _, n, _ = sizes = sizes_of(config)
    _, ahead, counted = times_derivative(config, activation, sizes, n + 8)
    _, finished, others = times_derivative(config, activation, sizes, n + 4)
    np.testing.assert_array_equal(ahead.d.view(np.uint16), finished.d.view(np.uint16))
    assert np.signbit(ahead.d[ahead.d == 0].astype(np.float32)).any()
    assert others["counters"]["global_load_requests"] > 0
    if kernel_layouts(config, "NT").columns % 64 == 0:
        assert counted["counters"]["global_load_requests"] == 0
        loads = counted["counters"]["tma_loads"] - others["counters"]["tma_loads"]
        assert loads == boxes_of(ahead)


@derives_ahead
def test_derivatives_of_exact_integers(config):
    """However late, or early, the loads land; one row, a tile's corner, a whole tile."""
    case, modes = Case("d_relu", alpha=2.0, beta=-3.0, c="mn", batch=3), ["random", "eager", "lazy", "random"]
    for sizes, mode in zip((sizes_of(config), (1, 8, 40), (16, 72, 8), (*config.tile[:2], 1)), modes, strict=True):
        call, epilogue = make(config, case, "bf16", sizes, "integers", pad=8)
        report = emulate(config, call, **epilogue.options, mode=mode, seed=sizes[1])
        assert report["ok"], report["message"]
        expected = np.where(epilogue.matrices["c"] > 0, 2 * product(call.values_a, call.values_b), 0)
        np.testing.assert_array_equal(call.result(), expected.astype(call.d.dtype))


@derives
@pytest.mark.parametrize("activation", DERIVATIVES)
def test_a_derivative_at_d_in_place(config, activation):
    """c is d: results are those of a c elsewhere."""
    _, n, _ = sizes = sizes_of(config)
    c, apart, _ = times_derivative(config, activation, sizes, n)
    in_place = dataclasses.replace(apart, d=c.ravel().copy())
    given = {"c": in_place.d, "c_strides": in_place.d_strides, "beta": 1.0, "alpha": -0.25, "activation": activation}
    report = emulate(config, in_place, **given)
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(in_place.d.view(np.uint16), apart.d.view(np.uint16))


@pytest.mark.parametrize("where", ["pitch", "begin", "k"])
def test_where_tma_cannot_read_it(where):
    """Rows that are no whole words of 16 bytes, a first element between two of them, and no main loop to read it in."""
    config = AHEAD[0]
    m, n, k = 70, 136, 0 if where == "k" else 40
    call = make_call(config, Problem(m, n, k, order_for(config, "NT"), pad=8), "bf16")
    pitch = n + (4 if where == "pitch" else 8)
    memory = np.random.default_rng(1).integers(-3, 4, m * pitch + 8).astype(call.d.dtype)
    first = -memory.ctypes.data % 16 // 2 + (2 if where == "begin" else 0)
    residual = memory[first : first + m * pitch - (pitch - n)]
    report = emulate(
        config,
        call,
        guard=False,
        count_transactions=True,
        residual=residual,
        residual_strides=(0, pitch, 1),
    )
    assert report["ok"], report["message"]
    assert report["counters"]["global_load_requests"] > 0
    rows = np.lib.stride_tricks.as_strided(residual, (m, n), (2 * pitch, 2))
    expected = product(call.values_a, call.values_b)[0] + rows.astype(np.float64)
    np.testing.assert_array_equal(call.result()[0], expected.astype(call.d.dtype))
