"""sm90_parts: f32 operands as parts of bf16. The parts are all of the operand, and what is infinite or NaN arrives."""

from __future__ import annotations

import numpy as np
import pytest

import jax_moye
from jax_moye import _moye_cpu
from jax_moye._kernels.dtypes import DTYPES
from tests.emulated.emulate import emulate
from tests.emulated.parts_cases import KINDS, LARGEST, SMALLEST, check, floats
from tests.emulated.problems import ORDERS, Problem, accumulation_bound, make_call, product

CONFIGS = [c for c in jax_moye.configs() if c.kernel == "sm90_parts"]
EXACT = [c for c in CONFIGS if DTYPES[c.dtype].parts == 3]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=[config.name for config in CONFIGS])
every_exact_config = pytest.mark.parametrize("config", EXACT, ids=[config.name for config in EXACT])
inf, nan = np.inf, np.nan


def multiplied(config, a: np.ndarray, b: np.ndarray, **options) -> np.ndarray:
    """a b, of matrices."""
    call = make_call(config, Problem(a.shape[0], b.shape[1], a.shape[1]), "f32")
    call.a[:], call.b[:] = a.reshape(-1), b.reshape(-1)
    report = emulate(config, call, **options)
    assert report["ok"], report["message"]
    return call.result()[0]


@every_exact_config
def test_three_parts_are_all_of_a_number(config):
    """Times 1 each number comes back, the smallest and the largest, too; as a or as b."""
    rng = np.random.default_rng(0)
    x = floats(rng, (130, 32))
    x[0] = np.resize([0.0, -0.0, SMALLEST, -SMALLEST, 2.0**-126, 2.0**-133, 2.0**-134, 3 * SMALLEST], 32)
    x[1] = np.resize([LARGEST, -LARGEST, np.nextafter(np.float32(LARGEST), np.float32(0)), 2.0**127], 32)
    x[2] = np.ldexp(1 + 2.0**-23, np.arange(-60, -28)) * 2
    identity = np.eye(32, dtype=np.float32)
    np.testing.assert_array_equal(multiplied(config, x, identity), x)
    np.testing.assert_array_equal(multiplied(config, identity, np.ascontiguousarray(x.T)), x.T)


@every_config
@pytest.mark.parametrize("k", [1, 7, 255, 256, 300, 1000])
@pytest.mark.parametrize("data", ["normal", "positive", "wide", "cancelling"])
def test_within_the_bound(config, data, k):
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, k), (k, 17)))
    if data == "positive":  # what tensor cores cut off has one sign
        a, b = abs(a), abs(b)
    elif data == "wide":
        a, b = floats(rng, a.shape, -50, 50), floats(rng, b.shape, -50, 50)
    elif data == "cancelling":
        a[:, k // 2 :] = -a[:, : k - k // 2]
        b[k // 2 :] = b[: k - k // 2] * (1 + np.float32(2.0**-20))
    error = abs(multiplied(config, a, b) - product(a, b))
    assert (error <= accumulation_bound(config, a, b) + 2.0**-24 * abs(product(a, b))).all()
    if config.dtype != "bf16x3":
        assert (accumulation_bound(config, a, b) <= (k + 8) * 2.0**-24 * (abs(a).astype(float) @ abs(b))).all()


@every_config
@pytest.mark.parametrize("order", ORDERS)
def test_generated_products(config, order):
    """A few of those that tests/gpu/test_gpu_parts.py has."""
    rng = np.random.default_rng([CONFIGS.index(config), ORDERS.index(order)])
    for k in rng.choice([1, 5, 16, 65, 257, 300], 2):
        m, n = rng.integers(1, 12, 2)
        assert check(config, rng, KINDS, 2, int(m), int(n), int(k), order, interpret=True) == 2 * len(KINDS)


@every_config
def test_infinity_and_nan_come_out_as_in_f32(config):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((140, 70)).astype(np.float32), rng.standard_normal((70, 20)).astype(np.float32)
    a[3, 5], a[4, 66], a[5, 7], a[6, [1, 2]] = inf, -inf, nan, (inf, -inf)
    a[7, 9], b[9, 3] = inf, 0  # NaN
    b[65, 11], b[1, 12] = inf, SMALLEST
    a[135, 1] = inf  # times SMALLEST
    a[8, :], b[:, 13] = 2.0**-148, 1.5  # small, and right beside what is not finite
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b
    actual = multiplied(config, a, b)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    rows, columns = np.isfinite(a).all(axis=1), np.isfinite(b).all(axis=0)
    a, b, actual, expected = a[rows], b[:, columns], actual[rows][:, columns], expected[rows][:, columns]
    # A sum of subnormal numbers rounds to one; of two parts, the first of a subnormal number may be 2^-133 more.
    least = 70 * SMALLEST if config.dtype != "bf16x3" else 2.0**-140 * abs(b).astype(float).sum(axis=0)
    assert (abs(actual - expected) <= accumulation_bound(config, a, b) + 2.0**-24 * abs(expected) + least).all()


@every_config
def test_what_overflows_is_not_finite(config):
    """Sums of a light weight that overflow are not forgotten: a finite result would have lost their bits."""
    a = np.array([[LARGEST, LARGEST], [LARGEST, -LARGEST], [1.0, 1.0]], np.float32)
    b = np.array([[LARGEST, 1.0], [1.0, 0.0]], np.float32)
    actual = multiplied(config, a, b)
    assert not np.isfinite(actual[:2, 0]).any()
    largest = LARGEST if config.dtype != "bf16x3" else LARGEST * (1 - 2.0**-16)
    assert largest <= actual[1, 1] <= LARGEST
    assert actual[2, 1] == 1


@every_config
@pytest.mark.parametrize("order", ORDERS)
def test_parts_lie_side_by_side(config, order):
    """Of whole k-tiles, of each matrix once; one launch splits both operands."""
    parts = DTYPES[config.dtype].parts
    call = make_call(config, Problem(130, 30, 150, order, batch=2), "f32")
    strides = call.a_strides, call.b_strides, call.d_strides
    assert _moye_cpu.workspace_bytes(config.name, call.sizes, *strides, "f32") == 2 * (130 + 30) * parts * 192 * 2
    call.a_strides = (0, *call.a_strides[1:])
    call.values_a = np.repeat(call.values_a[:1], 2, axis=0)
    strides = call.a_strides, *strides[1:]
    assert _moye_cpu.workspace_bytes(config.name, call.sizes, *strides, "f32") == (130 + 60) * parts * 192 * 2
    report = emulate(config, call, count_transactions=True)
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(call.result(), product(call.values_a, call.values_b))
    assert report["counters"]["launches"] == 2


@every_config
@pytest.mark.parametrize("order", ORDERS)
def test_splitting_is_coalesced(config, order):
    """Every sector that is read or written is one once, and no bank is met twice."""
    call = make_call(config, Problem(128, 128, 128, order), "bf16")
    report = emulate(config, call, count_transactions=True)
    assert report["ok"], report["message"]
    counted, elements = report["counters"], 2 * 128 * 128
    assert counted["global_load_sectors"] == counted["global_load_ideal_sectors"] == elements * 4 // 32
    stored = elements * 2 * DTYPES[config.dtype].parts // 32
    assert counted["global_store_sectors"] == counted["global_store_ideal_sectors"] == stored
    assert counted["shared_store_wavefronts"] == counted["shared_store_ideal_wavefronts"]
    assert counted["shared_load_wavefronts"] == counted["shared_load_ideal_wavefronts"]
