"""matmul: jnp.matmul's shapes and dtypes, numbers within the bound, through the kernels in the emulator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.support import (
    assert_close,
    custom_calls,
    data_movements,
    integers,
    kernel_calls,
    lowered_text,
)

import jax_moye
from jax_moye._kernels.dtypes import FLOAT8, numpy_dtypes

interpreted = functools.partial(jax_moye.matmul, implementation="moye", interpret=True)

SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 5)),
    ((4, 3), (3,)),
    ((4, 3), (3, 5)),
    ((1, 3), (3, 1)),
    ((4, 1), (1, 5)),
    ((1, 1), (1, 1)),
    ((2, 4, 3), (3, 5)),
    ((2, 4, 3), (2, 3, 5)),
    ((2, 4, 3), (1, 3, 5)),
    ((1, 4, 3), (2, 3, 5)),
    ((4, 3), (2, 3, 5)),
    ((1, 1, 4, 3), (2, 3, 5)),
    ((2, 6, 4, 3), (6, 3, 5)),
    ((6, 4, 3), (2, 1, 3, 5)),
    ((3,), (2, 3, 5)),
    ((2, 4, 3), (3,)),
    ((2, 6, 4, 3), (2, 6, 3, 5)),
    ((65, 129), (129, 70)),
]
ZERO_SHAPES = [
    ((0, 3), (3, 5)),
    ((4, 0), (0, 5)),
    ((4, 3), (3, 0)),
    ((0, 4, 3), (3, 5)),
    ((0,), (0,)),
    ((2, 4, 0), (0, 5)),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES, ids=str)
def test_shapes(rng, a_shape, b_shape, dtype):
    a, b = integers(rng, a_shape, dtype), integers(rng, b_shape, dtype)
    # Two broadcast batch dimensions that do not merge are more than one product: those go to XLA.
    two_batches = {len(a_shape), len(b_shape)} == {3, 4}
    matmul = functools.partial(jax_moye.matmul, interpret=True) if two_batches else interpreted
    expected = jnp.matmul(a, b)
    for fun in (matmul, jax.jit(matmul)):
        actual = fun(a, b)
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(dtype))


@pytest.mark.parametrize(("a_shape", "b_shape"), ZERO_SHAPES, ids=str)
@pytest.mark.parametrize("implementation", [None, "moye", "xla"])
def test_zero_sizes_give_zeros(a_shape, b_shape, implementation):
    a, b = jnp.ones(a_shape, jnp.bfloat16), jnp.ones(b_shape, jnp.bfloat16)
    interpret = None if implementation == "xla" else True
    actual = jax_moye.matmul(a, b, implementation=implementation, interpret=interpret)
    expected = jnp.matmul(a, b)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, jnp.zeros_like(expected))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("distribution", ["normal", "positive", "scaled"])
def test_error_bound(rng, dtype, distribution):
    with jax.enable_x64(True):
        shapes = ((70, 300), (300, 66))
        a, b = (rng.standard_normal(shape) for shape in shapes)
        if distribution == "positive":
            a, b = np.abs(a), np.abs(b)
        if distribution == "scaled":
            a, b = (x * 2.0 ** rng.integers(-6, 6, x.shape) for x in (a, b))
        a, b = (x.astype(jnp.dtype(dtype)) for x in (a, b))
        assert_close(interpreted(a, b), a, b)
        if dtype in ("bfloat16", "float16"):
            wide = interpreted(a, b, preferred_element_type=jnp.float32)
            assert wide.dtype == jnp.float32
            assert_close(wide, a, b)


@pytest.mark.parametrize("config", jax_moye.configs(), ids=lambda row: row.name)
def test_every_config_is_reached(rng, config):
    with jax.enable_x64(True):
        of_a, of_b = (dtype.name for dtype in numpy_dtypes(config.dtype))
        m, n, k = (size + 16 for size in config.tile)
        a, b = integers(rng, (m, k), of_a), integers(rng, (k, n), of_b)
        # 8-bit results would hold few of the sums.
        wide = ({"s8": jnp.int32} | dict.fromkeys(FLOAT8, jnp.float32)).get(config.dtype)
        matmul = functools.partial(jax_moye.matmul, preferred_element_type=wide)
        turned = "NN" not in config.orders  # some rows take NT alone

        def fun(a, b, config=config):
            return matmul(a, b.T if turned else b, config=config, interpret=True)

        stored = np.ascontiguousarray(b.T) if turned else b
        assert [call.config for call in custom_calls(lowered_text(fun, a, stored, platform="cpu"))] == [config.name]
        result = jax.jit(fun)(a, stored)
        np.testing.assert_array_equal(result, a.astype(np.float64) @ b.astype(np.float64))
        np.testing.assert_array_equal(jax.jit(lambda a, b: fun(a, b, config.name))(a, stored), result)


def rows_of(dtype) -> list:
    rows = [row for row in jax_moye.configs() if row.dtype == dtype]
    if not rows:
        pytest.skip(f"no row of {dtype} in this build")
    return rows


@pytest.mark.parametrize("preferred", [None, "int8", "int16", "int32", "float32", "bfloat16"])
def test_int8(rng, preferred):
    """jnp.matmul's dtype, and its numbers: sums that wrap around in int8, and exact ones in int32."""
    rows_of("s8")
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 33, 70), (70, 18)))
    actual = interpreted(a, b, preferred_element_type=preferred)
    expected = jnp.matmul(a, b, preferred_element_type=preferred)
    assert actual.dtype == expected.dtype
    exact = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(actual, exact.astype(actual.dtype))  # NumPy's conversion of integers wraps
    if preferred != "bfloat16":  # where XLA may sum in bfloat16
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("preferred", [None, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats(rng, dtype, preferred):
    rows_of({"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype])
    a, b = (jnp.asarray(rng.standard_normal(shape) / 4, dtype) for shape in ((3, 33, 70), (70, 18)))
    actual = interpreted(a, b, preferred_element_type=preferred)
    assert actual.dtype == jnp.matmul(a, b, preferred_element_type=preferred).dtype
    a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
    unit = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "float32": 2.0**-24, "bfloat16": 2.0**-8}
    bound = (70 / 16 + 2) * 2.0**-23 * (abs(a) @ abs(b)) + unit.get(actual.dtype.name, 2.0**-11) * abs(a @ b)
    smallest = 2.0**-10 if actual.dtype.itemsize == 1 else 2.0**-25  # where e4m3 and f16 are subnormal
    assert (abs(np.asarray(actual).astype(np.float64) - a @ b) <= bound + smallest).all()


def test_tf32_in_the_emulator_by_its_preset_alone(rng):
    names = [row.name for row in rows_of("tf32")]
    a, b = (jnp.asarray(rng.standard_normal((17, 17)), jnp.float32) for _ in "ab")
    for precision in (None, "highest"):
        (call,) = custom_calls(lowered_text(functools.partial(interpreted, precision=precision), a, b, platform="cpu"))
        assert call.config not in names
    fun = functools.partial(interpreted, precision="TF32_TF32_F32")
    (call,) = custom_calls(lowered_text(fun, a, b, platform="cpu"))
    assert call.config in names
    a64, b64 = (np.asarray(x, np.float64) for x in (a, b))
    error = abs(np.asarray(fun(a, b)) - a64 @ b64)
    assert (error <= 2.1 * 2.0**-11 * (abs(a64) @ abs(b64))).all()
    assert error.max() > 2.0**-20  # it did multiply in TF32


@pytest.mark.parametrize("a_dtype", ["bfloat16", "float16", "float32", "int8", "int32", "complex64", "bool"])
@pytest.mark.parametrize("b_dtype", ["bfloat16", "float32", "uint8", "int32", "complex64"])
def test_dtype_promotion(rng, a_dtype, b_dtype):
    a, b = (jnp.asarray(rng.integers(0, 3, (4, 4)), dtype) for dtype in (a_dtype, b_dtype))
    for interpret in (None, True):
        actual, expected = jax_moye.matmul(a, b, interpret=interpret), jnp.matmul(a, b)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


def test_mixed_operands_lose_nothing(rng):
    # bf16 by f32: the bf16 side becomes f32, exactly, and the exact f32 kernel computes.
    a = jnp.asarray(rng.standard_normal((20, 30)), jnp.bfloat16)
    b = jnp.asarray(rng.standard_normal((30, 10)), jnp.float32)
    (call,) = custom_calls(lowered_text(interpreted, a, b, platform="cpu"))
    assert call.config.startswith("simt_tiled_f32")
    assert_close(interpreted(a, b), np.asarray(a, np.float32), b)


@pytest.mark.parametrize("preferred", ["float32", "bfloat16", "float16", "int32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_preferred_element_type(rng, dtype, preferred):
    a, b = integers(rng, (5, 7), dtype), integers(rng, (7, 6), dtype)
    expected = jnp.matmul(a, b, preferred_element_type=preferred)
    for interpret in (None, True):
        actual = jax_moye.matmul(a, b, preferred_element_type=preferred, interpret=interpret)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "precision",
    [None, "default", "high", "highest", "float32", lax.Precision.HIGH, ("highest", "default"), "BF16_BF16_F32"],
)
def test_precision(rng, precision):
    a, b = (jnp.asarray(rng.standard_normal((17, 17)), jnp.float32) for _ in "ab")
    actual = interpreted(a, b, precision=precision)
    assert_close(actual, a, b)
    if isinstance(precision, str):
        with jax.default_matmul_precision(precision):
            np.testing.assert_array_equal(interpreted(a, b), actual)


def test_sixteen_bit_operands_serve_every_precision(rng):
    a = jnp.asarray(rng.standard_normal((17, 17)), jnp.bfloat16)
    for precision in (None, "high", "highest", "BF16_BF16_F32", "BF16_BF16_BF16"):
        assert_close(interpreted(a, a, precision=precision), a, a)


@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
@pytest.mark.parametrize("detect_races", [True, False])
def test_interpret_params(rng, mode, detect_races):
    a = integers(rng, (40, 40), "bfloat16")
    params = jax_moye.InterpretParams(mode=mode, seed=3, detect_races=detect_races)
    fun = functools.partial(jax_moye.matmul, interpret=params)
    (call,) = custom_calls(lowered_text(fun, a, a, platform="cpu"))
    assert (call.mode, call.seed, call.detect_races) == (mode, 3, detect_races)
    np.testing.assert_array_equal(fun(a, a), interpreted(a, a))


def test_without_interpret_the_cpu_uses_xla(rng):
    a = integers(rng, (4, 4), "bfloat16")
    assert kernel_calls(jax_moye.matmul, a, a) == 0
    assert kernel_calls(functools.partial(jax_moye.matmul, interpret=False), a, a) == 0
    assert kernel_calls(interpreted, a, a) == 1
    assert kernel_calls(functools.partial(jax_moye.matmul, implementation="xla"), a, a) == 0


@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_transposed_operands_are_read_in_place(rng, order):
    a, b = integers(rng, (24, 40), "bfloat16"), integers(rng, (40, 48), "bfloat16")
    stored_a, stored_b = (x.T.copy() if letter == "T" else x for x, letter in zip((a, b), order, strict=True))

    def fun(x, y):
        return interpreted(x.T if order[0] == "T" else x, y.T if order[1] == "T" else y)

    assert data_movements(fun, stored_a, stored_b) == []
    np.testing.assert_array_equal(jax.jit(fun)(stored_a, stored_b), a.astype(np.float32) @ b.astype(np.float32))


def test_a_transpose_no_kernel_can_fold_is_left_alone(rng):
    # The config needs 16-byte rows; folded, the rows would be 17 elements long.
    config = "sm80_multistage_bf16_64x64x64_s3_a16"
    a = integers(rng, (17, 32), "bfloat16")  # (17, 32) as given, 32 elements a row
    fun = lambda x: jax_moye.matmul(x.T.T, x.T, config=config, interpret=True)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(fun)(a), a.astype(np.float32) @ a.astype(np.float32).T)
    b = integers(rng, (32, 17), "bfloat16")
    fun = lambda x: jax_moye.matmul(x.T, x.T.T.T.T[:, :16], config=config, interpret=True)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(fun)(b), b.astype(np.float32).T @ b.astype(np.float32)[:, :16])


def test_numpy_operands_and_jax_arrays(rng):
    a = integers(rng, (4, 4), np.float32)
    np.testing.assert_array_equal(interpreted(a, a), interpreted(jnp.asarray(a), jnp.asarray(a)))

    class Wrapped:
        def __jax_array__(self):
            return jnp.asarray(a)

    np.testing.assert_array_equal(interpreted(Wrapped(), a), a @ a)


def test_fallback_is_logged_once(caplog):
    a = jnp.ones((3, 7, 3), jnp.int16)
    with caplog.at_level("INFO", logger="jax_moye"):
        jax.jit(lambda x: jax_moye.matmul(x, x.swapaxes(1, 2)))(a)
        jax.jit(lambda x: jax_moye.matmul(x, x.swapaxes(1, 2)) + 1)(a)
    said = [record.getMessage() for record in caplog.records if "int16[3, 7, 3]" in record.getMessage()]
    assert len(said) == 1
    assert "XLA computes" in said[0]
    assert "no kernel multiplies int16 by int16" in said[0]


def test_many_batch_dimensions(rng):
    a = integers(rng, (1,) * 40 + (2, 3), "float32")
    np.testing.assert_array_equal(interpreted(a, a.swapaxes(-1, -2)), a @ a.swapaxes(-1, -2))
