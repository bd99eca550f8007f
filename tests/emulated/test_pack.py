"""Rows that pack operands first (cuda/gemm/pack.h): which are packed, into how many bytes, and how they are moved."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import jax_moye
from jax_moye import _moye_cpu
from jax_moye._kernels.dtypes import DTYPES
from tests.emulated.emulate import emulate
from tests.emulated.problems import NUMPY_DTYPES, ORDERS, Problem, make_call, product

# A producer loads with TMA: what it cannot read is packed.
CONFIGS = [c for c in jax_moye.configs() if c.consumers and c.any_stride and not DTYPES[c.dtype].parts]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=[config.name for config in CONFIGS])
MAX_INT64 = 2**63 - 1


def workspace_bytes(config, call) -> int:
    strides = call.a_strides, call.b_strides, call.d_strides
    return _moye_cpu.workspace_bytes(config.name, call.sizes, *strides, config.out_dtypes[0])


def packed_bytes(config, rows: int, k: int, along_rows: bool = False, matrices: int = 1) -> int:
    """Lines along k; of 16 bits along the rows, where the operand's own are."""
    itemsize = NUMPY_DTYPES[config.dtype].itemsize
    lines, elements = (k, rows) if along_rows and itemsize == 2 else (rows, k)
    return matrices * lines * -(-elements * itemsize // 32) * 32


def padded(values: np.ndarray, transposed: bool, pitch: int, offset: int = 0):
    """(batch, rows, columns) with `pitch` elements between rows (columns), NaN or 85 between them; and its strides."""
    stored = values.swapaxes(1, 2) if transposed else values
    batch, outer, inner = stored.shape
    memory = np.full(offset + batch * outer * pitch, 85 if values.dtype.kind == "i" else np.nan, values.dtype)
    memory[offset:].reshape(batch, outer, pitch)[:, :, :inner] = stored
    strides = (outer * pitch, 1, pitch) if transposed else (outer * pitch, pitch, 1)
    return memory, strides


def check(config, call, **options) -> dict[str, int]:
    report = emulate(config, call, count_transactions=True, **options)
    assert report["ok"], report["message"]
    expected = product(call.values_a, call.values_b).astype(call.d.dtype)
    np.testing.assert_array_equal(call.result().astype(np.float64), expected.astype(np.float64))
    return report["counters"]


def place(config, problem: Problem, a_pitch: int, b_pitch: int):
    call = make_call(config, problem, config.out_dtypes[0])
    call.a, call.a_strides = padded(call.values_a, problem.order[0] == "T", a_pitch)
    call.b, (batch, k, n) = padded(call.values_b, problem.order[1] == "T", b_pitch)
    call.b_strides = (batch, n, k)
    return call


@every_config
@pytest.mark.parametrize("order", ORDERS)
def test_only_what_needs_it_is_packed(config, order):
    """wgmma reads 16-bit operands in any order, others along k alone; TMA wants 16 bytes. One launch packs both."""
    itemsize = NUMPY_DTYPES[config.dtype].itemsize
    vector = 16 // itemsize
    problem = Problem(130, 134, 150, order, batch=2)
    for a_even, b_even in itertools.product((True, False), repeat=2):
        # Pitches that are, and are not, whole vectors of 16 bytes.
        a_pitch, b_pitch = (160 if even else 160 + max(1, vector // 2) - vector for even in (a_even, b_even))
        call = place(config, problem, a_pitch, b_pitch)
        a_in_place = a_even and (itemsize == 2 or order[0] == "N")
        b_in_place = b_even and (itemsize == 2 or order[1] == "T")
        expected = 0 if a_in_place else packed_bytes(config, problem.m, problem.k, order[0] == "T", matrices=2)
        expected += 0 if b_in_place else packed_bytes(config, problem.n, problem.k, order[1] == "N", matrices=2)
        assert workspace_bytes(config, call) == expected
        assert check(config, call)["launches"] == (2 if expected else 1)


@every_config
def test_batches_and_addresses(config):
    """A batch stride that 16 bytes do not divide; a batch of one matrix, which is packed once."""
    itemsize = NUMPY_DTYPES[config.dtype].itemsize
    problem = Problem(20, 24, 64, "NT", batch=3)
    call = place(config, problem, 64, 64)
    assert workspace_bytes(config, call) == 0
    step = problem.m * 64 + 1
    memory = np.full(3 * step, 85 if call.a.dtype.kind == "i" else np.nan, call.a.dtype)
    for i in range(3):
        memory[i * step : i * step + step - 1] = call.a[i * (step - 1) : (i + 1) * (step - 1)]
    call.a, call.a_strides = memory, (step, 64, 1)
    assert workspace_bytes(config, call) == packed_bytes(config, 3 * problem.m, problem.k)
    check(config, call)

    call = place(config, problem, 64 + 1, 64)
    call.a_strides = (0, *call.a_strides[1:])
    call.values_a = np.repeat(call.values_a[:1], 3, axis=0)
    assert workspace_bytes(config, call) == packed_bytes(config, problem.m, problem.k)
    check(config, call)

    # Memory that begins between two multiples of 16. Nobody who asks for the workspace knows, and nothing is run.
    room = np.zeros(call.a.nbytes + 32, np.uint8)
    first = -room.__array_interface__["data"][0] % 16 + itemsize
    memory = room[first : first + call.a.nbytes].view(call.a.dtype)
    call = place(config, problem, 64, 64)
    memory = memory[: call.a.size]
    memory[:] = call.a
    call.a = memory
    assert workspace_bytes(config, call) == 0
    check(config, call, guard=False)


@every_config
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 3, 129), (129, 1, 1), (3, 131, 2), (257, 31, 33), (65, 66, 300)])
def test_edges(config, order, sizes):
    """Tiles of the copy that are cut along each mode, with pitches of odd elements."""
    m, n, k = sizes
    problem = Problem(m, n, k, order, batch=1 + m % 2)
    inner_a, inner_b = (k if order[0] == "N" else m), (n if order[1] == "N" else k)
    for pad in (0, 1, 2, 3):
        check(config, place(config, problem, inner_a + pad, inner_b + pad))


@every_config
@pytest.mark.parametrize("order", ["NT", "TN", "TT", "NN"])
def test_the_copy_is_coalesced(config, order):
    """Whole tiles in words: every sector that is read is read once, and no bank is met twice.

    The main kernel has no plain load of global memory, and its results go by TMA, or are a stream of whole sectors: the
    other counters are the copy's.
    """
    itemsize = NUMPY_DTYPES[config.dtype].itemsize
    out_dtype = "bf16"
    tile = 128 // itemsize
    pitch = 4 * tile + 4 // itemsize  # four bytes more than whole sectors
    m = n = k = 4 * tile
    call = make_call(config, Problem(m, n, k, order), out_dtype)
    call.a, call.a_strides = padded(call.values_a, order[0] == "T", pitch)
    call.b, (batch, stride_k, stride_n) = padded(call.values_b, order[1] == "T", pitch)
    call.b_strides = (batch, stride_n, stride_k)
    counted = check(config, call)
    assert counted["launches"] == 2
    # 128 bytes from an address that is a multiple of 4 lie in five sectors at most.
    words = (m + n) * k * itemsize // 4
    assert counted["global_load_requests"] == words // 32
    assert counted["global_load_sectors"] <= 5 * counted["global_load_requests"]
    by_threads = m * n * 2 // 32 if config.kernel == "sm90_split_k" else 0
    stored = words // 8 + by_threads
    assert counted["global_store_sectors"] == counted["global_store_ideal_sectors"] == stored
    assert counted["shared_store_wavefronts"] == counted["shared_store_ideal_wavefronts"]
    assert counted["shared_load_wavefronts"] == counted["shared_load_ideal_wavefronts"]


@every_config
def test_too_much_workspace_is_a_number(config):
    """Strides of 0 make operands of any size out of one element: no product of sizes overflows."""
    largest = 2**31 - 1
    for batch, rows, k in ((1, largest, largest), (largest, largest, largest), (largest, largest, 1)):
        call_sizes = [batch, rows, 1, k]
        strides = [1, 0, 0], [0, 0, 1], [rows, 1, 1]
        got = _moye_cpu.workspace_bytes(config.name, call_sizes, *strides, config.out_dtypes[0])
        assert got >= min(MAX_INT64, packed_bytes(config, batch * rows, k))
