"""The primitive of products by weights that a program dequantizes: one call, or the equations as they were."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.quantized import assert_close, f64, use_fake_rows, weights_calls
from python.quantized import operands as random_operands
from python.support import lowered_text

import jax_moye
from jax_moye._kernels.configs import weights_configs
from jax_moye._primitives import dequantized as module
from jax_moye._primitives.dequantized import Entries, dequantized_p, given_to_kernel, groups_of

M, K, N, G = 3, 128, 32, 2
needs_rows = pytest.mark.skipif(not weights_configs(), reason="no row of sm90_weights in this build")
in_the_emulator = functools.partial(jax_moye.options, interpret=True)


def layer(x, w, scales, zeros):
    """Of groups; in f32, so that what a kernel computes can be told from what it does not."""
    less = w.astype(jnp.float32).reshape(G, K // G, N) - zeros[:, None].astype(jnp.float32)
    weights = (less * scales[:, None]).reshape(K, N).astype(x.dtype)
    return lax.dot_general(x, weights, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def operands(rng, shape=(M, K, N), w="int8"):
    return random_operands(rng, w, shape=shape, groups=G, zeros=True)


@pytest.fixture
def fake_rows(monkeypatch):
    jax.clear_caches()
    use_fake_rows(monkeypatch)
    yield
    jax.clear_caches()


def test_entries_as_a_kernel_reads_them():
    array = jnp.arange(8.0).reshape(2, 1, 4)
    np.testing.assert_array_equal(Entries(2, 4).as_read(iter([array]), 2, 4), array.reshape(2, 4))
    np.testing.assert_array_equal(Entries(1, 1, 0.5).as_read(iter(()), 2, 4), np.full((2, 4), 0.5))
    np.testing.assert_array_equal(Entries(8, 1).as_read(iter([array]), 8, 3), np.tile(np.arange(8.0)[:, None], 3))
    np.testing.assert_array_equal(Entries(1, 8).as_read(iter([array]), 3, 8), np.tile(np.arange(8.0), (3, 1)))
    assert (groups_of(Entries(1, 4), None), groups_of(Entries(1, 4), Entries(2, 1))) == (1, 2)
    x, w = jnp.ones((2, 3, 8), jnp.bfloat16), jnp.ones((2, 4, 4), jnp.int8)
    found = given_to_kernel(x, w, array, k=8, scales=Entries(2, 4), zeros=Entries(1, 1, 3.0))
    assert [(one.shape, str(one.dtype)) for one in found] == [
        ((6, 8), "bfloat16"),
        ((8, 4), "int8"),
        ((2, 4), "float32"),
        ((2, 4), "int8"),
    ]
    np.testing.assert_array_equal(found[3], np.full((2, 4), 3))


@needs_rows
@pytest.mark.parametrize("shape", [(M, K, N), (2, M, K, N), (1, K, N)], ids=str)
def test_one_call_in_the_emulator(rng, shape):
    args = operands(rng, shape)
    with in_the_emulator():
        (call,) = weights_calls(jax_moye.optimize(layer), *args)
        text = lowered_text(jax_moye.optimize(layer), *args, platform="cpu")
        result = jax.jit(jax_moye.optimize(layer))(*args)
        eager = jax_moye.optimize(layer)(*args)
    assert "dot_general" not in text
    assert "multiply" not in text
    assert call
    assert_close(result, *args, is_rounded=False)  # weights of the program's own are
    np.testing.assert_array_equal(result, eager)


def test_on_a_gpu_where_our_kernels_are_asked_for(rng, fake_rows):
    args = operands(rng)
    for options, count in (
        ({}, 0),
        ({"implementation": "moye"}, 1),
        ({"implementation": "moye", "autotune": "off"}, 1),
    ):
        with jax_moye.options(**options), jax_moye.cuda_target(90):
            calls = weights_calls(jax_moye.optimize(layer), *args, platform="cuda")
            assert len(calls) == count, options


def test_without_a_kernel_it_is_the_program_that_was(rng, fake_rows, monkeypatch):
    """Operation by operation, which XLA sees as if nobody had rewritten it."""
    args = operands(rng)
    monkeypatch.setattr(module, "kernel_of_program", lambda *args, **options: None)

    def kinds(fun):
        text = jax.jit(fun).lower(*args).as_text()
        return sorted(line.split("= ")[1].split(" ")[0] for line in text.splitlines() if "= st" in line)

    was = kinds(layer)
    with in_the_emulator():  # the product is a kernel's, or XLA's
        (equation,) = jax.make_jaxpr(jax_moye.optimize(layer))(*args).eqns
        assert equation.primitive is dequantized_p
    plain = {**equation.params, "interpret": None, "original": equation.params["original"].by_xla}
    assert kinds(lambda *args: dequantized_p.bind(*args, **plain)[0]) == was
    np.testing.assert_array_equal(dequantized_p.bind(*args, **plain)[0], layer(*args))


def test_an_error_is_the_programs_own(rng, fake_rows):
    """On a CPU without the emulator nobody is ours, and the product says so."""
    args = operands(rng)
    with jax_moye.options(implementation="moye"), pytest.raises(NotImplementedError, match="implementation='moye'"):
        jax.jit(jax_moye.optimize(layer))(*args)


@needs_rows
def test_derivatives_and_maps(rng):
    """Of the equations as they were, whatever computes the product itself."""
    x, w, scales, zeros = operands(rng)
    total = lambda fun: lambda x, scales: (fun(x, w, scales, zeros) ** 2).sum()  # noqa: E731
    with in_the_emulator():
        ours = jax.jit(jax.grad(total(jax_moye.optimize(layer)), (0, 1)))(x, scales)
        around = jax.jit(jax_moye.optimize(jax.grad(total(layer), (0, 1))))(x, scales)
        tangent = jax.jvp(lambda x, s: jax_moye.optimize(layer)(x, w, s, zeros), (x, scales), (x, scales))[1]
        rows = jax.vmap(jax_moye.optimize(layer), (0, None, None, None))(x, w, scales, zeros)
        (transposed,) = jax.linear_transpose(lambda x: jax_moye.optimize(layer)(x, w, scales, zeros), x)(
            jnp.ones((M, N), jnp.float32)
        )
    was = jax.grad(total(layer), (0, 1))(x, scales)
    for found in (ours, around):
        for one, other in zip(found, was, strict=True):
            np.testing.assert_allclose(f64(one), f64(other), atol=2**-6 * abs(f64(other)).max())
    values = f64(layer(x, w, scales, zeros))
    np.testing.assert_allclose(f64(tangent), 2 * values, atol=2**-6 * abs(values).max())
    np.testing.assert_allclose(f64(rows), values, atol=2**-6 * abs(values).max())
    (wanted,) = jax.linear_transpose(lambda x: layer(x, w, scales, zeros), x)(jnp.ones((M, N), jnp.float32))
    np.testing.assert_allclose(f64(transposed), f64(wanted), atol=2**-6 * abs(f64(wanted)).max())


@needs_rows
def test_loops_and_checkpoints(rng):
    x, *rest = operands(rng, (M, K, N))
    stacked = [jnp.stack([one, one]) for one in rest]

    def program(x, layers):
        def body(total, of_layer):
            return total + jax.checkpoint(layer)(x, *of_layer), None

        return lax.scan(body, jnp.zeros((M, N)), layers)[0]

    with in_the_emulator():
        assert len(weights_calls(jax_moye.optimize(program), x, stacked)) == 1
        result = jax.jit(jax_moye.optimize(program))(x, stacked)
        gradient = jax.jit(jax.grad(lambda x: jax_moye.optimize(program)(x, stacked).sum()))(x)
    assert_close(result / 2, x, *rest, is_rounded=False)
    wanted = f64(jax.grad(lambda x: program(x, stacked).sum())(x))
    np.testing.assert_allclose(f64(gradient), wanted, atol=2**-6 * abs(wanted).max())


@needs_rows
def test_rows_do_not_count_where_they_must_not(rng):
    args = operands(rng, (70, K, N))
    with in_the_emulator(batch_invariant=True):
        many = jax.jit(jax_moye.optimize(layer))(*args)
        few = jax.jit(jax_moye.optimize(layer))(args[0][3:5], *args[1:])
    np.testing.assert_array_equal(many[3:5], few)


def test_over_devices_it_is_the_equations_as_they_were(rng, fake_rows, monkeypatch):
    args = operands(rng)
    monkeypatch.setattr(module._compat, "why_not_local", lambda ctx: "it is partitioned over 2 devices")
    with in_the_emulator():
        lowered = jax.jit(jax_moye.optimize(layer)).lower(*args)
    assert "jax_moye_weights_gemm" not in lowered.as_text()
    assert "stablehlo.subtract" in lowered.as_text()  # the weights are dequantized
