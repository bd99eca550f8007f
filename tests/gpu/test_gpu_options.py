"""The contracts of docs/precision.md on a GPU: instructions of the emulator add as we wrote them, a GPU's do not."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (NumPy's names of small floats)
import numpy as np
import pytest
from this_gpu import configs_here

import jax_moye
from jax_moye import _compat
from jax_moye._kernels.configs import facts_of
from jax_moye._kernels.dtypes import numpy_dtypes
from jax_moye._selection.summation import Summation, summation
from tests.emulated.problems import NUMPY_DTYPES

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

M, N, K = 257, 72, 208  # the kernels with the widest loads take them
ROWS = range(1, 258, 16)


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def bits(x) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def uneven(rng, shape, dtype) -> jax.Array:
    """Numbers whose sums are rounded, so that the order of additions shows."""
    if np.dtype(dtype) == np.int8:
        return jnp.asarray(rng.integers(-128, 128, shape), dtype)
    return jnp.asarray((rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 5, shape)).astype(dtype))


def families() -> dict[Summation, list]:
    """The rows that this GPU runs, by how they sum."""
    found: dict[Summation, list] = {}
    for row in configs_here():
        found.setdefault(summation(row), []).append(row)
    return found


def operands(dtype, rng):
    """a (M, K) and b (N, K): contiguous along k, which every kernel takes."""
    of_a, of_b = numpy_dtypes(dtype)
    return uneven(rng, (M, K), of_a), uneven(rng, (N, K), of_b)


ALL = dict.fromkeys(summation(row) for row in jax_moye.configs())


@pytest.mark.parametrize("one", ALL, ids=lambda one: "-".join(map(str, one)))
def test_rows_of_one_summation_write_the_same_bits(one):
    rows = families().get(one, [])
    if not rows:
        pytest.skip("not for this GPU, or not in this build")
    a, b = operands(one.dtype, np.random.default_rng(0))
    out_dtype = NUMPY_DTYPES[rows[0].out_dtypes[-1]]
    precision = {"f16": "F16_F16_F16", "f32_fast": "ANY_F8_ANY_F8_F32_FAST_ACCUM"}.get(one.accumulator)

    def product(a, b, row):
        turned = functools.partial(jax_moye.matmul, config=row, preferred_element_type=out_dtype, precision=precision)
        if "NT" not in row.orders:  # contiguous along n
            return jax.jit(turned)(a, b.T)
        return jax.jit(lambda a, b: turned(a, b.T))(a, b)

    moved_by = 3
    if any("NT" not in row.orders for row in rows):  # rows contiguous along m or n are whole words
        a, moved_by = a[: M - M % 4], 4
    expected = bits(product(a, b, rows[0]))
    assert np.unique(expected).size > 100
    for row in rows:
        np.testing.assert_array_equal(bits(product(a, b, row)), expected, err_msg=row.name)
        facts = facts_of(row.kernel)
        if not facts.symmetric or facts.splits_k_by_sizes:  # other sizes may have other parts of k
            continue
        # The operands change places: what multiplies from the left now multiplies from the right.
        if a.dtype == b.dtype:
            np.testing.assert_array_equal(bits(product(b, a, row)), expected.T, err_msg=f"{row.name}, swapped")
        # Elements lie elsewhere in the tiles.
        np.testing.assert_array_equal(
            bits(product(a[37:], b[moved_by:], row)), expected[37:, moved_by:], err_msg=f"{row.name}, moved"
        )


DTYPES = [
    ("bfloat16", None),
    ("float16", None),
    ("float8_e4m3fn", None),
    ("float8_e5m2", None),
    ("int8", None),
    ("float32", None),
    ("float32", "high"),
    ("float32", "highest"),
    ("float64", None),
]


@pytest.mark.parametrize(("dtype", "precision"), DTYPES, ids=str)
def test_rows_do_not_depend_on_their_number(dtype, precision):
    rng = np.random.default_rng(1)
    if "float8" in dtype and (_compat.cuda_arch() or 0) < 89:
        pytest.skip("no 8-bit floats on this GPU")
    out_dtype = {"int8": "int32", "float64": "float64"}.get(dtype, "float32")
    product = functools.partial(
        jax_moye.matmul, batch_invariant=True, precision=precision, preferred_element_type=jnp.dtype(out_dtype)
    )
    a, w = uneven(rng, (M, 200), jnp.dtype(dtype)), uneven(rng, (200, N), jnp.dtype(dtype))
    full = bits(jax.jit(product)(a, w))
    transposed = jax.jit(lambda a_t, w: product(a_t.T, w))
    for m in ROWS:
        np.testing.assert_array_equal(bits(jax.jit(product)(a[:m], w)), full[:m], err_msg=f"{m} rows")
        np.testing.assert_array_equal(bits(transposed(a[:m].T, w)), full[:m], err_msg=f"{m} rows, transposed")
    np.testing.assert_array_equal(bits(jax.jit(jax.vmap(product, (0, None)))(a, w)), full)
    w_t = w.T
    swapped = jax.jit(jax.vmap(lambda w, x: product(w, x), (None, 0)))
    np.testing.assert_array_equal(bits(swapped(w_t, a)), full)
    np.testing.assert_array_equal(bits(jax.jit(product)(w_t, a[0])), full[0])


@pytest.mark.parametrize(("dtype", "precision"), DTYPES[:1] + DTYPES[5:8], ids=str)
def test_a_hundred_repeats(dtype, precision):
    rng = np.random.default_rng(2)
    a, b = uneven(rng, (512, 1024), jnp.dtype(dtype)), uneven(rng, (1024, 768), jnp.dtype(dtype))
    fun = jax.jit(functools.partial(jax_moye.matmul, deterministic=True, precision=precision))
    first = bits(fun(a, b))
    for _ in range(100):
        np.testing.assert_array_equal(bits(fun(a, b)), first)


def test_classes_of_f32():
    rng = np.random.default_rng(3)
    a, b = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((256, 512), (512, 256)))
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    magnitude = np.abs(np.asarray(a, np.float64)) @ np.abs(np.asarray(b, np.float64))

    def error(**options) -> float:
        out = jax.jit(functools.partial(jax_moye.matmul, **options))(a, b)
        return float((np.abs(np.asarray(out, np.float64) - exact) / magnitude).max())

    high = dict(precision="high", batch_invariant=True)  # 3 x TF32 whatever the size
    errors = {
        "default": error(implementation="moye"),
        "high": error(**high),
        "high by XLA": error(precision="high", implementation="xla"),
        "highest": error(precision="highest", implementation="moye"),
    }
    print(errors)
    assert 2**-14 < errors["default"] < 2**-10
    assert errors["high"] < 2**-18
    assert errors["high"] <= errors["high by XLA"] * 1.5
    assert errors["highest"] < 2**-20


def test_infinities_and_nan_at_high():
    a = jnp.asarray([[np.inf, 1], [-np.inf, 1], [np.nan, 1], [3.4e38, 0], [0, 1]], jnp.float32)
    b = jnp.asarray([[1, -2, 0, np.inf, 1.1], [1, 1, 1, 1, 1]], jnp.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = sum(np.asarray(a)[:, k, None] * np.asarray(b)[None, k] for k in range(2))
    actual = jax.jit(functools.partial(jax_moye.matmul, precision="high", batch_invariant=True))(a, b)
    np.testing.assert_allclose(actual, expected, rtol=2**-18)
