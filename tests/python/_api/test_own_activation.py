"""linear(activation=function): in one kernel that was compiled with it, or behind the product, and its derivatives."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye import linear
from jax_moye._kernels import own_epilogue
from jax_moye._primitives import custom_call

SM80 = "sm80_multistage_bf16_64x64x64_s3_a16"
SM90 = "sm90_cooperative_bf16_128x128x64_s5_a16"
compiles = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")


def leaky(y):
    """Exact in f32 of small integers."""
    return jnp.where(y > 0, y, 0.25 * y) + jnp.square(jax.nn.relu(y - 3))


def leaky64(z):
    return np.where(z > 0, z, 0.25 * z) + np.square(np.maximum(z - 3, 0))


def softcap(y):
    return 30 * jnp.tanh(y / 30)


def integers(*shapes, dtype=jnp.bfloat16):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.integers(-4, 5, shape), dtype) for shape in shapes]


def calls(function, *args):
    """The activations of the custom calls of a program, and the kernels they name."""
    text = jax.jit(function).lower(*args).as_text()
    lines = [line for line in text.splitlines() if re.search(r'\bconfig = "', line)]
    keys = ("activation", "config")
    return [tuple((re.findall(rf'\b{key} = "(\w+)"', line) or [None])[0] for key in keys) for line in lines]


@compiles
@pytest.mark.parametrize("config", [SM80, SM90])
@pytest.mark.parametrize("out_dtype", [jnp.float32, jnp.bfloat16])
def test_exact_in_one_kernel(config, out_dtype):
    """With tiles at the edge, a bias and a residual; two bits of the result are fractions."""
    x, w, bias, residual = integers((2, 70, 40), (40, 96), (96,), (2, 70, 96))

    def layer(x, w, bias, residual):
        options = {"config": config, "interpret": True, "preferred_element_type": out_dtype}
        return linear(x, w, bias, activation=leaky, residual=residual, **options)

    z = np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(bias, np.float64)
    exact = leaky64(z) + np.asarray(residual, np.float64)
    y = jax.jit(layer)(x, w, bias, residual)
    assert y.dtype == out_dtype
    np.testing.assert_array_equal(np.asarray(y), exact.astype(np.float32).astype(out_dtype))
    ((activation, name),) = calls(layer, x, w, bias, residual)
    assert activation == "own"
    assert name.startswith(f"{config}_all_f")


@compiles
def test_other_dtypes_of_the_product():
    """f32, and integers whose result is one of floats."""
    for dtype, config in (
        (jnp.float32, "simt_tiled_f32_64x64x8_s1_a4"),
        (jnp.int8, "sm80_multistage_s8_64x64x64_s3_a16"),
    ):
        x, w = integers((30, 48), (48, 32), dtype=dtype)
        options = {"config": config, "interpret": True, "preferred_element_type": jnp.float32}
        y = linear(x, w, activation=leaky, precision="highest" if dtype == jnp.float32 else None, **options)
        np.testing.assert_array_equal(y, leaky64(np.asarray(x, np.float64) @ np.asarray(w, np.float64)))


@compiles
def test_precision():
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(0, 6, shape), jnp.bfloat16) for shape in ((50, 64), (64, 40)))
    z = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    magnitude = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(w, np.float64))
    for function in (softcap, jax.nn.softplus, jax.nn.mish):
        y = linear(x, w, activation=function, config=SM80, interpret=True, preferred_element_type=jnp.float32)
        with jax.enable_x64(True):
            exact = np.asarray(function(jnp.asarray(z)))
        # No slope is over 1.1; the sums are off by their terms' roundings.
        assert np.all(np.abs(y - exact) <= 2.0**-22 * (1.1 * 64 * magnitude + 8 * np.abs(exact) + np.abs(z)))


@compiles
def test_derivatives_vmap_and_no_second_product():
    x, w, bias = (a / 8 for a in integers((20, 24), (24, 16), (16,), dtype=jnp.float32))

    def loss(of, x, w, bias):
        return jnp.sum(jnp.sin(of(x, w, bias)))

    def layer(x, w, bias):
        return linear(x, w, bias, activation=softcap, interpret=True, precision="highest")

    def plain(x, w, bias):
        return softcap(x @ w + bias)

    with jax.default_matmul_precision("highest"):
        for i in range(3):
            got = jax.grad(loss, 1 + i)(layer, x, w, bias)
            np.testing.assert_allclose(got, jax.grad(loss, 1 + i)(plain, x, w, bias), rtol=2e-5, atol=1e-5)
        second = jax.jvp(jax.grad(lambda x: loss(layer, x, w, bias)), (x,), (x,))[1]
        np.testing.assert_allclose(
            second, jax.jvp(jax.grad(lambda x: loss(plain, x, w, bias)), (x,), (x,))[1], rtol=2e-4, atol=1e-4
        )
        batch = jnp.stack([x, -x, 2 * x])
        np.testing.assert_allclose(
            jax.vmap(layer, (0, None, None))(batch, w, bias), softcap(batch @ w + bias), rtol=1e-5, atol=1e-6
        )
        of_bias = jax.vmap(lambda bias: layer(x, w, bias))(jnp.stack([bias, -bias]))
        np.testing.assert_allclose(of_bias[1], softcap(x @ w - bias), rtol=1e-5, atol=1e-6)
    program = str(jax.make_jaxpr(jax.value_and_grad(lambda x, w, bias: loss(layer, x, w, bias), (0, 1, 2)))(x, w, bias))
    assert program.count("jax_moye_fused[") == 1
    assert "preactivation=True" in program
    assert program.count("jax_moye_contract[") == 2


@compiles
def test_the_derivative_is_the_functions_own():
    """Of a custom_jvp, too: not that of its equations."""

    @jax.custom_jvp
    def straight_through(y):
        return jnp.round(y)

    straight_through.defjvps(lambda dot, out, y: dot)
    x, w = integers((8, 16), (16, 8), dtype=jnp.float32)
    layer = functools.partial(linear, activation=straight_through, interpret=True, precision="highest")
    np.testing.assert_array_equal(jax.grad(lambda x: layer(x, w).sum())(x), jnp.ones((8, 8)) @ w.T)


@compiles
def test_its_kernel_knows_no_other_activation(monkeypatch):
    """An edited program must not get what was never compiled."""
    attributes = custom_call.epilogue_attributes
    monkeypatch.setattr(custom_call, "epilogue_attributes", lambda *of: attributes(*of) | {"activation": "relu"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="the kernel knows no activation but its own"):
        jax.block_until_ready(
            linear(*integers((8, 16), (16, 8)), activation=lambda y: softcap(y) + 1, config=SM80, interpret=True)
        )


@compiles
def test_its_kernel_takes_no_second_matrix(monkeypatch):
    """It would store one product as if there were no other."""
    attributes = custom_call.epilogue_attributes
    monkeypatch.setattr(custom_call, "epilogue_attributes", lambda *of: attributes(*of) | {"operands": "second_b"})
    x, w, residual = integers((8, 8), (8, 8), (8, 8))
    with pytest.raises(jax.errors.JaxRuntimeError, match="takes neither a second b nor a multiplier"):
        jax.block_until_ready(
            linear(x, w, residual=residual, activation=lambda y: softcap(y) + 2, config=SM80, interpret=True)
        )


@compiles
def test_equal_functions_share_a_kernel(monkeypatch):
    x, w = integers((8, 16), (16, 8))
    made = []
    of_emulator = own_epilogue._for_emulator
    monkeypatch.setattr(own_epilogue, "_for_emulator", lambda kernel: made.append(kernel) or of_emulator(kernel))
    first, second = (
        linear(x, w, activation=lambda y: jnp.maximum(y, -0.125), config=SM80, interpret=True) for _ in range(2)
    )
    assert len(made) == 1
    np.testing.assert_array_equal(first, second)


def test_without_a_compiler_xla_applies_it(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setattr(own_epilogue, "_jobs", {})
    x, w, bias = integers((33, 16), (16, 24), (24,))

    def layer(x, w, bias):
        return linear(x, w, bias, activation=lambda y: leaky(y) + 8, interpret=True, config=SM80)

    with caplog.at_level(logging.INFO, "jax_moye"):
        y = layer(x, w, bias)
    exact = leaky64(np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(bias, np.float64)) + 8
    np.testing.assert_array_equal(np.asarray(y), exact.astype(jnp.bfloat16))
    assert "is not its kernel's" in caplog.text
    assert "no C++ compiler: /nowhere/c++ is not on PATH" in caplog.text
    assert calls(layer, x, w, bias) == [(None, SM80)]  # the product is its kernel's
    with pytest.raises(NotImplementedError, match=r"batch_invariant=True: the epilogue .* no C\+\+ compiler"):
        linear(x, w, activation=lambda y: leaky(y) + 16, interpret=True, batch_invariant=True)


def softmax64(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (jax.nn.softmax, softmax64),
        (lambda y: y * jnp.arange(24.0), lambda z: z * np.arange(24)),
        (lambda y: y - y.mean(-1, keepdims=True), lambda z: z - z.mean(-1, keepdims=True)),
    ],
    ids=["softmax", "arange", "mean"],
)
def test_other_functions_are_xlas(function, exact, caplog):
    x, w, bias, residual = integers((33, 16), (16, 24), (24,), (33, 24))
    z = np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(bias, np.float64)
    for interpret in (True, None):
        with caplog.at_level(logging.INFO, "jax_moye"):
            y = linear(x, w, bias, activation=function, residual=residual, interpret=interpret)
        assert y.dtype == jnp.bfloat16
        expected = exact(z) + np.asarray(residual, np.float64)
        np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2.0**-8, atol=1e-6)
    assert "no kernel is compiled with the activation" in caplog.text
    for options in ({"implementation": "moye"}, {"config": SM80}, {"batch_invariant": True}):
        with pytest.raises(NotImplementedError, match=r"linear: no kernel .*: \w+ is no operation on single"):
            linear(x, w, activation=function, interpret=True, **options)


def test_a_traced_value_that_a_function_captures():
    """XLA applies it, and derivatives reach the value."""
    x, w = integers((8, 16), (16, 8), dtype=jnp.float32)

    def loss(of, scale):
        return jnp.sum(of(lambda y: jnp.tanh(scale * y)))

    layer = functools.partial(loss, lambda f: linear(x, w, activation=f, interpret=True))
    plain = functools.partial(loss, lambda f: f(x @ w))
    np.testing.assert_allclose(jax.grad(layer)(0.01), jax.grad(plain)(0.01), rtol=1e-4)


def test_float64_is_xlas(caplog):
    with jax.enable_x64(True), caplog.at_level(logging.INFO, "jax_moye"):
        x, w = integers((8, 16), (16, 8), dtype=jnp.float64)
        y = linear(x, w, activation=softcap, interpret=True)
        np.testing.assert_allclose(y, 30 * np.tanh(np.asarray(x) @ np.asarray(w) / 30), rtol=1e-14)
        assert "functions are compiled for float32" in caplog.text


@pytest.mark.parametrize("out_dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_where_no_kernel_finishes_the_product_xla_does(out_dtype):
    """Of int8 there is no kernel into 8-bit floats with an epilogue, and one of the product alone."""
    x, w, bias = integers((16, 64), (64, 32), dtype=jnp.int8) + integers((32,), dtype=jnp.float32)
    out = linear(x, w, bias, activation=softcap, preferred_element_type=out_dtype, interpret=True)
    exact = softcap(x.astype(jnp.float32) @ w.astype(jnp.float32) + bias).astype(out_dtype)
    assert out.dtype == out_dtype
    np.testing.assert_array_equal(out, exact)


def test_wrong_functions():
    x, w = integers((8, 16), (16, 8))
    for function, words in (
        (lambda y: y[:4], r"<lambda> makes float32\[4, 8\] of float32\[8, 8\]"),
        (lambda y: y > 0, r"<lambda> makes bool\[8, 8\]"),
        (lambda y: (y, y), "activation makes floats of the shape of its argument"),
    ):
        with pytest.raises(ValueError, match=words):
            linear(x, w, activation=function)
    with pytest.raises(TypeError, match="takes real floats, and the result is int32"):
        linear(*integers((8, 16), (16, 8), dtype=jnp.int32), activation=softcap)


@pytest.mark.parametrize("wrap", [lambda fun: fun, jax.jit])
def test_functions_are_hashable(wrap):
    """Frozen classes of arrays, as Equinox's layers are, have a hash that raises."""

    @dataclasses.dataclass(frozen=True)
    class Scaled:
        by: np.ndarray

        def __call__(self, y):
            return self.by * y

    x, w = integers((8, 16), (16, 8))
    with pytest.raises(TypeError, match="linear: activation is hashable, and this Scaled is not"):
        wrap(lambda x, w: linear(x, w, activation=Scaled(np.ones(8))))(x, w)


def test_no_kernels_and_several_devices():
    """On a CPU without the emulator, and in an exported program, XLA computes it all."""
    x, w = integers((8, 16), (16, 8))
    exact = leaky64(np.asarray(x, np.float64) @ np.asarray(w, np.float64)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(linear(x, w, activation=leaky), exact)
    layer = jax.jit(functools.partial(linear, activation=leaky, interpret=True))
    exported = jax.export.export(layer, disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)(x, w)
    assert '"own"' not in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(x, w), exact)


def test_explain_names_the_function():
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    layer = functools.partial(linear, activation=softcap)
    (product,) = jax_moye.explain(jax.jit(layer), x, x, device="h200")
    assert product.computed_by in ("moye", "xla")
    assert "softcap" in str(product)
