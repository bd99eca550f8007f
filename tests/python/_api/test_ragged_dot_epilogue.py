"""ragged_dot with a bias and an activation: one kernel, XLA behind a product elsewhere, and the derivatives of both."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.layers_of_groups import ACTIVATIONS, SIZES, TARGET, G, K, M, check, near, of_groups, product

import jax_moye
from jax_moye._primitives.grouped import grouped_fused_p, grouped_p

N = 128


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(0)
    lhs, rhs, bias = rng.normal(size=(M, K)), rng.normal(size=(G, K, N)) / 8, rng.normal(size=(G, N))
    return tuple(jnp.asarray(x, jnp.bfloat16) for x in (lhs, rhs, bias))


def reference(lhs, rhs, bias, activation):
    """In float32, of values that bfloat16 holds."""
    return ACTIVATIONS[activation](product(lhs, rhs) + of_groups(bias))


def ours(activation, **options):
    def fun(lhs, rhs, bias):
        return jax_moye.ragged_dot(lhs, rhs, jnp.array(SIZES), bias=bias, activation=activation, **options)

    return fun


@pytest.mark.parametrize("interpret", [True, None], ids=["kernel", "xla"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_result_and_derivatives(operands, activation, interpret):
    fun = ours(activation, interpret=interpret)
    check(fun, lambda *x: reference(*x, activation), operands, operands)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_kernel_does_it_all(operands, activation):
    text = jax.jit(ours(activation, interpret=True)).lower(*operands).as_text()
    assert text.count(TARGET) == 1
    assert "stablehlo.add" not in text
    assert "stablehlo.multiply" not in text


def test_rows_of_no_group_are_zero_whatever_the_bias(operands):
    for interpret in (True, None):
        result = ours("gelu", interpret=interpret)(*operands)
        assert not np.asarray(result[sum(SIZES) :], np.float32).any()


def test_without_a_bias(operands):
    lhs, rhs, _ = operands
    sizes = jnp.array(SIZES)
    product = jax_moye.ragged_dot(lhs, rhs, sizes, interpret=True)
    result = jax_moye.ragged_dot(lhs, rhs, sizes, activation=jax.nn.relu, interpret=True)
    np.testing.assert_array_equal(result, jax.nn.relu(product))


def test_results_of_32_bits_are_the_kernels(operands):
    """Sums that nothing rounds in between."""
    fun = ours("silu", interpret=True, preferred_element_type=jnp.float32)
    text = jax.jit(fun).lower(*operands).as_text()
    assert text.count(TARGET) == 1
    assert 'activation = "silu"' in text
    near(fun(*operands), reference(*operands, "silu"), 1e-5)
    of_rows = ours("silu", interpret=True, preferred_element_type=jnp.float32, batch_invariant=True)
    near(of_rows(*operands), reference(*operands, "silu"), 1e-5)


def test_transformations(operands):
    lhs, rhs, bias = operands
    fun = ours("relu", interpret=True)
    expected = fun(*operands)
    batch = jax.vmap(fun, (0, None, None))(jnp.stack([lhs, 2 * lhs]), rhs, bias)
    np.testing.assert_array_equal(batch[0], expected)
    _, stacked = jax.lax.scan(lambda carry, x: (carry, fun(x, rhs, bias)), 0, lhs[None])
    np.testing.assert_array_equal(stacked[0], expected)
    gradient = jax.grad(lambda *x: fun(*x).astype(jnp.float32).sum(), (0, 1, 2))
    again = jax.grad(lambda *x: jax.checkpoint(fun)(*x).astype(jnp.float32).sum(), (0, 1, 2))
    for one, other in zip(gradient(*operands), again(*operands), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_preactivation_is_written_where_it_is_read(operands):
    lhs, rhs, bias = operands
    forward = jax.make_jaxpr(ours("silu"))(*operands)
    assert [e.params["preactivation"] for e in forward.eqns if e.primitive is grouped_fused_p] == [False]
    backward = jax.make_jaxpr(jax.grad(lambda x: ours("silu")(x, rhs, bias).astype(jnp.float32).sum()))(lhs)
    text = str(backward)
    assert "preactivation=True" in text
    assert grouped_p.name in text


def test_a_linear_epilogue_transposes(operands):
    lhs, rhs, bias = operands
    fun = ours(None, interpret=True)
    (got,) = jax.linear_transpose(lambda x: fun(x, rhs, jnp.zeros_like(bias)), lhs)(jnp.ones((M, N), jnp.bfloat16))
    near(got, jax.grad(lambda x: reference(x, rhs, bias, None).sum())(lhs.astype(jnp.float32)), 2**-7)
    with pytest.raises(NotImplementedError, match="activation 'silu' is not linear"):
        jax.linear_transpose(lambda x: ours("silu")(x, rhs, bias), lhs)(jnp.ones((M, N), jnp.bfloat16))


def test_bad_arguments(operands):
    lhs, rhs, bias = operands
    with pytest.raises(
        ValueError, match=r"ragged_dot: bias has shape \(128,\), and a row for each group is \(4, 128\)"
    ):
        jax_moye.ragged_dot(lhs, rhs, jnp.array(SIZES), bias=bias[0])
    with pytest.raises(ValueError, match="ragged_dot: activation is None, 'relu'"):
        jax_moye.ragged_dot(lhs, rhs, jnp.array(SIZES), activation="tanh")
    with pytest.raises(ValueError, match="beside the sums of so large a tile there are no registers for an epilogue"):
        ours("relu", interpret=True, config="sm90_grouped_bf16_128x192x64_s4_a16")(*operands)
