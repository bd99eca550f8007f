"""linear with scales of rows and columns: numbers, calls, derivatives, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from python.linear_layers import linear

import jax_moye


def of_scales(x, w, x_scale, w_scale):
    """The product by scales in float64; x_scale: (), (...) or (..., 1)."""
    x, w, x_scale, w_scale = (np.asarray(v, np.float64) for v in (x, w, x_scale, w_scale))
    if x_scale.shape == x.shape[:-1] and x_scale.ndim:
        x_scale = x_scale[..., None]
    return (x @ w) * x_scale * w_scale


SCALE_SHAPES = [((), ()), ((6,), (5,)), ((6, 1), ()), ((), (5,))]


@pytest.mark.parametrize(("of_x", "of_w"), SCALE_SHAPES)
@pytest.mark.parametrize(
    ("dtype", "result"),
    [("bfloat16", "bfloat16"), ("int8", "bfloat16"), ("int8", "float32"), ("float8_e4m3fn", "float16")],
)
@pytest.mark.parametrize("options", [{}, {"interpret": True, "implementation": "moye"}], ids=["xla", "moye"])
def test_scales(rng, dtype, result, of_x, of_w, options):
    """Integers and scales of powers of two: what comes out is the answer, rounded once."""
    x, w = rng.integers(-4, 5, (6, 16)).astype(dtype), rng.integers(-4, 5, (16, 5)).astype(dtype)
    x_scale, w_scale = (np.asarray(2.0 ** rng.integers(-2, 3, shape), np.float32) for shape in (of_x, of_w))
    y = jax.jit(functools.partial(linear, preferred_element_type=result, activation="relu", **options))(
        x, w, x_scale=x_scale, w_scale=w_scale
    )
    expected = np.maximum(of_scales(x, w, x_scale, w_scale), 0)
    assert y.dtype == jnp.dtype(result)
    np.testing.assert_array_equal(np.asarray(y), expected.astype(result))


def test_scales_stand_in_the_custom_call(rng):
    """One custom call of the scaled target, with both scales as operands; without scales it is the fused one."""
    x, w = jnp.ones((32, 64), jnp.int8), jnp.ones((64, 128), jnp.int8)
    scales = {"x_scale": jnp.ones((32,)), "w_scale": jnp.ones((128,))}
    fun = functools.partial(linear, preferred_element_type=jnp.bfloat16, implementation="moye", interpret=True)
    text = jax.jit(fun).lower(x, w, **scales).as_text()
    assert text.count("jax_moye_scaled_gemm_v1") == 1
    assert 'operands = "lhs_scale,rhs_scale"' in text
    assert "lhs_scale_strides = dense<[0, 1, 0]>" in text
    assert "rhs_scale_strides = dense<[0, 0, 1]>" in text
    assert "scaled_gemm" not in jax.jit(fun).lower(x, w).as_text()


@pytest.mark.parametrize("interpret", [False, True])
def test_gradients_of_scales(rng, interpret):
    x, w = rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal((8, 5)).astype(np.float32)
    x_scale, w_scale, bias = (rng.uniform(0.5, 2, n).astype(np.float32) for n in (6, 5, 5))

    def loss(fun):
        return lambda *args: jnp.sum(fun(*args) ** 2)

    def ours(x, w, x_scale, w_scale, bias):
        return linear(
            x, w, bias, activation="silu", alpha=0.5, x_scale=x_scale, w_scale=w_scale, precision="highest",
            interpret=interpret,
        )  # fmt: skip

    def theirs(x, w, x_scale, w_scale, bias):
        z = jnp.matmul(x, w, precision="highest") * 0.5 * x_scale[:, None] * w_scale + bias
        return jax.nn.silu(z)

    args = (x, w, x_scale, w_scale, bias)
    for argnums in ((0, 1), (2, 3), (0, 1, 2, 3, 4), (3,)):
        found, expected = (jax.grad(loss(fun), argnums)(*args) for fun in (ours, theirs))
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)
    check_grads(ours, args, 2, modes=("fwd", "rev"), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("axes", [(0, None, 0, None), (None, 0, None, 0), (0, 0, 0, 0), (None, None, 0, None)])
def test_vmap_of_scales(rng, axes):
    shapes = ((6, 8), (8, 5), (6,), (5,))
    args = [
        rng.integers(1, 4, shape if axis is None else (3, *shape)).astype(np.float32)
        for axis, shape in zip(axes, shapes, strict=True)
    ]

    def fun(x, w, x_scale, w_scale):
        return linear(x, w, x_scale=x_scale, w_scale=w_scale, precision="highest", interpret=True)

    found = jax.vmap(fun, axes)(*args)
    each = [[x if axis is None else x[i] for axis, x in zip(axes, args, strict=True)] for i in range(3)]
    np.testing.assert_array_equal(found, np.stack([of_scales(*one) for one in each]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(x_scale=np.ones((5,), np.float32)), ValueError, r"x_scale has shape \(5,\): its shape is \(\), x's"),
        (dict(w_scale=np.ones((5, 1), np.float32)), ValueError, r"w_scale has shape \(5, 1\): its shape is \(\) or"),
        (dict(x_scale=np.ones((6,), np.int32)), TypeError, "x_scale is int32: it is float32"),
        (dict(w_scale=np.ones((5,), np.float32), preferred_element_type=jnp.int32), TypeError, "the result is int32"),
        (dict(w_scale="1"), TypeError, "w_scale is an array, not str"),
    ],
)
def test_wrong_scales(options, error, message):
    with pytest.raises(error, match=message):
        linear(np.ones((6, 8), np.int8), np.ones((8, 5), np.int8), **options)


def test_tangents_of_float16_are_scaled_before_they_are_rounded():
    """The product of the operands is beyond float16, and the result is not."""
    x, w = jnp.full((8, 32), 100.0, jnp.float8_e4m3fn), jnp.full((32, 8), 100.0, jnp.float8_e4m3fn)
    scales = dict(x_scale=jnp.full(8, 1e-3), w_scale=jnp.full(8, 1e-2), preferred_element_type=jnp.float16)
    y, y_dot = jax.jvp(lambda x: jax_moye.linear(x, w, **scales), (x,), (x,))
    np.testing.assert_array_equal(np.asarray(y_dot), np.asarray(y))
