"""Operands that are parts of larger arrays, on a GPU. On the CPU test_views.py has the same programs emulated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.viewed import CASES, WQKV, H, attention, check

import jax_moye

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", CASES)
def test_programs(name, dtype):
    check(name, interpret=False, dtype=dtype)


def test_large_parts_are_not_written_to_memory():
    """What tiles, stages and TMA's boxes see of a transformer's heads; the compiled program has no copy of them."""
    shapes = ((4, 512, 256), (256, 3 * 8 * 128))

    def scores(h, w):
        qkv = (h @ w).reshape(*h.shape[:2], 3, 8, 128)
        return jnp.einsum("bqhd,bkhd->bhqk", qkv[:, :, 0], qkv[:, :, 1])

    rng = np.random.default_rng(0)
    h, w = (jnp.asarray(rng.integers(-1, 2, shape), jnp.bfloat16) for shape in shapes)
    with jax_moye.options(implementation="moye"):
        compiled = jax.jit(jax_moye.optimize(scores)).lower(h, w).compile()
    text = compiled.as_text()
    assert "jax_moye_view_gemm_v1" in text
    assert " slice(" not in text
    h64, w64 = (np.asarray(x, np.float64) for x in (h, w))
    qkv = (h64 @ w64).astype(jnp.bfloat16).astype(np.float64).reshape(4, 512, 3, 8, 128)
    expected = np.einsum("bqhd,bkhd->bhqk", qkv[:, :, 0], qkv[:, :, 1], optimize=True)
    error = np.abs(np.asarray(compiled(h, w), np.float64) - expected)
    bound = 2.0**-8 * np.abs(expected) + 2.0**-20 * np.einsum(
        "bqhd,bkhd->bhqk", np.abs(qkv[:, :, 0]), np.abs(qkv[:, :, 1]), optimize=True
    )
    assert (error <= bound).all()


def test_inside_of_a_cuda_graph_and_again():
    """The same bits in every run, of one program that is called several times."""
    rng = np.random.default_rng(1)
    h, w = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in (H, WQKV))
    with jax_moye.options(implementation="moye"):
        fun = jax.jit(jax_moye.optimize(attention))
        first = np.asarray(fun(h, w))
        for _ in range(5):
            assert first.tobytes() == np.asarray(fun(h, w)).tobytes()
