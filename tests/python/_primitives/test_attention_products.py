"""Products that may be attention's: their precision, and operands that were converted to float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_moye._primitives.attention_products import (
    is_16_bit,
    is_exact_in_tf32,
    is_multiplied_as,
    is_tf32,
    is_widening,
    narrowed,
    operands_of_scores,
    precision_of,
)
from jax_moye._primitives.patterns import Program

X, F32 = jnp.zeros((4, 4), jnp.bfloat16), jnp.float32


def program(fun, *args):
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    (product,) = (one for one in jaxpr.eqns if one.primitive.name == "dot_general")
    return jaxpr, Program(jaxpr.eqns, jaxpr.outvars), product


def test_operands_that_were_converted():
    """Of one equation, which rounds nothing; what is computed in float32 is none."""
    jaxpr, found, product = program(lambda x, y: x.astype(F32) @ (y.astype(F32) * 2), X, X)
    assert narrowed(found, product.invars[0]) is jaxpr.invars[0]
    assert narrowed(found, product.invars[1]) is product.invars[1]
    assert [is_widening(one) for one in jaxpr.eqns[:2]] == [True, True]
    jaxpr, found, product = program(lambda x, y: x @ y.astype(jnp.bfloat16), X, X.astype(F32))
    assert narrowed(found, product.invars[0]) is product.invars[0]  # an argument
    assert narrowed(found, product.invars[1]) is product.invars[1]  # rounded
    assert not any(map(is_widening, jaxpr.eqns))


@pytest.mark.parametrize(
    ("precision", "exact"), [(None, True), ("highest", True), ("high", True), ("BF16_BF16_F32_X3", False)]
)
def test_products_of_what_was_16_bits(precision, exact):
    _, _, product = program(lambda x: jnp.matmul(x, x, precision=precision), X.astype(F32))
    assert is_exact_in_tf32(product) == exact


def test_a_result_of_16_bits_is_another_product():
    dims = (((1,), (0,)), ((), ()))
    _, _, product = program(lambda x: lax.dot_general(x, x, dims, preferred_element_type=jnp.bfloat16), X.astype(F32))
    assert not is_exact_in_tf32(product)


def test_which_round_an_operand():
    _, _, product = program(lambda x, y: x @ y, X.astype(F32), X.astype(F32))
    assert is_tf32(product, jnp.bfloat16, 0, jnp.dtype("bfloat16"))
    assert not is_tf32(product, jnp.bfloat16, 0, jnp.dtype("float32"))
    assert not is_tf32(product, jnp.float16, 0, jnp.dtype("float16"))
    assert not is_16_bit(product, jnp.bfloat16, 0)
    _, _, product = program(lambda x, y: x @ y, X, X)
    assert is_16_bit(product, jnp.bfloat16, None)
    assert not is_16_bit(product, jnp.float16, None)


@pytest.mark.parametrize(
    ("precision", "is_one"),
    [(None, True), ("default", True), ("TF32_TF32_F32", True), ("high", False), ("BF16_BF16_F32", False)],
)
def test_products_of_float32(precision, is_one):
    """Where TF32 is what a GPU makes of them, and the result is float32."""
    of_f32 = X.astype(F32)
    _, _, product = program(lambda x: jnp.matmul(x, x, precision=precision), of_f32)
    assert is_multiplied_as(product, jnp.float32, None) is is_one
    assert not is_multiplied_as(product, jnp.bfloat16, None)
    dims = (((1,), (0,)), ((), ()))
    fun = lambda x: lax.dot_general(x, x, dims, precision=precision, preferred_element_type=jnp.bfloat16)  # noqa: E731
    _, _, product = program(fun, of_f32)
    assert not is_multiplied_as(product, jnp.float32, None)


def test_products_of_no_kernel():
    _, _, product = program(lambda x: x @ x, X.astype(jnp.int8))
    assert not is_multiplied_as(product, jnp.int8, None)


def test_what_scores_may_be_of():
    """Of what was converted at first, where both were, and of float32 where it is multiplied in TF32."""
    both = lambda x, y, **of: jnp.matmul(x.astype(F32), y.astype(F32), **of)  # noqa: E731
    jaxpr, found, product = program(both, X, X)
    assert operands_of_scores(found, product) == [jaxpr.invars, product.invars]
    jaxpr, found, product = program(lambda x, y: both(x, y, precision="highest"), X, X)
    assert operands_of_scores(found, product) == [jaxpr.invars]
    jaxpr, found, product = program(both, X, X.astype(F32))
    assert operands_of_scores(found, product) == [product.invars]
    jaxpr, found, product = program(lambda x, y: both(x, y, precision="highest"), X, X.astype(F32))
    assert operands_of_scores(found, product) == []


def test_what_precision_products_have():
    of = {
        name: program(lambda x, p=name: jnp.matmul(x, x, precision=p), X.astype(F32))[2] for name in (None, "default")
    }
    by_name = program(lambda x: jnp.matmul(x, x, precision="TF32_TF32_F32"), X.astype(F32))[2]
    assert precision_of([by_name, by_name]) is lax.DotAlgorithmPreset.TF32_TF32_F32
    for others in ([of[None]], [of[None], of["default"]], [by_name, of[None]]):
        assert precision_of(others) is None
