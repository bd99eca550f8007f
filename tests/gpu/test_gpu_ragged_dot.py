"""`jax_moye.ragged_dot` on a GPU, under jit: exact products of groups, derivatives, loops, promises about bits."""

from __future__ import annotations

import functools
import re

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
from tests.emulated.problems import NUMPY_DTYPES, UNIT

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

# Of all orders: test_gpu_ragged_dot_dtypes.py has those that read operands along k alone.
CONFIGS = [pytest.param(config, id=config.name) for config in grouped_configs() if "NN" in config.orders]
DTYPES = ["bfloat16", "float16"]
M, N, K, GROUPS = 333, 136, 200, 7
# Of 333 rows: groups of none, of one, of a tile and one more, skewed ones; such as do not fill them, and as overfill.
ALL_SIZES = {
    "even": (48, 48, 48, 48, 47, 47, 47),
    "with empty ones": (0, 100, 0, 0, 1, 232, 0),
    "around tiles": (64, 65, 1, 63, 128, 12, 0),
    "skewed": (3, 1, 2, 320, 5, 1, 1),
    "all in the last": (0, 0, 0, 0, 0, 0, 333),
    "rows left over": (10, 0, 70, 0, 30, 1, 2),
    "no rows": (0, 0, 0, 0, 0, 0, 0),
    "too many": (100, 200, 300, 0, 5, 2**31 - 1, 7),
    "below zero": (40, -3, 50, -(2**31), 100, 1, 2),
}
ragged_dot = functools.partial(jax_moye.ragged_dot, implementation="moye")


@pytest.fixture(autouse=True)
def _has_kernels(gpu):
    if all(why_not_here(config) for config in grouped_configs()):
        pytest.skip("no kernel for products of groups runs here")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def integers(rng, shape, dtype) -> np.ndarray:
    """In [-2, 2]: their products and sums are exact."""
    return rng.integers(-2, 3, shape).astype(dtype)


def ends_of(sizes, length):
    """(begin, end) of each group: one below zero counts as zero, and groups end where the ragged mode does."""
    ends = np.minimum(np.cumsum(np.maximum(np.asarray(sizes, object), 0)), length).astype(int)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def rows_by_groups(lhs, rhs, sizes) -> np.ndarray:
    """[m,k], [g,k,n] -> [m,n] in float64."""
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    out = np.zeros((lhs.shape[0], rhs.shape[2]))
    for (begin, end), matrix in zip(ends_of(sizes, len(lhs)), rhs, strict=True):
        out[begin:end] = lhs[begin:end] @ matrix
    return out


def sums_of_groups(lhs, rhs, sizes) -> np.ndarray:
    """[k,m], [k,n] -> [g,m,n] in float64."""
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    return np.stack([lhs[begin:end].T @ rhs[begin:end] for begin, end in ends_of(sizes, len(lhs))])


def assert_exact(found, expected, message) -> None:
    """Equal to what float64 says, rounded once."""
    found = np.asarray(found)
    assert found.shape == expected.shape
    wrong = np.argwhere(found.astype(np.float64) != expected.astype(found.dtype).astype(np.float64))
    assert not len(wrong), f"{message}: {len(wrong)} of {found.size} elements are wrong, the first at {wrong[0]}"


def bits(x) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def as_sizes(sizes) -> jax.Array:
    return jnp.asarray(np.array(sizes, np.int64).astype(np.int32))


def poison() -> None:
    """Leaves NaN in device memory that the next outputs are likely to be in: what a kernel misses to write shows."""
    arrays = [jnp.full((1 << shift,), jnp.nan, jnp.float32) for shift in range(8, 20)]
    jax.block_until_ready(arrays)
    for array in arrays:
        array.delete()


# ------------------------------------------------------------------------------------------------------- exact numbers


@pytest.mark.parametrize("rhs_order", ["gkn", "gnk"])
@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_rows_in_groups(rng, config, rhs_order):
    dtype = NUMPY_DTYPES[config.dtype]
    lhs, rhs = integers(rng, (M, K), dtype), integers(rng, (GROUPS, K, N), dtype)
    stored = rhs if rhs_order == "gkn" else np.ascontiguousarray(rhs.swapaxes(1, 2))
    for out_dtype in config.out_dtypes:

        @jax.jit
        def product(lhs, stored, sizes, out_dtype=NUMPY_DTYPES[out_dtype]):
            seen = stored if rhs_order == "gkn" else jnp.swapaxes(stored, 1, 2)
            return ragged_dot(lhs, seen, sizes, config=config.name, preferred_element_type=out_dtype)

        for name, sizes in ALL_SIZES.items():
            poison()
            found = product(lhs, stored, as_sizes(sizes))
            assert found.dtype == NUMPY_DTYPES[out_dtype]
            assert_exact(found, rows_by_groups(lhs, rhs, sizes), f"{config.name} {rhs_order} to {out_dtype}, {name}")
        assert product._cache_size() == 1  # other sizes are the same program


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_sums_over_groups(rng, config):
    dtype = NUMPY_DTYPES[config.dtype]
    lhs, rhs = integers(rng, (M, 72), dtype), integers(rng, (M, N), dtype)
    dimensions = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    for out_dtype in config.out_dtypes:
        options = dict(implementation="moye", config=config.name, preferred_element_type=NUMPY_DTYPES[out_dtype])
        product = jax.jit(
            functools.partial(jax_moye.ragged_dot_general, ragged_dot_dimension_numbers=dimensions, **options)
        )
        for name, sizes in ALL_SIZES.items():
            poison()
            found = product(lhs, rhs, as_sizes(sizes))
            assert_exact(found, sums_of_groups(lhs, rhs, sizes), f"{config.name} to {out_dtype}, {name}")
        assert product._cache_size() == 1


@pytest.mark.parametrize("groups", [1, 2, 33, 512])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 8, 8), (40, 24, 72), (1000, 120, 136), (2100, 8, 264)], ids=str)
def test_sizes_and_numbers_of_groups(rng, groups, m, k, n):
    lhs, rhs = integers(rng, (m, k), "bfloat16"), integers(rng, (groups, k, n), "bfloat16")
    product = jax.jit(functools.partial(ragged_dot, preferred_element_type="float32"))
    for most in (2, 2 * m // groups + 2, m + 1):
        sizes = rng.integers(0, most, groups)
        assert_exact(product(lhs, rhs, as_sizes(sizes)), rows_by_groups(lhs, rhs, sizes), f"sizes below {most}")


def test_nan_stays_in_its_group(rng):
    sizes, nan = (64, 0, 65, 30, 100), np.nan
    lhs, rhs = integers(rng, (M, K), "bfloat16"), integers(rng, (5, K, N), "bfloat16")
    clean = rows_by_groups(lhs, rhs, sizes)
    lhs[64:129], lhs[259:], rhs[1] = nan, nan, nan
    found = np.asarray(jax.jit(ragged_dot)(lhs, rhs, as_sizes(sizes)))
    assert np.isnan(found[64:129].astype(np.float32)).all()
    for rows in (slice(0, 64), slice(129, M)):
        assert_exact(found[rows], clean[rows], str(rows))


# ----------------------------------------------------------------------------------------------------- transformations


@pytest.mark.parametrize("name", ALL_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_gradients(rng, dtype, name):
    sizes = ALL_SIZES[name]
    lhs, rhs = integers(rng, (M, K), dtype), integers(rng, (GROUPS, K, N), dtype)
    cotangent = integers(rng, (M, N), dtype)

    @jax.jit
    def both(lhs, rhs, sizes, cotangent):
        out, vjp = jax.vjp(lambda lhs, rhs: ragged_dot(lhs, rhs, sizes), lhs, rhs)
        return out, *vjp(cotangent)

    poison()
    out, of_lhs, of_rhs = both(lhs, rhs, as_sizes(sizes), cotangent)
    assert (of_lhs.dtype, of_rhs.dtype) == (dtype, dtype)
    assert_exact(out, rows_by_groups(lhs, rhs, sizes), name)
    assert_exact(of_lhs, rows_by_groups(cotangent, rhs.swapaxes(1, 2), sizes), f"of lhs, {name}")
    assert_exact(of_rhs, sums_of_groups(lhs, cotangent, sizes), f"of rhs, {name}")


def test_programs_have_our_calls_alone(rng):
    lhs, rhs = integers(rng, (M, K), "bfloat16"), integers(rng, (GROUPS, K, N), "bfloat16")
    sizes, cotangent = as_sizes(ALL_SIZES["even"]), integers(rng, (M, N), "bfloat16")

    def calls(fun, *args):
        text = jax.jit(fun).lower(*args).compile().as_text()
        ours = text.count(f'custom_call_target="{ffi.GROUPED_TARGET}"')
        return ours, len(re.findall(r"= \S+ dot\(|__cublas|__triton_gemm", text))

    def both(lhs, rhs, sizes, cotangent):
        out, vjp = jax.vjp(lambda lhs, rhs: ragged_dot(lhs, rhs, sizes), lhs, rhs)
        return out, *vjp(cotangent)

    assert calls(ragged_dot, lhs, rhs, sizes) == (1, 0)
    assert calls(jax_moye.ragged_dot, lhs, rhs, sizes) == (1, 0)  # unless somebody asks for another
    assert calls(both, lhs, rhs, sizes, cotangent) == (3, 0)


def test_loops_and_command_buffers(rng):
    # XLA records five or more launches in a row into a CUDA graph and replays it. Group g's matrix rotates a row by g
    # places, so the result of a chain is known exactly.
    n, steps, repeats = 128, 5, 6
    rotations = jnp.stack([jnp.asarray(np.roll(np.eye(n), g, axis=1), jnp.bfloat16) for g in range(GROUPS)])

    @jax.jit
    def chain(x, rotations, sizes):
        def step(x, sizes):
            for _ in range(repeats):
                x = ragged_dot(x, rotations, sizes)
            return x, x[:, 0]

        return lax.scan(step, x, sizes)

    for _ in range(20):  # other buffers and other sizes each time: the graph is updated, then replayed
        x = integers(rng, (200, n), "bfloat16")
        sizes = rng.integers(0, 60, (steps, GROUPS)).astype(np.int32)
        expected, columns = np.array(x), []
        for of_step in sizes:
            moved = np.zeros_like(expected)
            for g, (begin, end) in enumerate(ends_of(of_step, len(x))):
                moved[begin:end] = np.roll(expected[begin:end], repeats * g, axis=1)
            expected = moved
            columns.append(expected[:, 0])
        found, found_columns = chain(x, rotations, sizes)
        assert_exact(found, expected.astype(np.float64), "the last")
        assert_exact(found_columns, np.array(columns, np.float64), "of every step")
    assert chain._cache_size() == 1


def test_vmap(rng):
    lhs, rhs = integers(rng, (3, 70, K), "bfloat16"), integers(rng, (3, GROUPS, K, N), "bfloat16")
    sizes = rng.integers(0, 20, (3, GROUPS)).astype(np.int32)
    for axes in ((0, 0, 0), (0, None, 0), (None, None, 0), (0, None, None), (None, 0, None)):
        operands = [x if axis == 0 else x[0] for x, axis in zip((lhs, rhs, sizes), axes, strict=True)]
        found = jax.jit(jax.vmap(ragged_dot, axes))(*operands)
        for i in range(3):
            own = [x[i] if axis == 0 else x for x, axis in zip(operands, axes, strict=True)]
            assert_exact(found[i], rows_by_groups(*own), f"{axes}, {i}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_activation(rng, dtype):
    lhs, rhs = integers(rng, (M, K), dtype), integers(rng, (GROUPS, K, N), dtype)
    bias = integers(rng, (GROUPS, N), dtype)
    product = jax.jit(lambda *operands: ragged_dot(*operands[:3], bias=operands[3], activation="relu"))
    for name, sizes in ALL_SIZES.items():
        z = rows_by_groups(lhs, rhs, sizes)
        for (begin, end), row in zip(ends_of(sizes, M), bias.astype(np.float64), strict=True):
            z[begin:end] += row
        assert_exact(product(lhs, rhs, as_sizes(sizes), bias), np.maximum(z, 0), name)


@pytest.mark.parametrize("config", [x for x in CONFIGS if x.values[0].takes_pair], indirect=True)
def test_a_gate_of_exact_integers(rng, config):
    """Both orders of the matrices, and both products where they are asked for."""
    dtype = NUMPY_DTYPES[config.dtype]
    x, gate, up = (integers(rng, s, dtype) for s in ((M, 72), (GROUPS, 72, N), (GROUPS, 72, N)))
    options = dict(activation="relu", implementation="moye", config=config.name)
    fun = functools.partial(jax_moye.ragged_gated_linear_unit, **options)
    turned = [np.ascontiguousarray(w.swapaxes(1, 2)) for w in (gate, up)]
    of_turned = jax.jit(lambda x, g, u, sizes: fun(x, jnp.swapaxes(g, 1, 2), jnp.swapaxes(u, 1, 2), sizes))
    kept = jax.jit(lambda x, g, u, sizes: jax.vjp(lambda *a: fun(*a, sizes), x, g, u)[0])
    for name, sizes in ALL_SIZES.items():
        expected = np.maximum(rows_by_groups(x, gate, sizes), 0) * rows_by_groups(x, up, sizes)
        for program, weights in ((jax.jit(fun), (gate, up)), (of_turned, turned), (kept, (gate, up))):
            poison()
            assert_exact(program(x, *weights, as_sizes(sizes)), expected, f"{config.name}, {name}")


@pytest.mark.parametrize("name", ["even", "skewed", "rows left over"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_a_gate(rng, dtype, name):
    """Of small integers, which 16 bits hold; of the program that `optimize` was given, too."""
    sizes, k = ALL_SIZES[name], 8
    x, gate, up = (jnp.asarray(rng.integers(-1, 2, s), dtype) for s in ((M, k), (GROUPS, k, N), (GROUPS, k, N)))

    def of_program(x, gate, up, sizes):
        return jax.nn.relu(lax.ragged_dot(x, gate, sizes)) * lax.ragged_dot(x, up, sizes)

    def both(fun):
        return jax.jit(lambda *a: (fun(*a), *jax.vjp(lambda *b: fun(*b, a[3]), *a[:3])[1](fun(*a))))

    found = both(functools.partial(jax_moye.ragged_gated_linear_unit, activation="relu", implementation="moye"))
    with jax_moye.options(implementation="moye"):
        optimized = jax.jit(jax_moye.optimize(both(of_program)))(x, gate, up, as_sizes(sizes))
    z, factor = rows_by_groups(x, gate, sizes), rows_by_groups(x, up, sizes)
    y = np.maximum(z, 0) * factor  # 64 at most
    z_bar, factor_bar = (z > 0) * y * factor, np.maximum(z, 0) * y  # 512 at most
    of_x = rows_by_groups(z_bar, np.asarray(gate).swapaxes(1, 2), sizes)
    of_x = of_x + rows_by_groups(factor_bar, np.asarray(up).swapaxes(1, 2), sizes)
    wanted = y, of_x, sums_of_groups(x, z_bar, sizes), sums_of_groups(x, factor_bar, sizes)
    unit = 2 * UNIT[{"bfloat16": "bf16", "float16": "f16"}[dtype]]
    for results in (found(x, gate, up, as_sizes(sizes)), optimized):
        assert_exact(results[0], y, name)
        for one, other in zip(results[1:], wanted[1:], strict=True):
            error = np.abs(np.asarray(one).astype(np.float64) - other).max()
            assert error <= 4 * unit * np.abs(other).max(), name


def test_a_gate_is_one_call_and_keeps_its_promises(rng):
    x, gate, up = (normal(rng, s, "bfloat16") for s in ((M, 520), (GROUPS, 520, N), (GROUPS, 520, N)))
    promises = dict(batch_invariant=True, deterministic=True)
    program = jax.jit(functools.partial(jax_moye.ragged_gated_linear_unit, **promises))
    text = program.lower(x, gate, up, as_sizes(ALL_SIZES["even"])).compile().as_text()
    assert text.count(f'custom_call_target="{ffi.GROUPED_TARGET}"') == 1
    alone = bits(program(x, gate, up, as_sizes([M if g == 3 else 0 for g in range(GROUPS)])))
    assert np.unique(alone).size > 1000
    for before, rows in ((0, 30), (1, 63), (64, 65), (100, 1)):
        sizes = [0, before, 0, rows, 0, M - before - rows, 0]
        found = bits(program(x, gate, up, as_sizes(sizes)))[before : before + rows]
        np.testing.assert_array_equal(found, alone[before : before + rows], err_msg=f"{rows} behind {before}")


# ------------------------------------------------------------------------------------------------------------ rounding


def normal(rng, shape, dtype):
    return jnp.asarray(rng.standard_normal(shape), dtype)


@pytest.mark.parametrize("name", ["even", "skewed", "rows left over"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_normal_numbers_and_laxs_product(rng, dtype, name):
    sizes, k = ALL_SIZES[name], 1024
    lhs, rhs = normal(rng, (M, k), dtype), normal(rng, (GROUPS, k, N), dtype)
    found, theirs = (
        np.asarray(jax.jit(functools.partial(fun, preferred_element_type="float32"))(lhs, rhs, as_sizes(sizes)))
        for fun in (ragged_dot, lax.ragged_dot)
    )
    magnitude = rows_by_groups(np.abs(np.asarray(lhs)), np.abs(np.asarray(rhs)), sizes)
    bound = (k / 16 + 2) * 2 * UNIT["f32"] * magnitude  # tensor cores add 16 products and truncate
    exact = rows_by_groups(lhs, rhs, sizes)
    assert (np.abs(found - exact) <= bound).all()
    assert (np.abs(found.astype(np.float64) - theirs) <= bound + (k + 2) * UNIT["f32"] * magnitude).all()


def test_the_same_bits_from_run_to_run(rng):
    lhs, rhs, sizes = normal(rng, (M, K), "bfloat16"), normal(rng, (GROUPS, K, N), "bfloat16"), ALL_SIZES["skewed"]

    @jax.jit
    def both(lhs, rhs, sizes):
        fun = functools.partial(ragged_dot, deterministic=True)
        out, vjp = jax.vjp(lambda lhs, rhs: fun(lhs, rhs, sizes), lhs, rhs)
        return out, *vjp(out)

    first = both(lhs, rhs, as_sizes(sizes))
    for _ in range(20):
        for again, before in zip(both(lhs, rhs, as_sizes(sizes)), first, strict=True):
            np.testing.assert_array_equal(bits(again), bits(before))


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_do_not_depend_on_other_rows(rng, dtype, out_dtype):
    lhs, rhs = normal(rng, (M, 520), dtype), normal(rng, (GROUPS, 520, N), dtype)
    product = jax.jit(functools.partial(ragged_dot, batch_invariant=True, preferred_element_type=out_dtype))
    group = 3
    alone = bits(product(lhs, rhs, as_sizes([M if g == group else 0 for g in range(GROUPS)])))
    assert np.unique(alone).size > 1000
    for rows in (1, 2, 15, 16, 17, 63, 64, 65, 128, 200):  # of the group, others in front of it and behind it
        for before in (0, 1, 7, 64, M - rows):
            sizes = [0] * GROUPS
            sizes[1], sizes[group], sizes[5] = before, rows, M - rows - before
            found = bits(product(lhs, rhs, as_sizes(sizes)))[before : before + rows]
            np.testing.assert_array_equal(found, alone[before : before + rows], err_msg=f"{rows} behind {before}")
    for m in (1, 8, 40, 129):  # another program, of fewer rows, whose kernel may be another
        few = bits(product(lhs[:m], rhs, as_sizes([m if g == group else 0 for g in range(GROUPS)])))
        np.testing.assert_array_equal(few, alone[:m], err_msg=f"{m} rows")
