"""What XLA computes of a contraction: lax.dot_general's form of a specification, and the dtypes asked of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._primitives.reference import (
    canonical_dimensions,
    lax_aval,
    lax_form,
    lax_result_dtype,
    reference,
    spec_of,
)


@pytest.mark.parametrize(
    "spec", ["mk,kn->mn", "km,nk->nm", "bmk,kn->bmn", "mk,bkn->mbn", "abmk,bakn->nmab", "k,k->", "m,n->nm", "bm,bm->bm"]
)
@pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
def test_it_is_numpys_einsum(rng, spec, beta):
    sizes = dict(a=2, b=3, m=4, n=5, k=6)
    lhs, rhs, out = spec.replace("->", ",").split(",")
    x, y, c = (rng.integers(-3, 4, [sizes[label] for label in labels]).astype(np.float32) for labels in (lhs, rhs, out))
    more = (c,) if beta else ()
    expected = np.einsum(spec, x, y) + beta * c
    actual = reference(x, y, *more, spec=spec, out_dtype=jnp.float32, precision=None, beta=beta)
    np.testing.assert_array_equal(actual, expected)


def test_a_form_is_a_dot_general_and_a_permutation():
    dimension_numbers, permutation = lax_form("bmk,kn->nbm")
    assert dimension_numbers == (((2,), (0,)), ((), ()))
    assert permutation == (2, 0, 1)  # of b, m, n


@pytest.mark.parametrize("spec", ["mk,kn->mn", "bmk,bkn->bmn", "km,nk->mn", "k,k->"])
def test_a_specification_and_back(spec):
    dimension_numbers, _ = lax_form(spec)
    lhs, rhs, _ = spec.replace("->", ",").split(",")
    as_lists = [[list(dims) for dims in pair] for pair in dimension_numbers]
    assert canonical_dimensions(as_lists) == dimension_numbers
    assert spec_of(dimension_numbers, len(lhs), len(rhs)) == spec


@pytest.mark.parametrize(
    ("lhs", "rhs", "out", "asked"),
    [
        ("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "bfloat16", "float32", "float32"),
        ("float32", "float32", "bfloat16", "float32"),  # in bfloat16 lax would round the operands
        ("bfloat16", "float32", "bfloat16", "float32"),
        ("int8", "int8", "int32", "int32"),
        ("float8_e4m3fn", "float8_e4m3fn", "float32", "float32"),
        ("float32", "float32", "float8_e4m3fn", "float32"),  # JAX promotes no 8-bit float
        ("bfloat16", "bfloat16", "float8_e5m2", "float32"),  # one rounding of the sum
        ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"),
        # Gradients of 8-bit operands: in the cotangent's dtype, which XLA would round to 8 bits.
        ("float32", "float8_e4m3fn", "float8_e4m3fn", "float32"),
        ("bfloat16", "float8_e5m2", "float8_e4m3fn", "bfloat16"),
        ("float8_e4m3fn", "float32", "bfloat16", "float32"),  # and one of a bfloat16 operand beside an 8-bit one
        ("float8_e5m2", "bfloat16", "float32", "float32"),
        ("float8_e4m3fn", "float8_e5m2", "bfloat16", "bfloat16"),
        ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fn", "float32"),  # e4m3 does not hold what e5m2 does
        ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2", "float32"),
        ("float8_e4m3fn", "int8", "float8_e4m3fn", "float32"),
        ("float8_e4m3fn", "complex64", "complex64", "complex64"),
        ("int4", "bfloat16", "bfloat16", "bfloat16"),  # JAX promotes no 4-bit integer
        ("float16", "uint4", "bfloat16", "float32"),
        ("int4", "int4", "int4", "int4"),
        ("uint4", "int8", "int32", "int32"),
    ],
)
def test_the_dtype_that_is_asked_of_lax(lhs, rhs, out, asked):
    assert jnp.dtype(lax_result_dtype(jnp.dtype(lhs), jnp.dtype(rhs), jnp.dtype(out))) == jnp.dtype(asked)


def test_types_are_asked_once_and_errors_are_laxs():
    dimension_numbers, _ = lax_form("mk,kn->mn")
    params = dict(dimension_numbers=dimension_numbers, precision=None, preferred_element_type=None, out_sharding=None)
    a, b, wrong = (jax.typeof(jnp.ones(shape)) for shape in ((2, 3), (3, 4), (5, 4)))
    assert lax_aval(a, b, **params).shape == (2, 4)
    assert lax_aval(a, b, **params) is lax_aval(a, b, **params)
    with pytest.raises(TypeError, match="contracting dimensions"):
        lax_aval(a, wrong, **params)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_results_and_gradients_of_8_bits_are_laxs(dtype):
    """As in JAX: rounded to 8 bits after the sum, and gradients in each operand's dtype."""
    a, b = jnp.arange(12.0).reshape(3, 4), jnp.arange(20.0).reshape(4, 5)
    numbers = (((1,), (0,)), ((), ()))
    ours, theirs = (
        fun(a, b, numbers, preferred_element_type=dtype) for fun in (jax_moye.dot_general, jax.lax.dot_general)
    )
    assert ours.dtype == theirs.dtype == dtype
    np.testing.assert_array_equal(ours, jnp.dot(a, b).astype(dtype))
    mixed = a.astype(dtype), b.astype("bfloat16")

    def gradients(fun):
        return jax.grad(lambda *x: fun(*x, numbers, preferred_element_type="float32").sum(), (0, 1))(*mixed)

    for x, y in zip(gradients(jax_moye.dot_general), gradients(jax.lax.dot_general), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("rhs", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("lhs", ["float8_e4m3fn", "float8_e5m2"])
def test_gradients_of_8_bit_operands_are_laxs_bit_by_bit(rng, lhs, rhs, out):
    """A cotangent rounded to 8 bits would change about half of them."""
    a, b, cotangent = (
        jnp.asarray(rng.standard_normal(shape), dtype)
        for shape, dtype in (((16, 32), lhs), ((32, 24), rhs), ((16, 24), out))
    )

    def derivatives(fun, **options):
        def product(a, b):
            return fun(a, b, (((1,), (0,)), ((), ())), preferred_element_type=out, **options)

        value, transpose = jax.vjp(product, a, b)
        return (value, *transpose(cotangent))

    ours = derivatives(jax_moye.dot_general, implementation="xla")
    for x, y in zip(ours, derivatives(jax.lax.dot_general), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8))


@pytest.mark.parametrize(
    "other", ["bool", "int4", "uint4", "int8", "uint32", "float16", "bfloat16", "float32", "complex64"]
)
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_products_of_4_bit_integers_are_laxs(dtype, other):
    """JAX promotes none, and multiplies them by anything."""
    a, b = jnp.arange(6).reshape(2, 3).astype(dtype), jnp.arange(12).reshape(3, 4).astype(other)
    for x, y in ((a, b), (b.T, a.T)):
        ours, theirs = (fun(x, y, (((1,), (0,)), ((), ()))) for fun in (jax_moye.dot_general, jax.lax.dot_general))
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    if jnp.issubdtype(other, jnp.floating):
        ours, theirs = (
            jax.grad(lambda b, fun=fun: fun(a, b, (((1,), (0,)), ((), ()))).sum().astype(jnp.float32))(b)
            for fun in (jax_moye.dot_general, jax.lax.dot_general)
        )
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
