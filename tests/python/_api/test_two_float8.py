"""Products of two different 8-bit floats: e4m3 by e5m2, and e5m2 by e4m3."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._kernels.dtypes import FLOAT8, numpy_dtypes
from tests.python.support import custom_calls, lowered_text

PAIRS = (("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn"))
both_pairs = pytest.mark.parametrize(("lhs", "rhs"), PAIRS)
interpreted = functools.partial(jax_moye.einsum, implementation="moye", interpret=True)
SHORT = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def draw(rng, shape, dtype):
    """Integers that either dtype holds, whose bits mean another number in the other one."""
    return jnp.asarray(rng.integers(-3, 4, shape), dtype)


def exact(spec, a, b):
    return np.einsum(spec, np.asarray(a, np.float64), np.asarray(b, np.float64))


@both_pairs
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn", "mk,kn->nm", "bmk,bkn->bmn"])
def test_values(rng, lhs, rhs, out, spec):
    """All orders, a batch, and a result that is contiguous along lhs: there rhs is the kernel's a."""
    sizes = dict(b=2, m=40, n=24, k=72)
    labels = spec.replace("->", ",").split(",")
    a, b = (draw(rng, [sizes[x] for x in names], dtype) for names, dtype in zip(labels[:2], (lhs, rhs), strict=True))
    fun = functools.partial(interpreted, spec, preferred_element_type=out)
    (call,) = custom_calls(lowered_text(fun, a, b, platform="cpu"))
    kernels_a, kernels_b = (rhs, lhs) if spec == "mk,kn->nm" else (lhs, rhs)
    assert f"_{SHORT[kernels_a]}x{SHORT[kernels_b]}_" in call.config
    found = jax.jit(fun)(a, b)
    assert found.dtype == out
    np.testing.assert_array_equal(np.asarray(found, np.float64), exact(spec, a, b))


@both_pairs
def test_8_bit_results_are_rounded_once(rng, lhs, rhs):
    a, b = draw(rng, (16, 32), lhs), draw(rng, (32, 48), rhs)
    ours = jax_moye.dot_general(a, b, (((1,), (0,)), ((), ())), implementation="moye", interpret=True)
    assert ours.dtype == lax.dot_general(a, b, (((1,), (0,)), ((), ()))).dtype
    rounded = exact("mk,kn->mn", a, b).astype(np.float32).astype(ours.dtype)
    np.testing.assert_array_equal(np.asarray(ours), rounded)


@both_pairs
def test_vmap(rng, lhs, rhs):
    a, b = draw(rng, (3, 16, 32), lhs), draw(rng, (32, 48), rhs)
    fun = functools.partial(interpreted, "mk,kn->mn", preferred_element_type="float32")
    np.testing.assert_array_equal(jax.vmap(fun, (0, None))(a, b), exact("bmk,kn->bmn", a, b))


@both_pairs
def test_gradients_are_laxs(rng, lhs, rhs):
    a, b = draw(rng, (16, 32), lhs), draw(rng, (32, 48), rhs)
    cotangent = jnp.asarray(rng.standard_normal((16, 48)), jnp.float32)

    def gradients(fun, **options):
        product = functools.partial(
            fun, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type="float32", **options
        )
        return jax.vjp(product, a, b)[1](cotangent)

    for x, y in zip(gradients(jax_moye.dot_general, interpret=True), gradients(lax.dot_general), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8))


@both_pairs
def test_the_gradient_of_an_e5m2_cotangent_is_a_kernels(rng, lhs, rhs):
    """As 8-bit training has it: the cotangent is quantized by the caller."""
    a, b = draw(rng, (40, 24), lhs), draw(rng, (40, 32), rhs)
    found = interpreted("mk,mn->kn", a, b, preferred_element_type="float32")
    np.testing.assert_array_equal(found, exact("mk,mn->kn", a, b))


@both_pairs
def test_explain_names_the_dtypes_and_the_candidates(lhs, rhs):
    a, b = jax.ShapeDtypeStruct((256, 512), lhs), jax.ShapeDtypeStruct((128, 512), rhs)
    fun = functools.partial(jax_moye.einsum, "mk,nk->mn", preferred_element_type="float32", implementation="moye")
    text = str(jax_moye.explain(fun, a, b, device="h200"))
    assert f"{SHORT[lhs]}x{SHORT[rhs]}" in text


@both_pairs
def test_better_precision_is_xlas(lhs, rhs):
    a, b = jnp.ones((16, 32), lhs), jnp.ones((32, 16), rhs)
    with pytest.raises(NotImplementedError, match="in fewer bits than f32 has"):
        interpreted("mk,kn->mn", a, b, preferred_element_type="float32", precision="highest")


def test_a_config_of_the_other_pair_is_refused():
    (a, b) = (jnp.ones((16, 16), dtype) for dtype in PAIRS[0])
    config = next(c for c in jax_moye.configs() if c.dtype == "e5m2xe4m3" and "NN" in c.orders)
    with pytest.raises(ValueError, match="its operands are e5m2xe4m3, these are e4m3xe5m2"):
        jax_moye.matmul(a, b, preferred_element_type="float32", config=config.name, interpret=True)


@pytest.mark.parametrize("config", [c for c in jax_moye.configs() if c.dtype in FLOAT8[2:]], ids=lambda c: c.name)
def test_every_config(rng, config):
    (lhs, rhs), (m, n, k) = numpy_dtypes(config.dtype), (size + 16 for size in config.tile)
    a, b = draw(rng, (m, k), lhs), draw(rng, (n, k), rhs)
    fun = functools.partial(interpreted, "mk,nk->mn", preferred_element_type="float32", config=config.name)
    np.testing.assert_array_equal(fun(a, b), exact("mk,nk->mn", a, b))
