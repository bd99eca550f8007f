"""Products with weights of 8 and 4 bits: what a kernel computes, which tile, how many parts of k, and what is left."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
import pytest
from python.quantized import FAKE, SHORT, fake_row, use_fake_rows

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable, configs, grouped_configs, weights_configs
from jax_moye._kernels.devices import find_device
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import capability
from jax_moye._selection import weights as module
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.problem import MAX_SIZE, NotServedError, make_problem
from jax_moye._selection.request import Operand, Request
from jax_moye._selection.weights import (
    AT_ONCE,
    LEAST_K,
    MOST_PARTS,
    MOST_ROWS,
    SPEC,
    WeightsProblem,
    choose,
    decide_weights,
    dequantized_product,
    is_for_kernels,
    make_weights_problem,
    usable_weights_configs,
    why_not_weights,
)

H200 = LoweringTarget.of_device(find_device("h200"))
A100 = LoweringTarget.of_device(find_device("a100"))
EMULATOR = LoweringTarget("cpu", None, None, configs())
M, K, N = 4, 4096, 4096


@pytest.fixture(autouse=True)
def _rows(monkeypatch):
    use_fake_rows(monkeypatch)


def request_of(**fields):
    defaults = dict(out_dtype=jnp.dtype("bfloat16"), precision=None, config=None, implementation=None, interpret=None)
    return Request(SPEC, **(defaults | fields))


def operands_of(m=M, k=K, n=N, x="bfloat16", w="int4"):
    return Operand((m, k), jnp.dtype(x)), Operand((k, n), jnp.dtype(w))


def decided(target=H200, groups=1, m=M, k=K, n=N, x="bfloat16", w="int4", **fields):
    request = request_of(**({"out_dtype": jnp.dtype(x)} | fields))
    return decide_weights(request, groups, operands_of(m, k, n, x, w), target)


def problem_of(**fields):
    return WeightsProblem(**(dict(m=M, n=N, k=K, groups=1, dtype="bf16xs4", out_dtype="bf16") | fields))


# --------------------------------------------------------------------------------------------------------------- table


def test_rows_are_no_candidates_for_other_products():
    assert not any(config.weights for config in (*jax_moye.configs(), *grouped_configs()))
    assert all(config.weights and config.kernel == "sm90_weights" for config in weights_configs())
    problem = make_problem("mk,kn->mn", (64, 64), (64, 64), "bf16", "bf16")
    row = dataclasses.replace(fake_row(), dtype="bf16")
    assert "jax_moye.quantized_matmul's, and nothing else" in capability.why_not(row, problem, 90)
    assert all(row.name not in {config.name for config in H200.configs} for row in FAKE)


def test_rows_are_in_no_digest_of_measurements():
    """Measurements of the other rows stay."""
    from jax_moye._selection.measurements import config_digest

    row = configs()[0]
    assert config_digest(row) == config_digest(dataclasses.replace(row, weights=True))


def test_configs_by_gpu():
    assert list(usable_weights_configs("cpu", None)) == list(usable_weights_configs("cuda", 90)) == list(FAKE)
    for arch in (None, 80, 89, 100, 120):
        assert list(usable_weights_configs("cuda", arch)) == []


# ------------------------------------------------------------------------------------------------------------- problem


@pytest.mark.parametrize("w", SHORT)
@pytest.mark.parametrize(("x", "short"), [("bfloat16", "bf16"), ("float16", "f16")])
def test_problem(x, short, w):
    for out, out_short in ((x, short), ("float32", "f32")):
        problem = make_weights_problem(request_of(out_dtype=jnp.dtype(out)), 32, operands_of(x=x, w=w))
        assert problem == WeightsProblem(M, N, K, 32, f"{short}x{SHORT[w]}", out_short)
    assert problem.sizes == (M, N, K)
    assert (problem.group, problem.strides, problem.is_empty) == (128, {}, False)


@pytest.mark.parametrize(
    ("operands", "out", "reason"),
    [
        (dict(x="float32"), "float32", "no kernel multiplies float32 by weights of int4"),
        (dict(w="int2"), "bfloat16", "no kernel multiplies bfloat16 by weights of int2"),
        (dict(w="float8_e5m2"), "bfloat16", "weights of float8_e5m2"),
        ({}, "float64", "as float64"),
        (dict(m="m"), "bfloat16", "are not all known"),
    ],
    ids=str,
)
def test_what_is_no_such_problem(operands, out, reason):
    with pytest.raises(NotServedError, match=reason):
        make_weights_problem(request_of(out_dtype=jnp.dtype(out)), 1, operands_of(**operands))


def test_the_product_by_dequantized_weights():
    request = request_of(config=FAKE[0].name, batch_invariant=True)
    plain, (x, w) = dequantized_product(request, 1, operands_of())
    assert (plain.out_dtype, plain.config, plain.batch_invariant) == (jnp.float32, None, True)
    assert (x.shape, x.dtype, w.shape, w.dtype) == ((M, K), jnp.bfloat16, (K, N), jnp.bfloat16)
    assert dequantized_product(request, 2, operands_of())[0].out_dtype == jnp.bfloat16


# ------------------------------------------------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("changes", "problem", "arch", "reason"),
    [
        ({}, {}, 90, None),
        ({}, {}, None, None),
        ({}, dict(out_dtype="f32"), 90, None),
        ({}, dict(groups=64), 90, None),
        ({}, dict(groups=32), 90, None),
        ({}, dict(m=1, n=32, k=8), 90, None),
        (dict(weights=False), {}, 90, "it computes no products with weights"),
        ({}, dict(dtype="bf16xs8"), 90, "its operands are bf16xs4, these are bf16xs8"),
        ({}, dict(out_dtype="f16"), 90, "it writes bf16, f32, and f16 is wanted"),
        ({}, {}, 80, "its code is sm_90's, and this is sm_80"),
        ({}, {}, 100, "its code is sm_90's, and this is sm_100"),
        ({}, dict(k=4100), 90, "rows of x have 4100 elements, and 8 do not divide them"),
        ({}, dict(n=4112), 90, "rows of w have 4112 weights, and 32 do not divide them"),
        ({}, dict(groups=128), 90, "groups have 32 rows of w, which are no multiple of 64"),
        ({}, dict(k=192, groups=2), 90, "groups have 96 rows of w"),
        ({}, dict(k=8, groups=1), 90, None),
        ({}, dict(m=MAX_SIZE - 16, n=32), 90, None),
        ({}, dict(m=MAX_SIZE - 15), 90, "a dimension is over 2^31 - 1 less one tile"),
        ({}, dict(n=2**31 - 32), 90, "a dimension is over 2^31 - 1 less one tile"),
        ({}, dict(k=2**31 - 8), 90, "a dimension is over 2^31 - 1 less one tile"),
        ({}, dict(m=64, n=256 * 65536), 90, "too many tiles"),
    ],
    ids=str,
)
def test_reasons(changes, problem, arch, reason):
    actual = why_not_weights(dataclasses.replace(fake_row(), **changes), problem_of(**problem), arch)
    assert actual is None if reason is None else reason in actual, actual


@pytest.mark.parametrize("w", ["s8", "e4m3"])
def test_rows_of_8_bits_are_of_16_weights(w):
    problem = problem_of(dtype=f"bf16x{w}", n=48)
    assert why_not_weights(fake_row(w=w), problem, 90) is None
    reason = why_not_weights(fake_row(w=w), dataclasses.replace(problem, n=40), 90)
    assert "rows of w have 40 weights, and 16 do not divide them" in reason


# ------------------------------------------------------------------------------------------------------- tile and parts


def able(w="s4"):
    return [row for row in FAKE if row.dtype == f"bf16x{w}"]


@pytest.mark.parametrize(
    ("rows", "tile"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 64), (1000, 64)]
)
def test_the_smallest_tile_that_holds_all_rows(rows, tile):
    assert choose(problem_of(m=rows), rows, able())[0].tile[0] == tile
    assert choose(problem_of(m=rows), rows, able()[:2])[0].tile[0] == min(tile, 32)


@pytest.mark.parametrize(
    ("n", "k", "rows", "parts"),
    [
        (4096, 4096, 1, 6),  # 16 tiles: 96 CTAs, 6 k-tiles each
        (256 * 15, 4096, 1, 8),
        (256 * 31, 4096, 1, 3),
        (256 * 56, 4096, 1, 2),
        (256 * 66, 4096, 1, 2),
        (256 * 132, 4096, 1, 1),
        (256, 64, 1, 1),
        (256, 128, 1, 1),
        (256, 200, 1, 1),  # two k-tiles, the last of 72: adding them up takes longer than one of them
        (256, 512, 1, 4),
        (256, 4096, 1, 8),
        (256, 8, 1, 1),
        (256 * 16, 4096, 128, 3),  # two rows of tiles: 6 parts of each are more CTAs than run at one time
    ],
)
def test_parts_of_k(n, k, rows, parts):
    assert choose(problem_of(m=rows, n=n, k=k), rows, able())[1] == parts


def test_parts_fill_the_gpu_and_are_long():
    sizes = (1, 8, 40, 64, 100, 1000, 4096, 5000, 28672, 131072)
    for rows, n, k in itertools.product((1, 16, 64, 128, 500), (32, 256, 1024, 4096, 28672, 131072), sizes):
        config, parts = choose(problem_of(m=rows, n=n, k=k), rows, able())
        tiles = math.ceil(rows / config.tile[0]) * math.ceil(n / config.tile[1])
        assert 1 <= parts <= MOST_PARTS
        k_tile = config.tile[2]
        assert parts == 1 or k_tile * (math.ceil(k / k_tile) // parts) >= LEAST_K

        # Not one CTA more than the least number for which the busiest multiprocessor multiplies so few k-tiles.
        in_turn = [math.ceil(tiles * p / AT_ONCE[p]) * math.ceil(k / k_tile / p) for p in range(1, parts + 1)]
        assert parts == 1 or in_turn[-1] < min(in_turn[:-1])


# Of 960 products with a given number of parts on an H200 (benchmarks/results): rows, bits, k, n and the parts that took
# the least time.
@pytest.mark.parametrize(
    ("rows", "w", "k", "n", "parts"),
    [
        (16, "s8", 4096, 14336, 1),
        (16, "s8", 8192, 8192, 2),
        (16, "s8", 4096, 4096, 3),
        (16, "s4", 4096, 14336, 2),
        (16, "s4", 14336, 4096, 6),
        (64, "s8", 14336, 4096, 3),
        (64, "s4", 4096, 4096, 6),
    ],
)
def test_parts_that_were_measured(rows, w, k, n, parts):
    assert choose(problem_of(m=rows, n=n, k=k, dtype=f"bf16x{w}"), rows, able(w))[1] == parts


# ------------------------------------------------------------------------------------------------------------ decision


@pytest.mark.parametrize("w", SHORT)
@pytest.mark.parametrize("x", ["bfloat16", "float16"])
def test_a_kernel(x, w):
    decision, call = decided(x=x, w=w, groups=32)
    assert (decision.kind, decision.reason, decision.cause, decision.source) == ("kernel", None, None, "model")
    assert call.config.dtype == f"{dict(bfloat16='bf16', float16='f16')[x]}x{SHORT[w]}"
    assert (call.config.tile[0], call.parts, call.problem.group) == (16, 6 if "4" in w and "8" not in w else 3, 128)
    assert call.why == f"the least tile for 4 rows, k in {call.parts} parts"


def test_a_config_that_was_named():
    row = fake_row(m=64)
    decision, call = decided(config=row.name)
    assert (decision.kind, decision.source, call.config) == ("kernel", "explicit", row)
    decision, call = decided(config=row.name, m=1000)
    assert (decision.kind, call.why) == ("kernel", "1000 rows in tiles of 64, k in 1 part")


def test_many_rows_are_for_dequantized_weights():
    assert decided(m=MOST_ROWS)[0].kind == "kernel"
    decision, call = decided(m=MOST_ROWS + 1)
    assert (decision.kind, decision.cause, call) == ("xla", "time", None)
    assert "x has 65 rows" in decision.reason
    assert decided(m=MOST_ROWS + 1, implementation="moye")[0].kind == "kernel"


def test_batch_invariance_knows_no_rows():
    calls = [decided(m=m, batch_invariant=True) for m in (1, 16, 17, 128, 129, 5000)]
    assert {decision.kind for decision, _ in calls} == {"kernel"}
    assert len({(call.config, call.parts) for _, call in calls}) == 1
    # What no kernel serves is a product by dequantized weights, which keeps the promises itself.
    decision, _ = decided(k=4100, batch_invariant=True, deterministic=True)
    assert decision.kind == "xla"
    assert decided(k=4100, batch_invariant=True, implementation="moye")[0].kind == "error"


@pytest.mark.parametrize(
    ("options", "kind", "cause", "reason"),
    [
        ({"implementation": "xla"}, "xla", "caller", "implementation='xla'"),
        ({"k": 4100}, "xla", "capability", "rows of x have 4100 elements"),
        ({"k": 4100, "implementation": "moye"}, "error", "capability", "rows of x have 4100 elements"),
        ({"groups": 128}, "xla", "capability", "groups have 32 rows of w"),
        ({"x": "float32"}, "xla", "capability", "no kernel multiplies float32"),
        ({"target": A100}, "xla", "capability", "no kernel for bf16xs4 products with weights was built for this GPU"),
        ({"target": A100, "implementation": "moye"}, "error", "capability", "built for this GPU"),
        ({"target": EMULATOR}, "xla", "place", "only with interpret=True"),
        ({"target": EMULATOR, "implementation": "moye"}, "error", "place", "only with interpret=True"),
        ({"interpret": InterpretParams()}, "error", "place", "this program is for cuda"),
        ({"config": fake_row(w="s8").name}, "error", "config", "its operands are bf16xs8, these are bf16xs4"),
        ({"config": fake_row().name, "k": 4100}, "error", "config", "rows of x have 4100 elements"),
        ({"config": fake_row().name, "target": A100}, "error", "config", "its code is sm_90's, and this is sm_80"),
        ({"config": fake_row().name, "x": "float32"}, "error", "config", "no kernel multiplies float32"),
        ({"config": configs()[0].name}, "error", "config", "it computes no products with weights"),
    ],
    ids=str,
)
def test_why_no_kernel(options, kind, cause, reason):
    decision, call = decided(**options)
    assert (decision.kind, decision.cause, call) == (kind, cause, None)
    assert reason in decision.reason


@pytest.mark.parametrize("empty", "mnk")
def test_nothing_to_compute(empty):
    for target in (H200, A100, EMULATOR):
        decision, call = decided(target=target, implementation="moye", **{empty: 0})
        assert (decision.kind, decision.reason, call) == ("nothing", "a size is 0", None)


def test_in_the_emulator():
    decision, call = decided(target=EMULATOR, interpret=InterpretParams())
    assert (decision.kind, call.config) == ("kernel", fake_row())


def test_where_the_kernels_are_not():
    away = dataclasses.replace(H200, unavailable="they were not built")
    elsewhere = dataclasses.replace(away, is_elsewhere=True)
    assert decided(target=elsewhere, implementation="moye")[0].kind == "kernel"
    for target, options in ((elsewhere, {}), (away, {"implementation": "moye"}), (away, {})):
        decision, _ = decided(target=target, **options)
        assert (decision.kind, decision.reason) == ("error" if options else "xla", "they were not built")


def test_configs_that_the_cuda_module_lacks(monkeypatch):
    names = frozenset(row.name for row in FAKE if row.tile[0] != 16)
    monkeypatch.setattr(ffi, "built", lambda platform: names)
    assert decided()[1].config.tile[0] == 32
    assert decided(target=EMULATOR, interpret=InterpretParams())[1].config.tile[0] == 16
    decision, _ = decided(config=fake_row().name)
    assert (decision.kind, decision.cause) == ("error", "config")
    assert "it is not in this build for CUDA" in decision.reason


def test_a_build_without_the_kernel(monkeypatch):
    monkeypatch.setattr(module, "weights_configs", lambda: ConfigTable([]))
    assert "no kernel for bf16xs4 products with weights" in decided()[0].reason
    assert "This build has no kernel" in module.served_weights()


def test_what_is_served_in_words():
    assert module.served_weights().startswith("Served are bf16xs8 or bf16xs4 or bf16xe4m3 or f16xs8")


def test_every_problem_has_an_answer():
    kinds = set()
    for m, n, k, groups in itertools.product(
        (0, 1, 128, 129, 2**31 - 1), (32, 40, 2**31 - 32), (8, 12, 4096), (1, 2, 64)
    ):
        for w in SHORT:
            decision, call = decided(m=m, n=n, k=k, groups=groups, w=w)
            assert (decision.reason is None) == (decision.kind == "kernel") == (call is not None)
            kinds.add(decision.kind)
            if call is not None:
                assert why_not_weights(call.config, call.problem, 90) is None
    assert kinds == {"kernel", "xla", "nothing"}


def test_parts_of_other_k_tiles():
    for tile_k, parts in ((32, 4), (64, 4), (128, 4), (256, 1)):
        row = dataclasses.replace(fake_row(), tile=(16, 256, tile_k))
        assert choose(problem_of(n=256, k=512), 4, [row]) == (row, parts)


# ------------------------------------------------------------------------------- weights that a program dequantizes


@pytest.mark.parametrize(
    ("fields", "m", "reason"),
    [
        ({}, M, "no GPU has timed"),
        ({"deterministic": True}, M, "no GPU has timed"),
        ({"batch_invariant": True}, M, "no GPU has timed"),
        ({"implementation": "xla"}, M, "implementation='xla'"),
        ({"implementation": "moye"}, MOST_ROWS, None),
        ({"implementation": "moye"}, MOST_ROWS + 1, f"x has {MOST_ROWS + 1} rows"),
        ({"implementation": "moye", "batch_invariant": True}, 1000, None),
    ],
)
def test_of_a_program_it_is_only_who_insists(fields, m, reason):
    """An error is never made of what a program computes itself."""
    request, operands = request_of(**fields), operands_of(m)
    assert is_for_kernels(request, 8, operands) is (reason is None)
    decision, call = decide_weights(request, 8, operands, H200, of_program=True)
    assert (decision.kind, call is None) == (("xla", True) if reason else ("kernel", False))
    assert reason is None or reason in decision.reason


def test_of_a_program_what_no_kernel_computes_is_its_own():
    insists = request_of(implementation="moye")
    for operands, groups in ((operands_of(n=8), 1), (operands_of(w="int16"), 1), (operands_of(), 128)):
        assert not is_for_kernels(insists, groups, operands)
        assert decide_weights(insists, groups, operands, H200, of_program=True)[0].kind == "xla"
    assert decide_weights(insists, 1, operands_of(), A100, of_program=True)[0].kind == "xla"
    assert decide_weights(insists, 1, operands_of(), A100)[0].kind == "error"
    emulated = request_of(interpret=InterpretParams())
    assert is_for_kernels(emulated, 1, operands_of())
    assert decide_weights(emulated, 1, operands_of(), EMULATOR, of_program=True)[0].kind == "kernel"
