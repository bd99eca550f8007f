"""The bounds of problems.py against the errors that they are for."""

from __future__ import annotations

import types

import numpy as np
import pytest

from tests.emulated.problems import NUMPY_DTYPES, accumulation_bound, gpu_accumulation_bound


def truncated_sum(terms: np.ndarray) -> np.ndarray:
    """The sum over the first mode as tensor cores add 8-bit floats: 13 bits behind the point of the largest term."""
    unit = 2.0 ** (np.floor(np.log2(np.abs(terms).max(axis=0))) - 13)
    return (np.trunc(terms / unit) * unit).sum(axis=0)


def tensor_core(a: np.ndarray, b: np.ndarray, promoted: bool) -> np.ndarray:
    """(M,K) by (K,N), 32 products to an instruction; promoted: sums of 128 products are added exactly."""
    products = a.T[:, :, None] * b[:, None, :]
    total, running = np.zeros(products.shape[1:]), np.zeros(products.shape[1:])
    for k in range(0, len(products), 32):
        running = truncated_sum(np.concatenate([products[k : k + 32], running[None]]))
        if promoted and k % 128 == 96:
            total, running = total + running, np.zeros_like(running)
    return total + running


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("k", [1, 3, 32, 35, 131, 300])
@pytest.mark.parametrize(
    ("kernel", "sums", "arch"),
    [("sm90_cooperative", "f32", 90), ("sm90_cooperative", "f32_fast", 90), ("sm80_multistage", "f32", 89)],
)
def test_8_bit_floats(kernel, sums, arch, k, dtype):
    """A GPU is allowed what truncation costs, and little more; the emulator, which adds in f32, is not."""
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype]).astype(np.float64) for shape in ((64, k), (k, 64)))
    config = types.SimpleNamespace(kernel=kernel, dtype=dtype, accumulator=sums)
    error = abs(tensor_core(a, b, promoted=kernel.startswith("sm90") and sums == "f32") - a @ b)
    bound = gpu_accumulation_bound(config, a, b, arch)
    assert (error <= bound).all()
    if k > 1:
        assert (error > accumulation_bound(config, a, b)).any()
        assert (bound <= 0.002 * (abs(a) @ abs(b))).all()


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_promotion_is_visible(dtype):
    """Over a long k, sums that stay in the tensor core leave the bound of those that do not, and have a wider one."""
    k = 4096
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype]).astype(np.float64) for shape in ((32, k), (k, 32)))
    bounds = {}
    for sums, promoted in (("f32", True), ("f32_fast", False)):
        config = types.SimpleNamespace(kernel="sm90_cooperative", dtype=dtype, accumulator=sums)
        error = abs(tensor_core(a, b, promoted) - a @ b)
        bounds[sums] = gpu_accumulation_bound(config, a, b, 90)
        assert (error <= bounds[sums]).all()
    assert np.median(error) > 4 * np.median(abs(tensor_core(a, b, True) - a @ b))  # error: of the last, f32_fast
    assert (bounds["f32"] < bounds["f32_fast"]).all()


def test_everything_else_is_as_in_the_emulator():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 50)), rng.standard_normal((50, 4))
    for kernel, dtype, accumulator in (
        ("sm90_cooperative", "bf16", "f32"),
        ("sm90_cooperative", "tf32", "f32"),
        ("sm80_multistage", "f16", "f16"),
        ("sm80_multistage", "e4m3", "f32"),  # sm_90 has f16's mma.sync for it
        ("simt_tiled", "f64", "f64"),
    ):
        config = types.SimpleNamespace(kernel=kernel, dtype=dtype, accumulator=accumulator)
        np.testing.assert_array_equal(gpu_accumulation_bound(config, a, b, 90), accumulation_bound(config, a, b))
