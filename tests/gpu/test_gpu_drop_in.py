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


def test_what_this_process_lowers_for_another_gpu():
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    traced = jax.jit(lambda a: jax_moye.matmul(a, a, implementation="moye")).trace(a)
    with jax_moye.cuda_target(80):
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "sm80_" in text
    assert "sm90_" not in text
