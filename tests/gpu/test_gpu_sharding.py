"""`jax_moye.matmul` on several GPUs: kernels on each one's part, and NCCL's collectives between them."""

from __future__ import annotations

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from python.sharded import kernel_calls, make_mesh, place, run

import jax_moye

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

matmul = functools.partial(jax_moye.matmul, implementation="moye", preferred_element_type=jnp.float32)
# Shardings of a (512, 1024), b (1024, 256) and of the result, and what is exchanged.
PRODUCTS = {
    "M": (P("x"), P(), P("x"), []),
    "N": (P(), P(None, "x"), P(None, "x"), []),
    "K": (P(None, "x"), P("x"), P(), ["all-reduce"]),
    "K, result's M": (P(None, "x"), P("x"), P("x"), ["reduce-scatter"]),
    "weight over the batch's axis": (P("x"), P("x"), P("x"), ["all-gather"]),
    "result gathered": (P("x"), P(), P(), ["all-gather"]),
}


@pytest.fixture(params=(AxisType.Explicit, AxisType.Auto), ids=str)
def mesh(request, gpu):
    """All GPUs in a row."""
    gpus = jax.device_count()
    if gpus < 2 or 256 % gpus:
        pytest.skip(f"{gpus} GPU: several are needed, and a number that divides 256")
    return make_mesh(request.param, (gpus,), ("x",))


def exchanged(hlo: str) -> list[str]:
    """The kinds of collectives; the GPU's are asynchronous, and their shapes are those of operands and results."""
    return sorted(
        re.findall(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", hlo)
    )


def integers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(jnp.bfloat16)


@pytest.mark.parametrize("case", PRODUCTS)
def test_products(mesh, case):
    a_spec, b_spec, out_spec, kinds = PRODUCTS[case]
    a, b = integers(0, 512, 1024), integers(1, 1024, 256)
    explicit = mesh.axis_types == (AxisType.Explicit,)
    fun = functools.partial(matmul, out_sharding=out_spec) if explicit else matmul
    out, hlo = run(mesh, fun, (a, b), (a_spec, b_spec), out_spec)
    np.testing.assert_array_equal(out, a.astype(np.float64) @ b.astype(np.float64))
    assert exchanged(hlo) == kinds
    assert kernel_calls(hlo) == 1


def test_training_step_is_the_same_every_time(mesh):
    x, w, t = integers(0, 512, 1024), integers(1, 1024, 256), integers(2, 512, 256).astype(np.float32)

    def loss(x, w, t):
        return (matmul(x, w) * t).sum()

    explicit = mesh.axis_types == (AxisType.Explicit,)
    with jax.set_mesh(mesh) if explicit else contextlib.nullcontext():
        operands = [place(mesh, z, spec) for z, spec in ((x, P("x")), (w, P()), (t, P("x")))]
        step = jax.jit(jax.grad(loss, 1)).lower(*operands).compile()
        assert exchanged(step.as_text()) == ["all-reduce"]
        first = np.asarray(step(*operands)).astype(np.float64)
        # Parts are rounded to bf16, added up in bf16, and are 2048 at most all together.
        assert np.abs(first - x.astype(np.float64).T @ t).max() <= 16
        for _ in range(100):
            np.testing.assert_array_equal(np.asarray(step(*operands)).astype(np.float64), first)
