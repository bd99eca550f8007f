"""Products of groups of float32 as TF32, and of 8-bit floats: which kernel, with which sums, transposes and scales."""

import dataclasses

import jax.numpy as jnp
import pytest
from jax import lax
from python._selection.grouped_products import EMULATOR, H200, HIGHEST, SIZES, decided, operands_of, request_of

from jax_moye._kernels import ffi
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.grouped import RAGGED_M, RAGGED_M_BY_K, decide_grouped, why_not_grouped

FAST = lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM


@pytest.fixture(autouse=True)
def _every_config_is_built(monkeypatch):
    """For a GPU too: a build's module for CUDA may have fewer configs than the emulator."""
    monkeypatch.setattr(ffi, "built", lambda platform: None)


def chosen(*, left="float8_e4m3fn", right=None, spec=RAGGED_M_BY_K, target=H200, m=4096, **fields):
    """The call of a product of these dtypes."""
    lhs, rhs = operands_of(spec, left, m=m)
    operands = lhs, dataclasses.replace(rhs, dtype=jnp.dtype(right or left))
    decision, call = decide_grouped(request_of(spec, **fields), SIZES["g"], operands, target)
    assert decision.kind == "kernel", decision.reason
    return call


def test_float32_is_tf32_where_jax_computes_in_tf32():
    """On a GPU by default; in the emulator where a preset says so, or a config is named."""
    f32, preset = dict(left="float32", out_dtype=jnp.dtype("float32")), lax.DotAlgorithmPreset.TF32_TF32_F32
    call = chosen(**f32)
    assert (call.problem.dtype, call.problem.out_dtype, call.config.dtype) == ("tf32", "f32", "tf32")
    interpret = dict(target=EMULATOR, interpret=InterpretParams())
    assert chosen(**f32, **interpret, precision=preset).config.dtype == "tf32"
    assert chosen(**f32, **interpret, config=call.config.name).config is call.config
    decision, _ = decided(RAGGED_M_BY_K, **interpret, dtype="float32", implementation=None)
    assert (decision.kind, decision.cause) == ("xla", "capability")
    assert "float32 but in TF32, which is less than was asked for" in decision.reason
    named, _ = decided(RAGGED_M_BY_K, dtype="float32", config=call.config.name, precision=HIGHEST)
    assert (named.kind, named.cause) == ("error", "config")
    assert "multiplies in TF32, and precision" in named.reason


@pytest.mark.parametrize(("dtype", "out"), [("float32", "float32"), ("float8_e4m3fn", "bfloat16")])
def test_tiles_are_as_large_as_groups(dtype, out):
    few, many = (chosen(left=dtype, out_dtype=jnp.dtype(out), m=m).config.tile for m in (8 * 64, 8 * 65))
    assert few[0] * few[1] < many[0] * many[1]


@pytest.mark.parametrize("right", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("left", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats_and_two_of_them(left, right):
    names = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
    dtype = names[left] if left == right else f"{names[left]}x{names[right]}"
    call = chosen(left=left, right=right)
    assert (call.problem.dtype, call.config.dtype) == (dtype, dtype)
    assert (call.problem.accumulator, call.config.accumulator, call.problem.out_dtype) == ("f32", "f32", "bf16")
    # A result of 8 bits is converted from f32.
    assert chosen(left=left, right=right, out_dtype=jnp.dtype(left)).problem.out_dtype == "f32"


def test_sums_that_stay_in_the_tensor_core_are_asked_for():
    fast = chosen(precision=FAST)
    assert (fast.problem.accumulator, fast.config.accumulator) == ("f32_fast", "f32_fast")
    assert chosen(left="float8_e5m2", precision=FAST).config.accumulator == "f32"  # there is no other
    assert chosen(config=fast.config.name).config is fast.config
    named, _ = decided(RAGGED_M_BY_K, dtype="float8_e4m3fn", config=fast.config.name, precision=HIGHEST)
    assert named.cause == "config"
    assert why_not_grouped(fast.config, chosen().problem, request_of(), 90) == (
        "it sums in f32_fast, and f32 is wanted"
    )


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
def test_matrices_whose_n_is_last_are_transposed_first(dtype):
    for spec, permutation, copies in (
        (RAGGED_M, None, True),
        (RAGGED_M, (0, 2, 1), False),  # as (g, n, k) in memory
        (RAGGED_M_BY_K, None, False),
        (RAGGED_M_BY_K, (0, 2, 1), False),  # what the program transposes itself
    ):
        decision, call = decided(spec, dtype=dtype, permutation=permutation, out_dtype=jnp.dtype("bfloat16"))
        assert decision.kind == "kernel"
        assert (call.problem.order, call.writes_transpose) == ("NT", copies)
        assert ("rhs is transposed in front of it" in call.why) == copies
    assert not decided()[1].writes_transpose
    problem = dataclasses.replace(call.problem, order="NN")
    assert why_not_grouped(call.config, problem, request_of(), 90) == "its operands' order is NT, and theirs is NN"


def test_scales_are_those_of_8_bit_floats():
    scales = Epilogue(operands=(("lhs_scale", "m"), ("rhs_scale", "gn")))
    assert chosen(epilogue=scales).config.scales
    decision, _ = decided(RAGGED_M_BY_K, dtype="bfloat16", epilogue=scales, out_dtype=jnp.dtype("bfloat16"))
    assert decision.kind == "error"
    assert "it multiplies by no scales" in decision.reason
    for out in ("bfloat16", "float16", "float32"):
        decision, _ = decided(RAGGED_M_BY_K, dtype="float8_e4m3fn", epilogue=scales, out_dtype=jnp.dtype(out))
        assert decision.kind == "kernel"
