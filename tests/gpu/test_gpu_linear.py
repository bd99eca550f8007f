"""`jax_moye.linear` and `gated_linear_unit` on a GPU: one call, float64's numbers, no product computed twice."""

from __future__ import annotations

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}  # rounding error
FUNCTIONS = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "gelu": lambda z: z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    "gelu_exact": lambda z: z / 2 * (1 + np.vectorize(math.erf)(z / np.sqrt(2))),
    "silu": lambda z: z / (1 + np.exp(-z)),
}
linear = functools.partial(jax_moye.linear, implementation="moye", precision="highest")


def operands(rng, dtype, rows=(3, 67), k=136, n=72):
    x, w = rng.standard_normal((*rows, k)), rng.standard_normal((k, n)) / np.sqrt(k)
    rest = rng.standard_normal((n,)), rng.standard_normal((*rows, n)), rng.standard_normal((*rows, n))
    return [jnp.asarray(v, dtype) for v in (x, w, *rest)]


def calls(fun, *args) -> tuple[int, int, int]:
    """Products of the optimized program: matmul's target, the fused target, and XLA's."""
    hlo = jax.jit(fun).lower(*args).compile().as_text()
    ours = [hlo.count(f'custom_call_target="jax_moye_{name}_v1"') for name in ("gemm", "fused_gemm")]
    return ours[0], ours[1], len(re.findall(r"= \S+ dot\(|__cublas|__triton_gemm", hlo))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_epilogue_within_the_bound_of_float64(dtype):
    args = operands(np.random.default_rng(0), dtype)

    @jax.jit
    def all_activations(x, w, bias, c, residual):
        options = dict(alpha=0.5, beta=-2.0, c=c, residual=residual)
        return {str(a): linear(x, w, bias, activation=a, **options) for a in FUNCTIONS}

    assert calls(all_activations, *args) == (0, len(FUNCTIONS), 0)
    x, w, bias, c, residual = (np.asarray(v, np.float64) for v in args)
    size = 0.5 * np.abs(x) @ np.abs(w) + np.abs(bias) + 2 * np.abs(c)
    z = 0.5 * x @ w + bias - 2 * c
    for activation, y in zip(FUNCTIONS, [all_activations(*args)[str(a)] for a in FUNCTIONS], strict=True):
        assert y.dtype == dtype
        expected = FUNCTIONS[activation](z) + residual
        sums = (x.shape[-1] + 8) * 2 * UNIT["float32"] * (1.13 * size + np.abs(residual))
        bound = sums + 16 * UNIT["float32"] * np.abs(z) + UNIT[dtype] * np.abs(expected)
        error = np.abs(np.asarray(y, np.float64) - expected)
        assert (error <= bound).all(), f"{activation}: {np.nanmax(error / bound)} of the bound"


def mlp_loss(layer):
    def loss(params, x):
        h = layer(x, params[0][0], params[0][1], activation="gelu")
        y = layer(h, params[1][0], params[1][1], activation="silu", residual=x)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    return loss


def test_gradients_of_f32_parameters():
    rng = np.random.default_rng(1)
    params = [
        [jnp.asarray(rng.standard_normal(shape) / 16, jnp.float32) for shape in (weight, weight[1:])]
        for weight in ((256, 384), (384, 256))
    ]
    x = jnp.asarray(rng.standard_normal((2, 128, 256)), jnp.bfloat16)

    def unfused(x, w, bias, *, activation, residual=0):
        z = jnp.matmul(x, w.astype(x.dtype), preferred_element_type=jnp.float32) + bias
        return ({"gelu": jax.nn.gelu, "silu": jax.nn.silu}[activation](z) + residual).astype(x.dtype)

    fun = jax.value_and_grad(mlp_loss(linear), (0, 1))
    assert calls(fun, params, x) == (4, 2, 0)
    value, grads = jax.jit(fun)(params, x)
    expected, theirs = jax.jit(jax.value_and_grad(mlp_loss(unfused), (0, 1)))(params, x)
    np.testing.assert_allclose(value, expected, rtol=1e-2)
    for g, h in zip(jax.tree.leaves(grads), jax.tree.leaves(theirs), strict=True):
        assert g.dtype == h.dtype
        g, h = (np.asarray(v, np.float64) for v in (g, h))
        assert np.linalg.norm(g - h) <= 2e-2 * np.linalg.norm(h)


def test_c_is_updated_in_place():
    x, w, bias, c, _ = operands(np.random.default_rng(2), "bfloat16", rows=(128,), k=64, n=64)
    x64, w64, bias64, c64 = (np.asarray(v, np.float64) for v in (x, w, bias, c))
    expected = np.maximum(x64 @ w64 + c64 + bias64, 0)
    pointer = c.unsafe_buffer_pointer()
    y = jax.jit(lambda x, w, bias, c: linear(x, w, bias, c=c, activation="relu"), donate_argnums=3)(x, w, bias, c)
    assert y.unsafe_buffer_pointer() == pointer
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2**-7, atol=1e-3)


def test_c_that_somebody_needs_is_not_copied():
    """Neither an argument that is kept, nor what the program reads again: the same bits as in place, and no copy."""
    x, w, _, c, _ = operands(np.random.default_rng(2), "bfloat16", rows=(256,), k=128, n=192)

    def kept(x, w, c):
        return c - 0.1 * jnp.matmul(x, w)

    def read_again(x, w, c):
        c = c * 2
        return c - 0.1 * jnp.matmul(x, w), jnp.sin(c)

    before = np.asarray(c)
    with jax_moye.options(implementation="moye"):
        found = []
        for fun, donated in ((kept, ()), (kept, 2), (read_again, ())):
            program = jax.jit(jax_moye.optimize(fun), donate_argnums=donated)
            hlo = program.lower(x, w, c).compile().as_text()
            assert "custom_call_target=" in hlo
            assert not re.search(r"= bf16\[256,192\]\S* copy\(", hlo), hlo
            assert ("output_to_operand_aliasing" in hlo) == (donated == 2)
            found.append(program(x, w, c + 0))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(np.asarray(c), before)
    product = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    for y, of_c in ((found[0], 1), (found[2][0], 2)):
        np.testing.assert_allclose(
            np.asarray(y, np.float64), of_c * np.asarray(c, np.float64) - 0.1 * product, 2**-7, 2**-6
        )


def test_gated_linear_unit():
    x, w, *_ = operands(np.random.default_rng(3), "bfloat16", n=64)
    both = jnp.stack([w, w[::-1]], 1)
    glu = functools.partial(jax_moye.gated_linear_unit, implementation="moye")
    fun = jax.value_and_grad(lambda x, w: glu(x, w).astype(jnp.float32).sum(), (0, 1))
    assert calls(fun, x, both) == (3, 0, 0)
    gate, up = (np.asarray(x, np.float64) @ np.asarray(v, np.float64) for v in (w, w[::-1]))
    expected = gate / (1 + np.exp(-gate)) * up
    for y in (glu(x, both), glu(x, w, w[::-1])):
        np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("result", ["bfloat16", "float32"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_scales_of_rows_and_columns(dtype, result):
    """One call of the scaled target; scales are powers of two, so that the answer is exact before it is rounded."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(-4, 5, (67, 128)).astype(dtype), rng.integers(-4, 5, (128, 80)).astype(dtype)
    x_scale, w_scale = (np.asarray(2.0 ** rng.integers(-2, 3, n), np.float32) for n in (67, 80))
    fun = functools.partial(linear, precision="default", preferred_element_type=result)  # float8 takes no other
    hlo = jax.jit(lambda *args: fun(*args[:2], x_scale=args[2], w_scale=args[3])).lower(x, w, x_scale, w_scale)
    assert hlo.compile().as_text().count('custom_call_target="jax_moye_scaled_gemm_v1"') == 1
    y = jax.jit(fun)(jnp.asarray(x), jnp.asarray(w), x_scale=x_scale, w_scale=w_scale)
    expected = (np.asarray(x, np.float64) @ np.asarray(w, np.float64)) * x_scale[:, None] * w_scale
    np.testing.assert_array_equal(np.asarray(y), expected.astype(result))
