"""Programs that compute a product: its operands, its reference in float64, and the product of a workload."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.workloads import WORKLOAD, exact, one_set

import jax_moye
from jax_moye._inspect.programs import (
    explain_workload,
    program_of,
    random_operands,
    reference_of,
    structs_of,
    workload_program,
)
from jax_moye._kernels.devices import find_device
from jax_moye._timing.correctness import of_baseline

pytestmark = pytest.mark.usefixtures("x64")
CPU = jax.devices("cpu")[0]


def product_of(fun, *shapes, dtype="bfloat16"):
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jax_moye.explain(fun, *structs, device=80)[0].product


def layer(x, w, b, r):
    return jax_moye.linear(x, w, b, activation="relu", residual=r)


def test_operands_of_a_layer():
    product = product_of(layer, (16, 32), (32, 24), (24,), (16, 24))
    assert [struct.shape for struct in structs_of(product)] == [(16, 32), (32, 24), (24,), (16, 24)]
    sets = random_operands(product, CPU, largest_loop=256)
    assert (len(sets), sets.group, sets.repeats) == (1, 1, 0)  # without a GPU nothing rotates
    assert [x.dtype for x in sets.first] == [jnp.bfloat16] * 4


def test_the_reference_of_a_layer():
    product = product_of(layer, (16, 32), (32, 24), (24,), (16, 24))
    operands = random_operands(product, CPU, 0).first
    x, w, b, r = (np.asarray(x).astype(np.float64) for x in operands)
    reference = reference_of(product, operands)
    np.testing.assert_allclose(reference.exact, np.maximum(x @ w + b, 0) + r, rtol=1e-12)
    np.testing.assert_allclose(reference.magnitude, abs(x) @ abs(w), rtol=1e-12)
    np.testing.assert_allclose(reference.parts, abs(x @ w) + abs(b) + abs(r), rtol=1e-12)


def test_the_reference_sees_transposes():
    product = product_of(lambda a, b: jax_moye.matmul(a.T, b, implementation="moye"), (32, 16), (32, 24))
    assert product.operands[0].permutation == (1, 0)
    operands = random_operands(product, CPU, 0).first
    a, b = (np.asarray(x).astype(np.float64) for x in operands)
    reference = reference_of(product, operands)
    np.testing.assert_allclose(reference.exact, a.T @ b, rtol=1e-12)
    assert reference.parts is None
    result = program_of(product, "xla", None)(*operands)
    assert reference.excess(result, of_baseline("bf16", 32, result.dtype, is_highest=False)) <= 1


def test_what_was_rewritten_is_timed_as_xla_had_it():
    """XLA's program rounds where the program did; ours, once. Operands of the epilogue keep the shapes they had."""

    def fun(x, w, b, r):
        return r + jax.nn.silu(x @ w + b)

    with jax_moye.options(implementation="moye"):
        product = product_of(jax_moye.optimize(fun), (16, 32), (32, 24), (24,), (16, 24))
    assert product.original is not None
    assert [name for name, _ in product.request.epilogue.operands] == ["bias", "residual"]
    operands = random_operands(product, CPU, 0).first
    by_xla = program_of(product, "xla", None)
    np.testing.assert_array_equal(jax.jit(by_xla)(*operands), jax.jit(fun)(*operands))
    ours = program_of(product, "moye", jax_moye.InterpretParams())(*operands)
    reference = reference_of(product, operands)
    x, w, b, r = (np.asarray(x).astype(np.float64) for x in operands)
    z = x @ w + b
    np.testing.assert_allclose(reference.exact, r + z / (1 + np.exp(-z)), rtol=1e-12)
    apart = np.abs(np.asarray(ours).astype(np.float64) - reference.exact)
    assert apart.max() < 2**-8 * np.abs(reference.exact).max()
    assert "logistic" in str(jax.make_jaxpr(by_xla)(*operands))
    kept = dataclasses.replace(product, request=dataclasses.replace(product.request, deterministic=True))
    assert "deterministic=True" not in str(jax.make_jaxpr(program_of(kept, "xla", None))(*operands))


def test_the_reference_of_integers_is_theirs():
    structs = [jax.ShapeDtypeStruct(shape, "int8") for shape in ((16, 32), (16, 32))]
    out = {"preferred_element_type": "int32", "implementation": "moye"}
    product = jax_moye.explain(*structs, spec="mk,nk->mn", **out, device=80)[0].product
    operands = random_operands(product, CPU, 0).first
    a, b = (np.asarray(x).astype(np.int64) for x in operands)
    reference = reference_of(product, operands)
    assert reference.exact.dtype == np.int32
    np.testing.assert_array_equal(reference.exact, a @ b.T)


@pytest.mark.parametrize("epilogue", [None, "bias+gelu", "residual"])
@pytest.mark.parametrize("layout", ["NN", "TN"])
def test_the_program_of_a_workload(layout, epilogue):
    workload = dataclasses.replace(WORKLOAD, layout=layout, epilogue=epilogue)
    operands = one_set(workload)
    d = jax.jit(workload_program(workload, implementation="xla"))(*operands)
    assert (d.shape, d.dtype) == ((workload.m, workload.n), jnp.bfloat16)
    if epilogue is None:
        np.testing.assert_allclose(np.asarray(d).astype(np.float64), exact(workload, operands), rtol=0.02, atol=0.2)


@pytest.mark.parametrize(("dtype", "result"), [("bf16", "bf16"), ("f64", "f64"), ("s8", "s32"), ("e4m3", "bf16")])
def test_the_product_of_a_workload(dtype, result):
    workload = dataclasses.replace(WORKLOAD, layout="NT", dtype=dtype)
    (gemm,) = explain_workload(workload, find_device("h200"), implementation="moye")
    assert (gemm.problem.dtype, gemm.problem.out_dtype, gemm.problem.order) == (dtype, result, "NT")
