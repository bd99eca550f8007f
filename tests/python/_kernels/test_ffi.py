"""The binding that the tests of the kernels call, and whether its handlers may be registered."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_moye
from jax_moye import _moye_cpu
from jax_moye._kernels import ffi, runtime
from jax_moye._kernels.dtypes import JAX_NAMES, numpy_dtypes

CONFIG = "sm80_multistage_bf16_64x64x64_s3_a16"
COUNTERS = {"launches", "ctas", "barriers", "mma", "ldmatrix", "cp_async_bytes", "global_stores"}


def call(
    config=CONFIG,
    m=20,
    n=24,
    k=32,
    dtype=ml_dtypes.bfloat16,
    out_dtype=None,
    b_transposed=False,
    b_dtype=None,
    **options,
):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(of) for shape, of in (((m, k), dtype), ((k, n), b_dtype or dtype)))
    d = np.zeros((m, n), out_dtype or dtype)
    b_memory, b_strides = (np.ascontiguousarray(b.T), [0, k, 1]) if b_transposed else (b, [0, 1, n])
    report = _moye_cpu.emulate(config, a, b_memory, d, [1, m, n, k], [0, k, 1], b_strides, [0, n, 1], **options)
    return report, d, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("options", [{}, {"guard": False}, {"flush": "start"}, {"workers": 2}, {"detect_races": False}])
@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
@pytest.mark.parametrize("order", ["fifo", "lifo", "random"])
def test_options(mode, order, options):
    report, d, expected = call(mode=mode, order=order, seed=5, **options)
    assert report["ok"], report["message"]
    assert report["message"] == ""
    np.testing.assert_array_equal(d.astype(np.float64), expected)
    assert set(report["counters"]) >= COUNTERS
    assert report["counters"]["launches"] == 1
    assert report["counters"]["ctas"] == 1
    assert report["counters"]["mma"] > 0


@pytest.mark.parametrize("out_dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_the_result_has_ds_dtype(out_dtype):
    report, d, expected = call(out_dtype=out_dtype)
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(d.astype(np.float64), expected)


def test_raw_bytes_and_a_named_dtype():
    a, b = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((16, 32), (32, 16)))
    for out_dtype, dtype in ((None, ml_dtypes.bfloat16), ("f32", np.float32), ("float16", np.float16)):
        d = np.zeros((16, 16), dtype)
        views = [x.view(np.uint8) for x in (a, b, d)]
        strides = [0, 32, 1], [0, 1, 16], [0, 16, 1]
        report = _moye_cpu.emulate(CONFIG, *views, [1, 16, 16, 32], *strides, out_dtype=out_dtype)
        assert report["ok"], report["message"]
        np.testing.assert_array_equal(d.astype(np.float64), 32)


@pytest.mark.parametrize("sizes", [(0, 24, 32), (20, 0, 32), (20, 24, 0)])
def test_zero_sizes(sizes):
    m, n, k = sizes
    report, d, _ = call(m=m, n=n, k=k)
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(d.astype(np.float64), np.zeros((m, n)))


@pytest.mark.parametrize("row", jax_moye.configs(), ids=lambda row: row.name)
def test_every_row_runs_without_alignment_to_spare(row):
    dtype, b_dtype = numpy_dtypes(row.dtype)
    step = row.alignment // dtype.itemsize
    out_dtype = jnp.dtype(JAX_NAMES[row.out_dtypes[0]])
    options = {"b_transposed": "NN" not in row.orders, "b_dtype": b_dtype}
    report, d, expected = call(row.name, 9, 3 * step, 5 * step, dtype, out_dtype, **options)
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(d.astype(np.float64), expected)


def test_an_epilogue():
    rng = np.random.default_rng(1)
    c, bias, residual = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((20, 24), (24,), (20, 24)))
    z = np.zeros((20, 24), np.float32)
    report, d, product = call(
        out_dtype=np.float32,
        c=c,
        c_strides=[0, 24, 1],
        bias=bias,
        bias_strides=[0, 0, 1],
        residual=residual,
        residual_strides=[0, 24, 1],
        alpha=0.5,
        beta=-2.0,
        activation="relu",
        preactivation=z,
    )
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(z, 0.5 * product - 2 * c + bias)
    np.testing.assert_array_equal(d, np.maximum(z, 0) + residual)


def test_what_does_not_fit_is_reported_not_run():
    report, _, _ = call("nope")
    assert not report["ok"]
    assert "nope" in report["message"]
    assert "no compiled GEMM has this name" in report["message"]
    report, _, _ = call(k=33)
    assert not report["ok"]
    assert "16 bytes do not divide" in report["message"]


def test_arguments_are_checked():
    for options, message in [
        ({"mode": "quick"}, "mode is eager, lazy or random, not quick"),
        ({"order": "any"}, "order is fifo, lifo or random, not any"),
        ({"flush": "both"}, "flush is end or start, not both"),
        ({"out_dtype": "int16"}, "no kernel reads or writes int16"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(**options)
    a = np.ones((32, 32), ml_dtypes.bfloat16)
    rest = [1, 16, 16, 16], [0, 32, 1], [0, 1, 32], [0, 32, 1]
    with pytest.raises(TypeError, match="a is no contiguous"):
        _moye_cpu.emulate(CONFIG, a[::2, ::2], a, a, *rest)
    with pytest.raises(TypeError, match="b is no contiguous"):
        _moye_cpu.emulate(CONFIG, a, [1.0], a, *rest)


def test_workspace_bytes():
    sizes, strides = [1, 64, 64, 64], [0, 64, 1]
    assert _moye_cpu.workspace_bytes(CONFIG, sizes, strides, strides, strides, "bf16") == 0
    with pytest.raises(ValueError, match="offset -1 is negative"):
        _moye_cpu.workspace_bytes(CONFIG, sizes, strides, strides, strides, "bf16", 0, -1)
    with pytest.raises(ValueError, match="no compiled GEMM has this name"):
        _moye_cpu.workspace_bytes("nope", sizes, strides, strides, strides, "bf16")
    with pytest.raises(ValueError, match="four to six sizes"):
        _moye_cpu.workspace_bytes(CONFIG, sizes[:3], strides, strides, strides, "bf16")


def test_a_too_new_header_is_not_registered(monkeypatch):
    ffi.why_unavailable.cache_clear()
    monkeypatch.setattr(runtime, "ffi_version", lambda: (0, 2))
    reason = ffi.why_unavailable.__wrapped__("cpu")
    assert "built for version 0." in reason
    assert "has 0.2" in reason
    monkeypatch.setattr(runtime, "ffi_version", lambda: None)
    assert ffi.why_unavailable.__wrapped__("cpu") is None
    monkeypatch.undo()
    assert runtime.ffi_version() >= (0, 3)
    assert "built without kernels for rocm" in ffi.why_unavailable.__wrapped__("rocm")
