"""scaled_matmul: against jax.nn's formula in float64, its way to a kernel, derivatives, errors."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye

scaled_matmul = jax_moye.scaled_matmul
B, M, N, K = 2, 6, 5, 64


def expected_of(lhs, rhs, lhs_scales, rhs_scales):
    """The formula of jax.nn.scaled_matmul."""
    lhs, rhs, lhs_scales, rhs_scales = (np.asarray(x, np.float64) for x in (lhs, rhs, lhs_scales, rhs_scales))
    block = lhs.shape[2] // lhs_scales.shape[2]
    lhs, rhs = lhs * np.repeat(lhs_scales, block, 2), rhs * np.repeat(rhs_scales, block, 2)
    return np.einsum("bmk,bnk->bmn", lhs, rhs)


def operands(rng, dtype, scales_dtype, blocks):
    """Small integers, and scales of powers of two: all sums are exact."""
    dtypes = (dtype, dtype) if isinstance(dtype, str) else dtype
    lhs, rhs = (rng.integers(-2, 3, (B, x, K)).astype(one) for x, one in zip((M, N), dtypes, strict=True))
    scales = [(2.0 ** rng.integers(-2, 3, (B, x, blocks))).astype(scales_dtype) for x in (M, N)]
    return [jnp.asarray(x) for x in (lhs, rhs, *scales)]


@pytest.mark.parametrize("blocks", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "scales_dtype"),
    [
        ("float8_e4m3fn", "float8_e8m0fnu"),
        ("float8_e5m2", "float8_e8m0fnu"),
        (("float8_e4m3fn", "float8_e5m2"), "float8_e8m0fnu"),
        ("float4_e2m1fn", "float8_e4m3fn"),
        ("int8", "float32"),
        ("int32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float32", "float32"),
    ],
)
@pytest.mark.parametrize("interpret", [False, True])
def test_exact(rng, dtype, scales_dtype, blocks, interpret):
    args = operands(rng, dtype, scales_dtype, blocks)
    expected = expected_of(*args)
    found = jax.jit(functools.partial(scaled_matmul, interpret=interpret))(*args)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, expected)
    narrow = scaled_matmul(*args, preferred_element_type=jnp.bfloat16, interpret=interpret)
    np.testing.assert_array_equal(np.asarray(narrow), expected.astype(jnp.bfloat16))


def test_arguments_are_those_of_jax():
    ours, theirs = (inspect.signature(f).parameters for f in (scaled_matmul, jax.nn.scaled_matmul))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[name].kind == theirs[name].kind for name in theirs)
    assert jnp.dtype(ours["preferred_element_type"].default) == theirs["preferred_element_type"].default


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_one_block_is_one_kernel_with_scales(rng, dtype):
    args = operands(rng, dtype, "float32", 1)
    fun = functools.partial(scaled_matmul, preferred_element_type=jnp.bfloat16, implementation="moye", interpret=True)
    text = jax.jit(fun).lower(*args).as_text()
    assert text.count("jax_moye_scaled_gemm_v1") == 1
    assert "dot_general" not in text
    np.testing.assert_array_equal(np.asarray(fun(*args)), expected_of(*args).astype(jnp.bfloat16))


@pytest.mark.parametrize("blocks", [1, 4])
def test_derivatives(rng, blocks):
    """Of the operands and of the scales: those of the formula."""
    args = [jnp.asarray(x, jnp.float32) for x in operands(rng, "float32", "float32", blocks)]

    def formula(lhs, rhs, lhs_scales, rhs_scales):
        lhs, rhs = (x * jnp.repeat(s, K // blocks, 2) for x, s in ((lhs, lhs_scales), (rhs, rhs_scales)))
        return jnp.einsum("bmk,bnk->bmn", lhs, rhs, precision="highest")

    def gradients(fun):
        return jax.grad(lambda *args: jnp.sum(jnp.sin(fun(*args) / 64)), (0, 1, 2, 3))(*args)

    for one, other in zip(gradients(scaled_matmul), gradients(formula), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", [128, 64, 256])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "bfloat16"])
@pytest.mark.parametrize("interpret", [False, True])
def test_scales_of_128_rows(rng, dtype, block, interpret):
    """Those of rhs may be shared by 128 rows, whatever blocks along k are, and whether there is a kernel or not."""
    n, k = 200, 256
    lhs, rhs = (jnp.asarray(rng.integers(-2, 3, (1, rows, k)).astype(dtype)) for rows in (M, n))
    of_lhs, of_rhs = (jnp.asarray(2.0 ** rng.integers(-3, 4, (1, rows, k // block)), jnp.float32) for rows in (M, 2))
    expected = expected_of(lhs, rhs, of_lhs, jnp.repeat(of_rhs, 128, 1)[:, :n])
    found = scaled_matmul(lhs, rhs, of_lhs, of_rhs, interpret=interpret)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="requires scales to match non-contract dimensions"):
        scaled_matmul(lhs, rhs, of_lhs, of_rhs[:, :1])


def test_vmap(rng):
    each = [operands(rng, "float8_e4m3fn", "float32", 1) for _ in range(3)]
    stacked = [jnp.stack(list(one)) for one in zip(*each, strict=True)]
    found = jax.vmap(functools.partial(scaled_matmul, interpret=True))(*stacked)
    np.testing.assert_array_equal(found, np.stack([expected_of(*one) for one in each]))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((6, 8), (1, 5, 8), (1, 6, 1), (1, 5, 1)), "requires all inputs to be 3-dimensional arrays"),
        (((1, 6, 8), (1, 5, 7), (1, 6, 1), (1, 5, 1)), "matching batch .B. and contract .K. dimensions"),
        (((1, 6, 8), (1, 5, 8), (1, 6, 2), (1, 5, 1)), "requires scales to have matching batch"),
        (((1, 6, 8), (1, 5, 8), (1, 5, 1), (1, 5, 1)), "requires scales to match non-contract dimensions"),
        (((1, 6, 8), (1, 5, 8), (1, 6, 3), (1, 5, 3)), "cuts K = 8 into as many equal blocks"),
    ],
)
def test_errors(shapes, message):
    args = [jnp.ones(shape, jnp.float32) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        scaled_matmul(*args)
    if "cuts" not in message:
        with pytest.raises(ValueError, match=message):
            jax.nn.scaled_matmul(*args)


def test_wrong_types():
    one = jnp.ones((1, 1, 1))
    with pytest.raises(TypeError, match="lhs is an array, not list"):
        scaled_matmul([1.0], one, one, one)
    with pytest.raises(TypeError, match="rhs_scales is complex64"):
        scaled_matmul(one, one, one, one.astype(jnp.complex64))
    with pytest.raises(TypeError, match="preferred_element_type is a float's, not int32"):
        scaled_matmul(one, one, one, one, jnp.int32)
