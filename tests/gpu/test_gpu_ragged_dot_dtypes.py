"""`jax_moye.ragged_dot` of float32 as TF32 and of 8-bit floats on a GPU: exact products of groups, scales, rounding."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (NumPy's names of small floats)
import numpy as np
import pytest
from jax import lax
from this_gpu import why_not_here

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs
from jax_moye._kernels.dtypes import FLOAT8, numpy_dtypes
from tests.emulated.problems import NUMPY_DTYPES, UNIT
from tests.gpu.test_gpu_ragged_dot import (
    ALL_SIZES,
    GROUPS,
    M,
    N,
    as_sizes,
    assert_exact,
    bits,
    ends_of,
    integers,
    poison,
    rows_by_groups,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

ROWS = [row for row in grouped_configs() if "NN" not in row.orders]
CONFIGS = [pytest.param(row, id=row.name) for row in ROWS]
OF_FLOAT8 = [pytest.param(row, id=row.name) for row in ROWS if row.dtype in FLOAT8]
K = 272  # three stages of 8-bit floats, the last of 16 elements
ragged_dot = functools.partial(jax_moye.ragged_dot, implementation="moye")


@pytest.fixture(autouse=True)
def _has_kernels(gpu):
    if all(why_not_here(config) for config in grouped_configs()):
        pytest.skip("no kernel for products of groups runs here")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def scale_of_rows(of_groups, sizes) -> np.ndarray:
    """(M, n) of (groups, n): what each row has of its group, 0 where it is in none."""
    found = np.zeros((M, of_groups.shape[1]))
    for (begin, end), row in zip(ends_of(sizes, M), of_groups, strict=True):
        found[begin:end] = row
    return found


@pytest.mark.parametrize("by_k", [True, False])
@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_rows_in_groups(rng, config, by_k):
    """Of matrices whose k is last, which are read as they lie, and of others, which XLA transposes first."""
    of_lhs, of_rhs = numpy_dtypes(config.dtype)
    lhs, rhs = integers(rng, (M, K), of_lhs), integers(rng, (GROUPS, K, N), of_rhs)
    stored = np.ascontiguousarray(rhs.swapaxes(1, 2)) if by_k else rhs
    for out_dtype in config.out_dtypes:

        @jax.jit
        def product(lhs, stored, sizes, out_dtype=NUMPY_DTYPES[out_dtype]):
            seen = jnp.swapaxes(stored, 1, 2) if by_k else stored
            return ragged_dot(lhs, seen, sizes, config=config.name, preferred_element_type=out_dtype)

        for name, sizes in ALL_SIZES.items():
            poison()
            found = product(lhs, stored, as_sizes(sizes))
            assert_exact(found, rows_by_groups(lhs, rhs, sizes), f"{config.name} to {out_dtype}, {name}")
        assert product._cache_size() == 1  # other sizes are the same program


@pytest.mark.parametrize("config", OF_FLOAT8, indirect=True)
def test_scales_bias_and_activation(rng, config):
    of_lhs, of_rhs = numpy_dtypes(config.dtype)
    lhs, rhs = integers(rng, (M, K), of_lhs), integers(rng, (GROUPS, N, K), of_rhs)
    bias = integers(rng, (GROUPS, N), "bfloat16")
    of_rows, of_columns = (2.0 ** rng.integers(-2, 3, shape).astype(np.float32) for shape in ((M,), (GROUPS, N)))

    @jax.jit
    def product(lhs, rhs, sizes, *scales):
        options = dict(bias=bias, activation="relu", config=config.name, preferred_element_type="bfloat16")
        return ragged_dot(lhs, rhs.swapaxes(1, 2), sizes, lhs_scale=scales[0], rhs_scale=scales[1], **options)

    text = product.lower(lhs, rhs, as_sizes(ALL_SIZES["even"]), of_rows, of_columns).compile().as_text()
    assert text.count(f'custom_call_target="{ffi.SCALED_GROUPED_TARGET}"') == 1
    for name, sizes in ALL_SIZES.items():
        poison()
        found = product(lhs, rhs, as_sizes(sizes), of_rows, of_columns)
        z = rows_by_groups(lhs, rhs.swapaxes(1, 2), sizes)
        z = z * of_rows[:, None] * scale_of_rows(of_columns, sizes) + scale_of_rows(bias.astype(np.float64), sizes)
        assert_exact(found, np.maximum(z, 0), f"{config.name}, {name}")


@pytest.mark.parametrize("groups", [1, 33, 512])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 16, 8), (40, 32, 72), (1000, 128, 136), (2100, 400, 264)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
def test_sizes_and_numbers_of_groups(rng, dtype, groups, m, k, n):
    """Float32 by default, which is TF32 on a GPU."""
    lhs, rhs = integers(rng, (m, k), dtype), integers(rng, (groups, n, k), dtype)
    product = jax.jit(lambda x, w, sizes: ragged_dot(x, w.swapaxes(1, 2), sizes, preferred_element_type="float32"))
    for most in (2, 2 * m // groups + 2, m + 1):
        sizes = rng.integers(0, most, groups)
        found = product(lhs, rhs, as_sizes(sizes))
        assert_exact(found, rows_by_groups(lhs, rhs.swapaxes(1, 2), sizes), f"sizes below {most}")


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
def test_nan_stays_in_its_group(rng, dtype):
    sizes, nan = (64, 0, 65, 30, 100), np.nan
    lhs, rhs = integers(rng, (M, K), dtype), integers(rng, (5, N, K), dtype)
    clean = rows_by_groups(lhs, rhs.swapaxes(1, 2), sizes)
    lhs[64:129], lhs[259:], rhs[1] = nan, nan, nan
    program = jax.jit(lambda x, w, sizes: ragged_dot(x, w.swapaxes(1, 2), sizes, preferred_element_type="float32"))
    found = np.asarray(program(lhs, rhs, as_sizes(sizes)))
    assert np.isnan(found[64:129]).all()
    for rows in (slice(0, 64), slice(129, M)):
        assert_exact(found[rows], clean[rows], str(rows))


def test_the_gradient_to_the_rows_is_a_kernels(rng):
    lhs, rhs = integers(rng, (M, 72), "float32"), integers(rng, (GROUPS, 72, N), "float32")
    cotangent, sizes = integers(rng, (M, N), "float32"), ALL_SIZES["rows left over"]
    program = jax.jit(lambda x, w, s, c: jax.vjp(lambda x, w: jax_moye.ragged_dot(x, w, s), x, w)[1](c))
    of_lhs, of_rhs = program(lhs, rhs, as_sizes(sizes), cotangent)
    assert_exact(of_lhs, rows_by_groups(cotangent, rhs.swapaxes(1, 2), sizes), "of lhs")
    text = program.lower(lhs, rhs, as_sizes(sizes), cotangent).compile().as_text()
    assert text.count(f'custom_call_target="{ffi.GROUPED_TARGET}"') == 1  # that of rhs is XLA's
    assert np.abs(np.asarray(of_rhs)).max() > 0


@pytest.mark.parametrize("name", ["even", "skewed", "rows left over"])
def test_sums_of_8_bit_floats_are_f32s(rng, name):
    """Of normal numbers and many products: those that stay in the tensor core are less precise."""
    sizes, k = ALL_SIZES[name], 4096
    lhs, rhs = (jnp.asarray(rng.standard_normal(s), "float8_e4m3fn") for s in ((M, k), (GROUPS, N, k)))
    fast = lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM
    exact = rows_by_groups(lhs, np.asarray(rhs).swapaxes(1, 2), sizes)
    magnitude = rows_by_groups(
        np.abs(np.asarray(lhs, np.float32)), np.abs(np.asarray(rhs, np.float32)).swapaxes(1, 2), sizes
    )
    errors = {}
    for precision in (None, fast):
        options = dict(precision=precision, preferred_element_type="float32")
        found = jax.jit(lambda x, w, s, options=options: ragged_dot(x, w.swapaxes(1, 2), s, **options))(
            lhs, rhs, as_sizes(sizes)
        )
        errors[precision] = np.abs(np.asarray(found, np.float64) - exact)
    bound = (4 * 2.0**-13 + (k / 128 + 2) * UNIT["f32"]) * magnitude
    assert (errors[None] <= bound).all()
    assert errors[None].mean() < errors[fast].mean()


def test_tf32(rng):
    sizes, k = ALL_SIZES["skewed"], 1024
    lhs, rhs = (rng.standard_normal(s).astype(np.float32) for s in ((M, k), (GROUPS, N, k)))
    found = np.asarray(jax.jit(lambda x, w, s: ragged_dot(x, w.swapaxes(1, 2), s))(lhs, rhs, as_sizes(sizes)))
    magnitude = rows_by_groups(np.abs(lhs), np.abs(rhs).swapaxes(1, 2), sizes)
    bound = (2.1 * 2.0**-11 + (k / 8 + 2) * 2 * UNIT["f32"]) * magnitude  # operands are rounded
    assert (np.abs(found - rows_by_groups(lhs, rhs.swapaxes(1, 2), sizes)) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
def test_a_rows_bits_do_not_depend_on_other_rows(rng, dtype):
    k, out = 528, "float32" if dtype == "float32" else "bfloat16"
    lhs, rhs = (jnp.asarray(rng.standard_normal(s), dtype) for s in ((M, k), (GROUPS, N, k)))
    scales = {} if dtype == "float32" else dict(rhs_scale=jnp.asarray(rng.uniform(0.5, 2, (GROUPS, N)), jnp.float32))
    options = dict(scales, batch_invariant=True, preferred_element_type=out)
    product = jax.jit(lambda x, w, s: ragged_dot(x, w.swapaxes(1, 2), s, **options))
    alone = bits(product(lhs, rhs, as_sizes([M if g == 3 else 0 for g in range(GROUPS)])))
    assert np.unique(alone).size > 1000
    for before, rows in ((0, 30), (1, 63), (64, 65), (100, 1), (0, 200)):
        sizes = [0, before, 0, rows, 0, M - before - rows, 0]
        found = bits(product(lhs, rhs, as_sizes(sizes)))[before : before + rows]
        np.testing.assert_array_equal(found, alone[before : before + rows], err_msg=f"{rows} behind {before}")
    for m in (1, 8, 129):  # another program, of fewer rows, whose kernel may be another
        few = bits(product(lhs[:m], rhs, as_sizes([m if g == 3 else 0 for g in range(GROUPS)])))
        np.testing.assert_array_equal(few, alone[:m], err_msg=f"{m} rows")


@pytest.mark.parametrize("dtype", ["e4m3", "tf32"])
def test_tiles_sum_alike(rng, dtype):
    rows = [row for row in ROWS if (row.dtype, row.accumulator) == (dtype, "f32") and not why_not_here(row)]
    lhs, rhs = (jnp.asarray(rng.standard_normal(s), NUMPY_DTYPES[dtype]) for s in ((M, 528), (GROUPS, N, 528)))
    sizes, found = as_sizes(ALL_SIZES["skewed"]), []
    for row in rows:
        options = dict(config=row.name, preferred_element_type="float32")
        product = jax.jit(lambda x, w, s, options=options: ragged_dot(x, w.swapaxes(1, 2), s, **options))
        found.append(bits(product(lhs, rhs, sizes)))
    assert np.unique(found[0]).size > 1000
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_loops_and_command_buffers(rng):
    """Five or more launches in a row are a CUDA graph, replayed with other sizes each time."""
    n, repeats = 128, 6
    rotations = jnp.stack([jnp.asarray(np.roll(np.eye(n), g, axis=0), "float8_e4m3fn") for g in range(GROUPS)])
    scale = jnp.full((GROUPS,), 2.0, jnp.float32)

    @jax.jit
    def chain(x, rotations, sizes):
        for _ in range(repeats):
            options = dict(rhs_scale=scale, lhs_scale=0.5, preferred_element_type="bfloat16")
            x = ragged_dot(x, rotations.swapaxes(1, 2), sizes, **options).astype("float8_e4m3fn")
        return x

    for _ in range(10):
        x, sizes = integers(rng, (200, n), "float8_e4m3fn"), rng.integers(0, 60, GROUPS)
        expected = np.zeros((200, n))
        for g, (begin, end) in enumerate(ends_of(sizes, 200)):
            expected[begin:end] = np.roll(x[begin:end].astype(np.float64), repeats * g, axis=1)
        assert_exact(chain(x, rotations, as_sizes(sizes)), expected, str(sizes))
    assert chain._cache_size() == 1
