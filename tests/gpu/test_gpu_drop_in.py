"""Saved programs and intercepted ones on a GPU."""

from __future__ import annotations

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye import _compat

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SAVED = pathlib.Path(__file__).resolve().parents[1] / "data" / "exported"


def integers(rng, *shape):
    """Their products and sums are exact."""
    return jnp.asarray(rng.integers(-2, 3, shape), jnp.bfloat16)


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.cuda.bin")), ids=lambda path: path.stem)
def test_saved_programs_of_earlier_versions(path):
    pytest.importorskip("flatbuffers")
    loaded = jax.export.deserialize(bytearray(path.read_bytes()))
    rng = np.random.default_rng(1)
    a, b, cotangent = integers(rng, 24, 40), integers(rng, 40, 16), integers(rng, 24, 16)
    a64, b64, cotangent64 = (np.asarray(x, np.float64) for x in (a, b, cotangent))
    np.testing.assert_array_equal(np.asarray(loaded.call(a, b), np.float64), a64 @ b64)
    if _compat.cuda_arch() != 90:
        return  # the derivatives' kernels were chosen for an H200
    _, vjp = jax.vjp(loaded.call, a, b)
    a_bar, b_bar = vjp(cotangent)
    np.testing.assert_array_equal(np.asarray(a_bar, np.float64), cotangent64 @ b64.T)
    np.testing.assert_array_equal(np.asarray(b_bar, np.float64), a64.T @ cotangent64)


def test_interception():
    rng = np.random.default_rng(0)
    x, w = integers(rng, 256, 128), integers(rng, 128, 512)

    def loss(x, w):
        return jnp.sum((x @ w).astype(jnp.float32) ** 2)

    expected = jax.grad(loss, (0, 1))(x, w)
    with jax_moye.options(implementation="moye"), jax_moye.intercept():  # products so small are left to XLA
        program = jax.jit(jax.value_and_grad(loss, (0, 1)))
        text = program.lower(x, w).compile().as_text()
        assert len(re.findall(r'custom_call_target="jax_moye_gemm_v1"', text)) == 3
        assert "cublas" not in text
        _, gradients = program(x, w)
    for ours, theirs in zip(gradients, expected, strict=True):  # sums of up to 512 products, each rounded once
        np.testing.assert_allclose(
            np.asarray(ours, np.float64),
            np.asarray(theirs, np.float64),
            rtol=2**-7,
            atol=2**-7 * float(jnp.abs(theirs).max()),
        )


def test_attention_in_place():
    """Two products and their four gradients, with heads between the rows of a matrix: six calls, and no transpose."""
    rng = np.random.default_rng(2)
    q, k, v = (integers(rng, 2, size, 6, 64) for size in (130, 200, 200))
    cotangent = integers(rng, 2, 130, 6, 64)

    def run(einsum, *args, **options):
        def attention(q, k, v):
            scores = einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32, **options)
            return einsum("bhqk,bkhd->bqhd", (scores / 64).astype(q.dtype), v, **options)

        out, vjp = jax.vjp(attention, *args[:3])
        return out, *vjp(args[3])

    args = (q, k, v, cotangent)
    program = jax.jit(lambda *args: run(jax_moye.einsum, *args, implementation="moye"))
    text = program.lower(*args).compile().as_text()
    assert len(re.findall(r'custom_call_target="jax_moye_gemm_v1"', text)) == 6
    assert not re.findall(r"= \S+ transpose\(", text)
    expected = jax.jit(lambda *args: run(jnp.einsum, *args))(*(x.astype(jnp.float32) for x in args))
    for ours, theirs in zip(program(*args), expected, strict=True):
        largest = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(
            np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=2**-6, atol=2**-6 * largest
        )


@pytest.mark.parametrize(
    "config", [c for c in jax_moye.configs() if c.dtype == "bf16"], ids=lambda config: config.name, indirect=True
)
def test_batches_of_three_modes(config):
    """Grouped queries in every config of bf16: keys are read again by the queries of a group."""
    rng = np.random.default_rng(3)
    q, k = integers(rng, 2, 70, 3, 2, 64), integers(rng, 2, 90, 3, 64)
    spec = "bqgnd,bkgd->bgnqk"
    found = jax_moye.einsum(spec, q, k, config=config, preferred_element_type=jnp.float32)
    exact = np.einsum(spec, np.asarray(q, np.float64), np.asarray(k, np.float64))
    np.testing.assert_array_equal(np.asarray(found, np.float64), exact)


def test_what_this_process_lowers_for_another_gpu():
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    traced = jax.jit(lambda a: jax_moye.matmul(a, a, implementation="moye")).trace(a)
    with jax_moye.cuda_target(80):
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "sm80_" in text
    assert "sm90_" not in text
