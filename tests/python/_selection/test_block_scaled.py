"""Products of blocks that have scales: what a kernel computes of one, what is left, and what stands for it then."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from python.block_scales import FAKE

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable, block_scaled_configs, configs
from jax_moye._kernels.devices import find_device
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import block_scaled as module
from jax_moye._selection.block_scaled import (
    SPEC,
    BlockScales,
    decide_block_scaled,
    dequantized_product,
    is_exact,
    make_block_scaled_problem,
    usable_block_scaled_configs,
)
from jax_moye._selection.capability import LoweringTarget, why_not
from jax_moye._selection.problem import NotServedError, make_problem
from jax_moye._selection.request import Operand, Request

H200 = LoweringTarget.of_device(find_device("h200"))
A100 = LoweringTarget.of_device(find_device("a100"))
EMULATOR = LoweringTarget("cpu", None, None, configs())
E4M3, E5M2, E8M0 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"
BLOCKS, COLUMNS = (BlockScales(of_columns, "float32", "float32") for of_columns in (False, True))
B, M, N, K = 2, 300, 200, 512


@pytest.fixture(autouse=True)
def _rows(monkeypatch):
    monkeypatch.setattr(module, "block_scaled_configs", lambda: FAKE)
    monkeypatch.setattr(ffi, "built", lambda platform: None)


def request_of(**fields):
    defaults = dict(out_dtype=jnp.dtype("float32"), precision=None, config=None, implementation=None, interpret=None)
    return Request(SPEC, **(defaults | fields))


def operands_of(lhs=E4M3, rhs=E4M3, sizes=(B, M, N, K)):
    batch, m, n, k = sizes
    return Operand((batch, m, k), jnp.dtype(lhs)), Operand((batch, n, k), jnp.dtype(rhs))


def decided(target=H200, scales=COLUMNS, operands=None, **fields):
    return decide_block_scaled(request_of(**fields), scales, operands or operands_of(), target)


def test_rows_are_no_candidates_for_other_products():
    assert not any(config.block_scales for config in jax_moye.configs())
    assert all(config.accumulator == "f32_blocks" and config.scales for config in block_scaled_configs())
    for row in FAKE:
        problem = make_problem("mk,nk->mn", (64, 128), (64, 128), row.dtype, "f32")
        assert "jax_moye.scaled_matmul's, and nothing else" in why_not(row, problem, 90)
    ordinary = dataclasses.replace(FAKE[0], accumulator="f32", block_scales=False)
    assert why_not(ordinary, make_block_scaled_problem(request_of(), operands_of()), 90) == (
        "it sums in f32, and f32_blocks is asked for"
    )


def test_configs_by_gpu():
    assert list(usable_block_scaled_configs("cpu", None)) == list(usable_block_scaled_configs("cuda", 90)) == list(FAKE)
    for arch in (None, 80, 89, 100, 120):
        assert list(usable_block_scaled_configs("cuda", arch)) == []


@pytest.mark.parametrize(
    ("lhs", "rhs", "dtype"), [(E4M3, E4M3, "e4m3"), (E5M2, E5M2, "e5m2"), (E4M3, E5M2, "e4m3xe5m2")]
)
def test_problem(lhs, rhs, dtype):
    problem = make_block_scaled_problem(request_of(out_dtype=jnp.dtype("bfloat16")), operands_of(lhs, rhs))
    assert (problem.dtype, problem.out_dtype, problem.sums, problem.order) == (dtype, "bf16", "f32_blocks", "NT")
    assert (problem.sizes, problem.alignment, problem.scaled) == ((B, M, N, K), 16, True)


@pytest.mark.parametrize(
    ("operands", "out", "reason"),
    [
        (operands_of("bfloat16", "bfloat16"), "float32", "of bfloat16 by bfloat16 into float32"),
        (operands_of(E4M3, "bfloat16"), "float32", "of float8_e4m3fn by bfloat16"),
        (operands_of(), "float64", "into float64"),
        (operands_of(sizes=(B, "m", N, K)), "float32", "are not all known"),
    ],
    ids=["bf16", "mixed", "f64", "unknown size"],
)
def test_what_is_no_such_problem(operands, out, reason):
    with pytest.raises(NotServedError, match=reason):
        make_block_scaled_problem(request_of(out_dtype=jnp.dtype(out)), operands)


def test_scales_by_their_types():
    lhs, rhs = (jax.ShapeDtypeStruct((1, size, 2), jnp.float32) for size in (7, 130))
    blocks = jax.ShapeDtypeStruct((1, 2, 2), E8M0)
    assert BlockScales.of(lhs, rhs, 130) == COLUMNS
    assert BlockScales.of(lhs, blocks, 130) == BlockScales(False, "float32", E8M0)
    assert BlockScales.of(lhs, blocks, 130).variant == f"blocks float32 {E8M0}"


def test_what_stands_for_it():
    """In bfloat16 where that is exact, else in float32 at precision "highest"."""
    exact = BlockScales(True, E8M0, E8M0)
    for scales, dtype, precision in ((exact, "bfloat16", None), (COLUMNS, "float32", (lax.Precision.HIGHEST,) * 2)):
        request, operands = dequantized_product(request_of(config="some"), scales, operands_of(E4M3, E5M2))
        assert (request.precision, request.config) == (precision, None)
        assert [(x.dtype, x.shape) for x in operands] == [(dtype, (B, M, K)), (dtype, (B, N, K))]
    assert not is_exact(("bfloat16", E4M3), (E8M0, E8M0))
    assert not is_exact((E4M3, E4M3), (E8M0, "float32"))


@pytest.mark.parametrize(
    ("target", "fields", "cause", "reason"),
    [
        (H200, {}, "time", "nobody has timed"),
        (A100, {}, "capability", "was built for this GPU"),
        (H200, dict(implementation="xla"), "caller", "implementation='xla'"),
        (EMULATOR, {}, "place", "only with interpret=True"),
        (H200, dict(interpret=InterpretParams()), "place", "on the CPU"),
    ],
    ids=["H200", "A100", "xla", "cpu", "interpret"],
)
def test_what_is_left(target, fields, cause, reason):
    decision = decided(target, **fields)
    assert (decision.kind, decision.cause) == ("xla", cause)
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (H200, dict(implementation="moye")),
        (H200, dict(deterministic=True)),
        (H200, dict(batch_invariant=True)),
        (EMULATOR, dict(interpret=InterpretParams())),
    ],
    ids=["moye", "deterministic", "batch_invariant", "emulator"],
)
@pytest.mark.parametrize("scales", [BLOCKS, COLUMNS], ids=["blocks", "columns"])
def test_what_a_kernel_computes(target, fields, scales):
    decision = decided(target, scales, **fields)
    assert (decision.kind, decision.source) == ("kernel", "model")
    assert decision.call.config in FAKE
    assert decision.problem.sizes == (B, M, N, K)


def test_the_lower_tile_is_for_few_rows():
    few = decided(EMULATOR, operands=operands_of(sizes=(1, 16, 4096, 4096)), interpret=InterpretParams())
    many = decided(EMULATOR, operands=operands_of(sizes=(1, 4096, 4096, 4096)), interpret=InterpretParams())
    assert (few.call.config.tile[0], many.call.config.tile[0]) == (64, 128)


def test_nothing_to_compute():
    assert decided(operands=operands_of(sizes=(B, 0, N, K))).kind == "nothing"


def test_a_build_without_rows(monkeypatch):
    monkeypatch.setattr(module, "block_scaled_configs", lambda: ConfigTable([]))
    for fields in ({}, dict(implementation="moye")):
        decision = decided(**fields)
        assert (decision.kind, decision.cause) == ("xla", "capability")
        assert "was built for this GPU" in decision.reason
