"""What a correct result is: the reference is NumPy's, and what is over the bound by a little is found."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from python.workloads import WORKLOAD, as_numpy, exact, one_set

import jax_moye
from jax_moye._timing.correctness import Reference, Tolerance, of_baseline, of_config, of_workload, same_bits, unit

pytestmark = pytest.mark.usefixtures("x64")

EPILOGUES = {
    "bias": lambda z, x: z + x,
    "relu": lambda z: np.maximum(z, 0),
    "gelu": lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    "gelu_exact": lambda z: 0.5 * z * (1 + np.vectorize(math.erf)(z / np.sqrt(2))),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "residual": lambda z, x: z + x,
}


def changed(**fields):
    return dataclasses.replace(WORKLOAD, **fields)


def a_config(dtype: str):
    return next(config for config in jax_moye.configs() if config.dtype == dtype)


BF16 = of_config(a_config("bf16"), WORKLOAD.k)


@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
@pytest.mark.parametrize("epilogue", ["", "bias", "relu", "bias+gelu", "bias+silu", "residual", "bias+gelu+residual"])
def test_rounded_results_are_right(layout, epilogue):
    workload = changed(layout=layout, epilogue=epilogue or None)
    operands = one_set(workload)
    d, rest = exact(workload, operands), [as_numpy(x) for x in operands[2:]]
    for part in epilogue.split("+") if epilogue else []:
        d = EPILOGUES[part](d, rest.pop(0)) if part in ("bias", "residual") else EPILOGUES[part](d)
    reference = of_workload(workload, operands)
    rounded = d.astype(ml_dtypes.bfloat16)
    assert reference.excess(jnp.asarray(rounded), BF16) <= 1
    # 2^-7 of the largest element of the last row, which is always looked at: two roundings' worth.
    worst = d.copy()
    worst[-1, np.abs(d[-1]).argmax()] *= 1 + 2**-6
    assert reference.excess(jnp.asarray(worst.astype(ml_dtypes.bfloat16)), BF16) > 1
    wrong = np.asarray(rounded).copy()
    wrong[-1, 0] = np.nan
    assert reference.excess(jnp.asarray(wrong), BF16) == np.inf


def test_integers_are_exact():
    workload = changed(dtype="s8")
    operands = one_set(workload)
    reference, tolerance = of_workload(workload, operands), of_config(a_config("s8"), workload.k)
    d = exact(workload, operands).astype(np.int32)
    assert reference.excess(jnp.asarray(d), tolerance) == 0
    d[-1, 3] += 1
    assert reference.excess(jnp.asarray(d), tolerance) == np.inf


def test_of_8_bit_floats_the_config_says():
    by_accumulator = {
        config.accumulator: config
        for config in jax_moye.configs()
        if config.dtype == "e4m3" and config.kernel.startswith("sm90")
    }
    promoted = of_config(by_accumulator["f32"], 4096).sums
    assert 4 * 2**-13 <= promoted < 5 * 2**-13
    assert of_baseline("e4m3", 4096, jnp.bfloat16, is_highest=False).sums >= 128 * 2**-13
    if "f32_fast" in by_accumulator:
        assert of_config(by_accumulator["f32_fast"], 4096).sums >= 128 * 2**-13


def test_a_batch():
    workload = changed(batch=3)
    operands = one_set(workload)
    d = exact(workload, operands)
    reference = of_workload(workload, operands)
    assert reference.excess(jnp.asarray(d.astype(ml_dtypes.bfloat16)), BF16) <= 1
    d[1, -1, 5] += 1 + abs(d[1, -1, 5])
    assert reference.excess(jnp.asarray(d.astype(ml_dtypes.bfloat16)), BF16) > 1


def test_only_a_baseline_may_round_operands_to_tf32():
    workload = changed(dtype="f32", precision="DEFAULT")
    operands = one_set(workload)
    a, b = ((as_numpy(x).astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32) for x in operands)
    d = jnp.asarray((a.astype(np.float64) @ b).astype(np.float32))
    reference = of_workload(workload, operands)
    k = workload.k
    assert reference.excess(d, of_config(a_config("f32"), k)) > 1
    assert reference.excess(d, of_baseline("f32", k, d.dtype, is_highest=True)) > 1
    assert reference.excess(d, of_baseline("f32", k, d.dtype, is_highest=False)) <= 1
    tf32 = a_config("tf32")
    assert reference.excess(d, of_config(tf32, k)) <= 1
    assert reference.excess(d, of_config(tf32, k, split=True)) > 1  # three launches make up f32


def test_units():
    names = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24, "float64": 2**-53, "int32": 0.0}
    assert {name: unit(name) for name in names} == names


def test_sums_in_f16_are_looser():
    assert of_baseline("f16", 64, jnp.float16, is_highest=False, sums="f16").sums == 64 * 2**-10
    assert of_baseline("f16", 64, jnp.float16, is_highest=False).sums < 2**-18


def test_what_overflows_the_result_has_no_error():
    reference = Reference(jnp.array([1e6, 1.0]), jnp.array([1e6, 1.0]))
    assert reference.excess(jnp.array([np.inf, 1.0], jnp.float16), Tolerance(0.0)) == 0
    assert reference.excess(jnp.array([np.inf, np.inf], jnp.float16), Tolerance(0.0)) == np.inf
    # 8-bit floats of this kind have no infinity.
    assert reference.excess(jnp.array([np.nan, 1.0], jnp.float8_e4m3fn), Tolerance(0.0)) == 0


@pytest.mark.parametrize("wrong", [np.nan, -np.inf, 3.0])
def test_what_overflows_is_not_anything(wrong):
    reference = Reference(jnp.array([1e6, 1.0]), jnp.array([1e6, 1.0]))
    assert reference.excess(jnp.array([wrong, 1.0], jnp.float16), Tolerance(0.0)) > 1


def test_bits():
    x = jnp.array([0.0, 1.0], jnp.bfloat16)
    assert same_bits(x, x + 0)
    assert not same_bits(x, -x)
