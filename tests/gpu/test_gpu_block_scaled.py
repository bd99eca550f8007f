"""Products of blocks that have scales on a GPU: generated ones within their bound, and what lowering finds."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from this_gpu import why_not_here

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import block_scaled_configs
from jax_moye._kernels.dtypes import numpy_dtypes
from jax_moye._primitives import autotune
from jax_moye._selection import measurements

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

CASES = 200  # of each config and kind of scales
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
every_config = pytest.mark.parametrize("config", block_scaled_configs(), ids=lambda config: config.name)


def skip_unless_here(config):
    if reason := why_not_here(config):
        pytest.skip(reason)


def operands(rng, config, sizes, of_columns, whole):
    """Normal operands, and scales that differ by 2^6 between blocks; whole: small integers, so that sums are exact."""
    batch, m, n, k = sizes
    lhs, rhs = (
        (rng.integers(-2, 3, (batch, x, k)) if whole else rng.standard_normal((batch, x, k))).astype(dtype)
        for x, dtype in zip((m, n), numpy_dtypes(config.dtype), strict=True)
    )
    scales = [
        np.exp2(rng.integers(-3, 4, (batch, x, k // 128)) if whole else rng.uniform(-4, 2, (batch, x, k // 128)))
        for x in (m, n if of_columns else -(-n // 128))
    ]
    return lhs, rhs, *(x.astype(np.float32) for x in scales)


def reference(lhs, rhs, lhs_scales, rhs_scales):
    """In float64: the product, and that of the magnitudes."""
    lhs, rhs, lhs_scales, rhs_scales = (x.astype(np.float64) for x in (lhs, rhs, lhs_scales, rhs_scales))
    if rhs_scales.shape[1] != rhs.shape[1]:
        rhs_scales = np.repeat(rhs_scales, 128, 1)[:, : rhs.shape[1]]
    lhs, rhs = lhs * np.repeat(lhs_scales, 128, 2), rhs * np.repeat(rhs_scales, 128, 2)
    return lhs @ rhs.swapaxes(1, 2), abs(lhs) @ abs(rhs).swapaxes(1, 2)


@every_config
@pytest.mark.parametrize("of_columns", [True, False], ids=["columns", "blocks"])
def test_generated_products(config, of_columns):
    """Sizes around those of tiles; exact sums to the bit, others within four instructions' cut and some roundings."""
    skip_unless_here(config)
    rng = np.random.default_rng(sum(map(ord, config.name)) + of_columns)
    worst = 0.0
    for case in range(CASES):
        if case % 10 == 0:  # a program for ten cases
            near = [1, 2, 7, 63, 64, 65, 127, 128, 129, int(rng.integers(1, 700))]
            m, n = (int(rng.choice(near)) for _ in range(2))
            sizes = int(rng.integers(1, 4)), m, n, 128 * int(rng.integers(2, 20))
            out = str(rng.choice(["float32", "bfloat16", "float16"]))
            run = jax.jit(
                functools.partial(
                    jax_moye.scaled_matmul, preferred_element_type=out, config=config.name, implementation="moye"
                )
            )
        whole = case % 2 == 0
        args = operands(rng, config, sizes, of_columns, whole)
        if case % 10 == 0:
            assert f"@{ffi.BLOCK_SCALED_TARGET}" in run.lower(*map(jnp.asarray, args)).as_text()
        found = np.asarray(run(*map(jnp.asarray, args))).astype(np.float64)
        exact, magnitude = reference(*args)
        if whole:
            rounded = exact.astype(np.float32).astype(getattr(ml_dtypes, out, out)).astype(np.float64)
            np.testing.assert_array_equal(found, rounded, err_msg=f"{config.name} {sizes} {case}")
            continue
        error, of_sums = abs(found - exact), 4 * 2.0**-13 + (sizes[3] // 128 + 4) * 2.0**-24
        if out == "float32":
            worst = max(worst, float((error / magnitude).max()))
        allowed = of_sums * magnitude + 1.01 * UNIT[out] * abs(exact) + 2.0**-24
        assert (error <= allowed).all(), f"{config.name} {sizes} {case}"
    print(f"{config.name}: largest error {worst * 2**13:.2f} x 2^-13 of the sum of magnitudes")


@every_config
@pytest.mark.parametrize("of_columns", [True, False], ids=["columns", "blocks"])
def test_large_products_are_the_same_each_time(config, of_columns):
    """More tiles than multiprocessors, each with many stages; no bit differs between launches."""
    skip_unless_here(config)
    rng = np.random.default_rng(3)
    args = [jnp.asarray(x) for x in operands(rng, config, (1, 2100, 2304, 4096), of_columns, whole=False)]
    run = jax.jit(functools.partial(jax_moye.scaled_matmul, config=config.name, implementation="moye"))
    first = np.asarray(run(*args))
    exact, magnitude = reference(*map(np.asarray, args))
    assert (abs(first - exact) <= (4 * 2.0**-13 + 40 * 2.0**-24) * magnitude).all()
    for _ in range(30):
        np.testing.assert_array_equal(np.asarray(run(*args)), first)


def test_lowering_measures(monkeypatch, tmp_path):
    """A large product is timed next to XLA's, and the faster one computes it."""
    if not [config for config in block_scaled_configs() if why_not_here(config) is None]:
        pytest.skip("no such row here")
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(measurements.AUTOTUNE, "on")
    monkeypatch.setattr(autotune, "_settled", set())
    measurements.forget()
    jax.clear_caches()
    shapes = ((1, 4096, 4096), "float8_e4m3fn"), ((1, 2048, 4096), "float8_e4m3fn"), ((1, 4096, 32), "float32")
    args = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes]
    for rows in (2048, 16):
        text = jax.jit(jax_moye.scaled_matmul).lower(*args, jax.ShapeDtypeStruct((1, rows, 32), jnp.float32)).as_text()
        entries = measurements.read(measurements.cache_file(jax.local_devices()[0].device_kind)).entries.values()
        (entry,) = [one for one in entries if one.variant.startswith("columns" if rows == 2048 else "blocks")]
        print(entry.variant, dict(entry.us), dict(entry.xla_us))
        assert entry.is_won_by_ours(entry.variant)  # of XLA's product in float32
        assert f'config = "{entry.config}"' in text
    measurements.forget()
