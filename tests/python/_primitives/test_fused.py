"""The lowering of a product with its epilogue: all in one kernel, or a product and what XLA makes of it."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import FUSED_TARGET, TARGET, lowered_text

import jax_moye
from jax_moye._primitives.fused import fused, unfused
from jax_moye._selection import decide
from jax_moye._selection.epilogue import Epilogue

OPTIONS = dict(precision=None, out_sharding=None, config=None)
EMULATED = dict(implementation="moye", interpret=jax_moye.InterpretParams(detect_races=False))


def struct(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def layer(x, w, *operands, epilogue, spec="mk,kn->mn", out_dtype=None, implementation="moye", interpret=None):
    out_dtype = out_dtype or x.dtype
    how = dict(implementation=implementation, interpret=interpret)
    return fused(spec, x, w, operands, epilogue=epilogue, out_dtype=out_dtype, **OPTIONS, **how)


BIAS = Epilogue("relu", operands=(("bias", "n"),))
C = Epilogue("none", beta=0.5, operands=(("c", "mn"),))


@pytest.mark.parametrize("epilogue", [BIAS, C, Epilogue("silu", alpha=2.0)], ids=["bias", "c", "alpha"])
def test_a_kernel_and_xla_compute_the_same(rng, epilogue):
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((16, 24), (24, 8)))
    shapes = {"bias": (8,), "c": (16, 8)}
    operands = [jnp.asarray(rng.standard_normal(shapes[name]), jnp.float32) for name, _ in epilogue.operands]
    ours = jax.jit(functools.partial(layer, epilogue=epilogue, **EMULATED))(x, w, *operands)
    params = dict(spec="mk,kn->mn", epilogue=epilogue, preactivation=False, out_dtype=x.dtype)
    (xlas,) = unfused(x, w, *operands, **params, **OPTIONS, implementation="xla", interpret=None)
    np.testing.assert_allclose(ours, xlas, rtol=1e-5, atol=1e-5)


def test_one_kernel_computes_all_of_it(kernels_are_there):
    text = lowered_text(functools.partial(layer, epilogue=BIAS), struct(64, 32), struct(32, 64), struct(64))
    assert text.count(f"@{FUSED_TARGET}(") == 1
    assert f"@{TARGET}(" not in text
    assert "stablehlo.maximum" not in text


def test_a_kernel_multiplies_and_xla_finishes(kernels_are_there, caplog):
    """Kernels finish integers with alpha 1 alone."""
    epilogue = Epilogue("relu", alpha=2.0)
    x, w = struct(64, 32, dtype=jnp.int8), struct(32, 64, dtype=jnp.int8)
    with caplog.at_level(logging.INFO, "jax_moye"):
        text = lowered_text(functools.partial(layer, epilogue=epilogue, out_dtype=jnp.int32), x, w)
    assert text.count(f"@{TARGET}(") == 1
    assert "stablehlo.maximum" in text
    (line,) = [record.getMessage() for record in caplog.records if "epilogue" in record.getMessage()]
    assert "is not its kernel's: kernels finish integers with alpha 1" in line


def test_where_xla_is_faster_it_computes_all_of_it(kernels_are_there, monkeypatch, caplog):
    monkeypatch.setattr(decide, "xla_us", lambda *args, **kwargs: 0.25)
    with caplog.at_level(logging.INFO, "jax_moye"):
        fun = functools.partial(layer, epilogue=BIAS, implementation=None)
        text = lowered_text(fun, struct(72, 32), struct(32, 72), struct(72))
    assert "custom_call @jax_moye" not in text
    assert "stablehlo.dot_general" in text
    assert "stablehlo.maximum" in text
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the epilogue of mk,kn->mn" in line
    assert "XLA is expected to take 0.2 us" in line


def test_a_wider_weight_is_rounded_behind_its_transpose(kernels_are_there):
    def program(x, w, bias):
        return layer(x, w.T, bias, epilogue=BIAS)

    text = lowered_text(program, struct(64, 32), struct(48, 32, dtype=jnp.float32), struct(48))
    assert text.count(f"@{FUSED_TARGET}(") == 1
    assert "b_strides = dense<[0, 32, 1]>" in text, "w is read as it is stored"
    assert text.count("stablehlo.convert") == 1


def test_nothing_to_multiply(rng):
    bias = jnp.asarray(rng.standard_normal(4), jnp.float32)
    out = layer(jnp.ones((3, 0)), jnp.ones((0, 4)), bias, epilogue=BIAS, **EMULATED)
    np.testing.assert_allclose(out, np.broadcast_to(np.maximum(bias, 0), (3, 4)))


def test_the_bias_gradient_sums_what_the_products_multiply(kernels_are_there):
    """z's cotangent is made once, in 16 bits: read before its rounding, XLA would make it twice, or write it in f32."""

    def loss(x, w, bias):
        return layer(x, w, bias, epilogue=Epilogue("gelu_tanh", operands=(("bias", "n"),))).astype(jnp.float32).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(
        jnp.ones((64, 32), jnp.bfloat16), *(jnp.ones(s, jnp.bfloat16) for s in ((32, 48), 48))
    )
    (barrier,) = [e for e in jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    (cotangent,) = barrier.outvars
    assert cotangent.aval.dtype == jnp.bfloat16
    (widened,) = [e for e in jaxpr.eqns if cotangent in e.invars and e.primitive.name == "convert_element_type"]
    (total,) = [e for e in jaxpr.eqns if widened.outvars[0] in e.invars]
    assert total.primitive.name == "reduce_sum"
    assert total.outvars[0].aval.dtype == jnp.float32, "and adds up in f32"
    products = [e for e in jaxpr.eqns if cotangent in e.invars and e is not widened]
    assert len(products) == 2, "the gradients of x and w"


def test_the_gradient_of_a_wider_bias_sums_what_was_not_rounded(kernels_are_there):
    def loss(bias, x, w):
        return layer(x, w, bias, epilogue=Epilogue("gelu_tanh", operands=(("bias", "n"),))).astype(jnp.float32).sum()

    x, w, bias = jnp.ones((64, 32), jnp.bfloat16), jnp.ones((32, 48), jnp.bfloat16), jnp.ones(48, jnp.float32)
    jaxpr = jax.make_jaxpr(jax.grad(loss))(bias, x, w)
    (gradient,) = jaxpr.jaxpr.outvars
    assert gradient.aval.dtype == jnp.float32
    assert not [e for e in jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 2)))(bias, x, w)
    assert not [e for e in jaxpr.eqns if e.primitive.name == "optimization_barrier"]
