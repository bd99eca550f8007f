"""Products of groups: what a kernel sees of one, which kernels can compute it, and which one does."""

import dataclasses
import pathlib
import re

import jax.numpy as jnp
import pytest
from jax import lax
from python._selection.grouped_products import (
    A100,
    CONFIGS,
    EMULATOR,
    H200,
    HIGHEST,
    SIZES,
    config_of,
    decided,
    operands_of,
    problem_of,
    problem_of_config,
    request_of,
)

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import configs, find_config
from jax_moye._kernels.dtypes import FLOAT8, ITEM_BYTES
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import grouped as module
from jax_moye._selection.capability import LoweringTarget, usable_configs, why_not
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.grouped import (
    MAX_GROUPS,
    MOST_FUSED_ELEMENTS,
    RAGGED_K,
    RAGGED_M,
    RAGGED_M_BY_K,
    SPECS,
    GroupedProblem,
    decide_grouped,
    make_grouped_problem,
    usable_grouped_configs,
    why_not_grouped,
)
from jax_moye._selection.problem import MAX_SIZE, GemmProblem, NotServedError

HEADER = pathlib.Path(__file__).parents[3] / "cuda" / "gemm" / "config.h"
F64 = {"dtype": "float64"}


@pytest.fixture(autouse=True)
def _every_config_is_built(monkeypatch):
    """For a GPU too: a build's module for CUDA may have fewer configs than the emulator."""
    monkeypatch.setattr(ffi, "built", lambda platform: None)


# --------------------------------------------------------------------------------------------------------------- table


def test_configs_of_groups_are_a_table_of_their_own():
    assert CONFIGS
    assert not any(config.grouped for config in jax_moye.configs())
    assert all(config.grouped for config in CONFIGS)
    assert {config.name for config in CONFIGS}.isdisjoint(config.name for config in jax_moye.configs())
    for config in CONFIGS:
        assert find_config(config.name) is find_config(config) is config
    with pytest.raises(ValueError, match=f"close names are .*{CONFIGS[0].name}"):
        find_config(CONFIGS[0].name + "x")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_what_configs_say_of_themselves(config):
    of_float8, is_fast = config.dtype in FLOAT8, config.accumulator == "f32_fast"
    assert (config.kernel, config.cluster) == ("sm90_grouped", (1, 1))
    assert config.accumulator == "f32" or (is_fast and of_float8)
    assert (config.min_arch, config.max_arch) == (90, 90)
    assert config.dtype in ("bf16", "f16", "tf32") or of_float8
    assert set(config.out_dtypes) == {"bf16", "f16", "f32"}
    # Tensor cores read what is not of 16 bits along k.
    assert set(config.orders) == ({"NN", "NT", "TN"} if ITEM_BYTES[config.dtype] == 2 else {"NT"})
    assert config.scales == of_float8
    assert not config.any_stride
    assert config.alignment == 16
    tile_m, tile_n, tile_k = config.tile
    # A consumer has a tile of its own; 64 rows are one instruction's.
    assert config.consumer_tile == (tile_m, tile_n)
    assert config.consumers >= 1
    assert config.threads == 128 * (1 + config.consumers)
    assert (tile_m % 64, tile_n % 8, tile_k * ITEM_BYTES[config.dtype]) == (0, 0, 128)
    assert config.stages * (tile_m + tile_n) * 128 < config.smem_bytes <= 227 * 1024
    sums = "_f32_fast" * is_fast
    assert config.name == f"sm90_grouped_{config.dtype}{sums}_{tile_m}x{tile_n}x{tile_k}_s{config.stages}_a16"


def test_ordinary_products_do_not_take_them():
    problem = GemmProblem(1, 64, 64, 64, (0, 64, 1), (0, 1, 64), (0, 64, 1), "bf16", "bf16", False)
    for config in CONFIGS:
        assert "products of groups" in why_not(config, problem, 90)
        for arch in (None, 90):
            assert config not in usable_configs("cuda", arch)
        with pytest.raises(ValueError, match=f"config '{config.name}' cannot compute .* products of groups"):
            jax_moye.matmul(*[jnp.ones((64, 64), jnp.bfloat16)] * 2, config=config.name, interpret=True)
        with pytest.raises(ValueError, match="products of groups"):
            jax_moye.matmul(*[jnp.ones((64, 64), jnp.bfloat16)] * 2, config=config)


def test_as_many_groups_as_the_kernel_has_room_for():
    (groups,) = re.findall(r"constexpr int kMaxGroups = (\d+);", HEADER.read_text())
    assert int(groups) == MAX_GROUPS


# ------------------------------------------------------------------------------------------------------------- problem


@pytest.mark.parametrize(
    ("spec", "permutation", "ragged", "order"),
    [
        (RAGGED_M, None, "m", "NN"),
        (RAGGED_M, (0, 1, 2), "m", "NN"),
        (RAGGED_M, (0, 2, 1), "m", "NT"),
        (RAGGED_M_BY_K, None, "m", "NT"),
        (RAGGED_M_BY_K, (0, 2, 1), "m", "NN"),
        (RAGGED_K, None, "k", "TN"),
        (RAGGED_K, (0, 1), "k", "TN"),
    ],
)
def test_problem_and_strides(spec, permutation, ragged, order):
    problem = make_grouped_problem(request_of(spec), 8, operands_of(spec, rhs_permutation=permutation))
    m, n, k = (SIZES[label] for label in "mnk")
    assert problem == GroupedProblem(ragged, order, 8, m, n, k, "bf16", "bf16")
    assert problem.sizes == (8, m, n, k)
    assert problem.strides == {
        "a": (0, 1, m) if ragged == "k" else (0, k, 1),
        "b": {"NN": (n * k, 1, n), "NT": (n * k, k, 1), "TN": (0, 1, n)}[order],
        "d": (m * n, n, 1) if ragged == "k" else (0, n, 1),
    }
    assert problem.of_a_group == (m if ragged == "m" else k) / 8
    assert not problem.is_empty
    # What each element of an operand is, in memory.
    sizes = {"a": (8, m, k), "b": (8, n, k), "d": (8, m, n)}
    elements = {"a": m * k, "b": n * k * (8 if ragged == "m" else 1), "d": m * n * (8 if ragged == "k" else 1)}
    for name, strides in problem.strides.items():
        assert 1 + sum((s - 1) * t for s, t in zip(sizes[name], strides, strict=True)) == elements[name]


@pytest.mark.parametrize("empty", ["groups", "m", "n", "k"])
def test_empty_problems(empty):
    problem = problem_of(**{empty: 0})
    assert problem.is_empty
    assert problem.of_a_group >= 0


@pytest.mark.parametrize(
    ("request_fields", "operand_fields", "groups", "reason"),
    [
        ({}, dict(m=jnp.inf), 8, "are not all known"),
        (dict(spec=RAGGED_K), dict(dtype="float32"), 8, "tensor cores read tf32 along k, where groups begin anywhere"),
        (dict(precision=HIGHEST), dict(dtype="float32"), 8, "of float32 but in TF32, which is less than was asked for"),
        (dict(precision=HIGHEST), dict(dtype="float8_e5m2"), 8, "e5m2 in fewer bits than f32 has"),
        ({}, dict(dtype="float8_e4m3"), 8, "no kernel multiplies float8_e4m3 by float8_e4m3"),
        (dict(out_dtype=jnp.dtype("int32")), dict(dtype="int8"), 8, "no kernel computes products of groups of int8"),
        ({}, dict(dtype="int16"), 8, "no kernel multiplies int16 by int16"),
        (dict(out_dtype=jnp.dtype("float64")), {}, 8, "no kernel computes products of groups of bfloat16"),
        (dict(out_dtype=jnp.dtype("int32")), {}, 8, "into int32"),
        (dict(out_dtype=jnp.dtype("float8_e5m2")), {}, 8, "no kernel writes a product of groups as float8_e5m2"),
        (dict(precision=lax.DotAlgorithmPreset.F32_F32_F32), {}, 8, "F32_F32_F32.* on bf16 operands"),
        (dict(precision=lax.DotAlgorithm(jnp.float32, jnp.float32, jnp.float32)), {}, 8, "lax.DotAlgorithm is XLA's"),
        ({}, dict(rhs_permutation=(1, 0, 2)), 8, "the matrices of the groups lie in memory as kgn"),
        ({}, dict(rhs_permutation=(2, 1, 0)), 8, "as nkg, and not one by one"),
        ({}, dict(rhs_permutation=(1, 2, 0)), 8, "as ngk"),
        (dict(spec=RAGGED_K), dict(rhs_permutation=(1, 0)), 8, "side by side in memory belong to several groups"),
        ({}, {}, 513, "there are 513 groups, and our kernels take 512 at most"),
    ],
    ids=str,
)
def test_what_is_no_such_problem(request_fields, operand_fields, groups, reason):
    request = request_of(**request_fields)
    with pytest.raises(NotServedError, match=reason):
        make_grouped_problem(request, groups, operands_of(request.spec, **operand_fields))


def test_operands_of_two_dtypes():
    left, right = operands_of()
    for other in ("float16", "float32"):
        right = dataclasses.replace(right, dtype=jnp.dtype(other))
        with pytest.raises(NotServedError, match=f"operands of different dtypes, bfloat16 and {other}"):
            make_grouped_problem(request_of(), 8, (left, right))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
def test_dtypes(dtype, out_dtype):
    request = request_of(out_dtype=jnp.dtype(out_dtype))
    problem = make_grouped_problem(request, 8, operands_of(dtype=dtype))
    short = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    assert (problem.dtype, problem.out_dtype) == (short[dtype], short[out_dtype])
    for precision in ((lax.Precision.HIGHEST,) * 2, lax.DotAlgorithmPreset.DEFAULT):
        assert make_grouped_problem(dataclasses.replace(request, precision=precision), 8, operands_of(dtype=dtype))


# ------------------------------------------------------------------------------------------------------------- reasons

RELU = Epilogue("relu")


@pytest.mark.parametrize(
    ("changes", "problem", "arch", "reason"),
    [
        ({}, {}, 90, None),
        ({}, {}, None, None),
        ({}, dict(order="NT"), 90, None),
        ({}, dict(ragged="k", order="TN"), 90, None),
        (dict(grouped=False), {}, 90, "it computes no products of groups"),
        ({}, dict(dtype="f16"), 90, "its operands are bf16, these are f16"),
        (dict(out_dtypes=("bf16", "f16")), dict(out_dtype="f32"), 90, "it writes bf16, f16, and f32 is wanted"),
        ({}, {}, 80, "its code is sm_90's, and this is sm_80"),
        ({}, {}, 100, "its code is sm_90's, and this is sm_100"),
        ({}, dict(k=36), 90, "rows of lhs are 72 bytes, and 16 do not divide them"),
        ({}, dict(k=36, ragged="k", order="TN"), 90, None),  # its k are rows
        ({}, dict(m=97), 90, None),  # m are rows here, and columns where k is ragged
        ({}, dict(m=97, ragged="k", order="TN"), 90, "rows of lhs are 194 bytes"),
        ({}, dict(n=68, out_dtype="f32"), 90, "rows of rhs are 136 bytes"),
        ({}, dict(n=68, order="NT"), 90, "rows of the result are 136 bytes"),
        ({}, dict(n=68, order="NT", out_dtype="f32"), 90, None),
        ({}, dict(n=66, order="NT", out_dtype="f32"), 90, "rows of the result are 264 bytes"),
        ({}, dict(n=68, ragged="k", order="TN", out_dtype="f32"), 90, "rows of rhs are 136 bytes"),
        ({}, dict(m=MAX_SIZE - 128), 90, None),
        ({}, dict(m=MAX_SIZE - 127), 90, "a dimension is over 2^31 - 1 less one tile"),
        ({}, dict(n=(MAX_SIZE - 128) // 8 * 8, m=1, groups=0), 90, None),
        ({}, dict(n=2**31 - 8), 90, "a dimension is over 2^31 - 1 less one tile"),
        ({}, dict(k=2**31 - 8), 90, "a dimension is over 2^31 - 1 less one tile"),
        ({}, dict(m=2**30, n=2**16), 90, "the result may have more than 2^31 - 1 tiles"),
        ({}, dict(m=2**20, n=2**20, groups=512, ragged="k", order="TN"), 90, "more than 2^31 - 1 tiles"),
    ],
    ids=str,
)
def test_reasons(changes, problem, arch, reason):
    config = dataclasses.replace(config_of(), **changes)
    problem = problem_of(**problem)
    actual = why_not_grouped(config, problem, request_of(), arch)
    assert actual is None if reason is None else reason in actual, actual


def test_epilogues_need_room():
    problem = problem_of()
    large = dataclasses.replace(config_of(), consumer_tile=(128, 192))
    for epilogue, is_taken in ((None, True), (Epilogue(), True), (RELU, False)):
        reason = why_not_grouped(large, problem, request_of(epilogue=epilogue), 90)
        assert (reason is None) == is_taken
        assert is_taken or "no registers for an epilogue" in reason
        assert why_not_grouped(config_of(), problem, request_of(epilogue=epilogue), 90) is None


GATED = Epilogue("silu", operands=(("second_b", "gkn"),))


def test_two_matrices_of_a_group_need_halves_of_a_tile():
    request = request_of(epilogue=GATED)
    for config in CONFIGS:
        reason = why_not_grouped(config, problem_of_config(config), request, 90)
        assert reason == (None if config.takes_pair else "it takes one matrix of a group, and these are two"), config
        assert config.takes_pair == (config.tile[1] == 128 and config.dtype in ("bf16", "f16"))
    wide = why_not_grouped(config_of(), problem_of(out_dtype="f32"), request, 90)
    assert wide == "what it makes of two matrices has 16 bits, and f32 is wanted"
    # A tile has half as many columns: twice as many of them.
    many = problem_of(m=2**31 - 1 - 128, n=64 * 128, groups=1)
    assert why_not_grouped(config_of(), many, request_of(), 90) is None
    assert why_not_grouped(config_of(), many, request, 90) == "the result may have more than 2^31 - 1 tiles"


def test_a_gate_that_optimize_found_is_one_kernel_where_groups_have_few_rows():
    """The caller's own is whatever they have."""
    found = {}
    for insists in (None, "moye"):
        request = request_of(epilogue=GATED, implementation=insists)
        of_program = dataclasses.replace(request, alone=dataclasses.replace(request, epilogue=None))
        for rows in (256, 257):
            operands = operands_of(m=rows * SIZES["g"])
            of_call, by_call = decide_grouped(request, SIZES["g"], operands, H200)
            decision, call = decide_grouped(of_program, SIZES["g"], operands, H200)
            assert of_call.kind == "kernel"
            assert by_call.config.takes_pair
            found[insists, rows] = decision.kind, decision.cause
            assert (call is not None) == (decision.kind == "kernel")
    kernel = "kernel", None
    assert found == {(None, 256): kernel, (None, 257): ("xla", "time"), ("moye", 256): kernel, ("moye", 257): kernel}
    assert decision.reason is None


def test_tiles_are_counted_with_those_that_groups_begin_anew():
    """Each group may end inside of a tile of rows: one more for each of them."""
    config = config_of()
    n = 128 * (2**31 // 1000)
    assert why_not_grouped(config, problem_of(m=128 * 900, groups=50, n=n), request_of(), 90) is None
    assert "tiles" in why_not_grouped(config, problem_of(m=128 * 900, groups=150, n=n), request_of(), 90)


# ------------------------------------------------------------------------------------------------------------ decision


@pytest.mark.parametrize("spec", SPECS)
def test_a_kernel(spec):
    decision, call = decided(spec)
    assert (decision.kind, decision.reason, decision.cause, decision.source) == ("kernel", None, None, "model")
    assert call.problem == make_grouped_problem(request_of(spec), 8, operands_of(spec))
    assert call.operands == operands_of(spec)
    assert why_not_grouped(call.config, call.problem, request_of(spec), 90) is None
    named, same = decided(spec, config=call.config.name, implementation=None)
    assert (named.kind, named.source, same) == ("kernel", "explicit", call)


def area(config):
    return config.tile[0] * config.tile[1]


def built(dtype):
    found = [config for config in CONFIGS if config.dtype == dtype]
    return found or pytest.skip(f"no config of {dtype} in this build")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_few_rows_get_small_tiles_and_many_the_largest(dtype):
    able = built({"bfloat16": "bf16", "float16": "f16"}[dtype])
    for spec in (RAGGED_M, RAGGED_M_BY_K):
        for m, groups, expected in ((64, 1, min), (512, 8, min), (513, 8, max), (65, 1, max), (2**20, 8, max)):
            _, call = decided(spec, dtype=dtype, sizes=dict(m=m, g=groups))
            assert area(call.config) == area(expected(able, key=area)), (m, groups)
    if {config.tile[:2] for config in able} >= {(64, 128), (128, 192)}:
        assert decided(dtype=dtype, sizes=dict(m=64, g=8))[1].config.tile == (64, 128, 64)
        assert decided(dtype=dtype)[1].config.tile == (128, 192, 64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_few_k_get_a_tile_of_128_by_128(dtype):
    able = built({"bfloat16": "bf16", "float16": "f16"}[dtype])
    for k, groups, is_few in ((128, 1, True), (1024, 8, True), (1025, 8, False), (129, 1, False), (0x10000, 8, False)):
        _, call = decided(RAGGED_K, dtype=dtype, sizes=dict(k=k, g=groups))
        if not is_few:
            assert area(call.config) == max(map(area, able)), (k, groups)
        elif (128, 128) in {config.tile[:2] for config in able}:
            assert call.config.tile[:2] == (128, 128), (k, groups)


def test_an_epilogue_gets_a_tile_with_room():
    small = [config for config in built("bf16") if area(config) <= MOST_FUSED_ELEMENTS]
    _, call = decided(epilogue=RELU)
    assert area(call.config) == max(map(area, small))


@pytest.mark.parametrize(
    ("spec", "stored", "permutation", "order", "read"),
    [
        (RAGGED_M, {}, (0, 2, 1), "NT", (0, 2, 1)),
        (RAGGED_M_BY_K, {}, (0, 2, 1), "NN", (0, 2, 1)),
        (RAGGED_M, {}, (1, 0, 2), "NN", None),  # matrices that do not lie one by one are written anew
        (RAGGED_M, {}, (2, 1, 0), "NN", None),
        (RAGGED_K, {}, (1, 0), "TN", None),
        (RAGGED_M_BY_K, dict(n=1028), (0, 2, 1), "NT", None),  # rows of n in memory are no multiple of 16 bytes
    ],
)
def test_a_transpose_in_front_of_rhs(spec, stored, permutation, order, read):
    out = jnp.dtype("float32")
    decision, call = decided(spec, permutation=permutation, sizes=stored, out_dtype=out)
    assert decision.kind == "kernel"
    assert call.problem.order == order
    assert [x.permutation for x in call.operands] == [None, read]
    assert call.operands[1].seen_shape == operands_of(spec, **stored)[1].shape


def test_a_transpose_in_front_of_lhs_is_written():
    operands = operands_of(lhs_permutation=(1, 0))
    decision, call = decide_grouped(request_of(), 8, operands, H200)
    assert decision.kind == "kernel"
    assert [x.permutation for x in call.operands] == [None, None]
    assert call.operands[0].shape == (SIZES["m"], SIZES["k"])


@pytest.mark.parametrize(
    ("options", "kind", "cause", "reason"),
    [
        ({"implementation": "xla"}, "xla", "caller", "implementation='xla'"),
        (F64 | {"implementation": None}, "xla", "capability", "products of groups of float64"),
        (F64, "error", "capability", "products of groups of float64"),
        (F64 | {"implementation": None, "batch_invariant": True}, "error", "capability", "of float64"),
        (F64 | {"implementation": None, "deterministic": True}, "error", "capability", "of float64"),
        ({"target": A100, "implementation": None}, "xla", "capability", "built for this GPU"),
        ({"target": A100}, "error", "capability", "built for this GPU"),
        ({"groups": 513, "sizes": {"g": 513}, "implementation": None}, "xla", "capability", "513 groups"),
        ({"sizes": {"k": 20}, "implementation": None}, "xla", "capability", "rows of lhs are 40 bytes"),
        ({"target": EMULATOR, "implementation": None}, "xla", "place", "only with interpret=True"),
        ({"target": EMULATOR}, "error", "place", "only with interpret=True"),
        ({"interpret": InterpretParams()}, "error", "place", "this program is for cuda"),
        ({"target": LoweringTarget("tpu", None, None, configs())}, "error", "place", "the program is for tpu"),
    ],
    ids=str,
)
def test_why_no_kernel(monkeypatch, options, kind, cause, reason):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    decision, call = decided(**options)
    assert (decision.kind, decision.cause, call) == (kind, cause, None)
    assert reason in decision.reason


@pytest.mark.parametrize("empty", "gmnk")
@pytest.mark.parametrize("spec", SPECS)
def test_nothing_to_compute(spec, empty):
    for target in (H200, EMULATOR):
        decision, call = decided(spec, target=target, sizes={empty: 0}, implementation=None)
        assert (decision.kind, decision.reason) == ("nothing", "a size is 0")
        assert call.problem.is_empty


def test_in_the_emulator():
    decision, call = decided(target=EMULATOR, interpret=InterpretParams())
    assert decision.kind == "kernel"
    assert call.config in CONFIGS


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float16"}, "its operands are bf16, these are f16"),
        ({"target": A100}, "its code is sm_90's, and this is sm_80"),
        ({"sizes": {"k": 20}}, "rows of lhs are 40 bytes"),
        ({"spec": RAGGED_K, "sizes": {"m": 20}}, "rows of lhs are 40 bytes"),
    ],
    ids=str,
)
def test_a_config_that_was_named_and_cannot(options, reason):
    for implementation in (None, "moye"):
        decision, call = decided(**options, config=config_of().name, implementation=implementation)
        assert (decision.kind, decision.cause, call) == ("error", "config", None)
        assert f"config '{config_of().name}' cannot compute {options.get('spec', RAGGED_M)} on " in decision.reason
        assert decision.reason.endswith(reason) or f": {reason}" in decision.reason


def test_an_ordinary_config_that_was_named():
    name = jax_moye.configs()[0].name
    decision, _ = decided(config=name)
    assert (decision.kind, decision.cause) == ("error", "config")
    assert decision.reason.endswith("it computes no products of groups")


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"groups": 513, "sizes": {"g": 513}}], ids=str)
def test_a_named_config_where_no_config_could(options):
    decision, _ = decided(**options, config=config_of().name, implementation=None)
    assert (decision.kind, decision.cause) == ("error", "config")


def test_configs_that_the_cuda_module_lacks(monkeypatch):
    every = decided()[1].config
    monkeypatch.setattr(ffi, "built", lambda platform: frozenset({config.name for config in CONFIGS} - {every.name}))
    decision, call = decided(implementation=None)
    others = [config for config in built("bf16") if config is not every]
    assert decision.kind == ("kernel" if others else "xla")
    assert call is None or call.config in others
    assert every in usable_grouped_configs("cpu", None)
    assert every not in usable_grouped_configs("cuda", 90)
    named, _ = decided(config=every.name)
    assert (named.kind, named.cause) == ("error", "config")
    assert "it is not in this build for CUDA" in named.reason
    monkeypatch.setattr(ffi, "built", lambda platform: None)  # no module at all: for another machine
    assert decided()[1].config is every


def test_configs_by_gpu():
    assert list(usable_grouped_configs("cpu", None)) == list(CONFIGS)
    for arch in (None, 80, 89, 100, 120):
        assert list(usable_grouped_configs("cuda", arch)) == []


def test_where_the_kernels_are_not():
    """A program may be for another machine if the caller insists and no GPU is here; else XLA computes it."""
    away = dataclasses.replace(H200, unavailable="they were not built")
    elsewhere = dataclasses.replace(away, is_elsewhere=True)
    assert decided(target=elsewhere)[0].kind == "kernel"
    for target, options in ((elsewhere, {"implementation": None}), (away, {}), (away, {"implementation": None})):
        decision, _ = decided(target=target, **options)
        assert (decision.kind, decision.reason) == ("error" if not options else "xla", "they were not built")


def test_every_problem_has_an_answer():
    """Of sizes at the edges, each kind of decision, and never a config that cannot."""
    kinds = set()
    for spec in SPECS:
        for m in (0, 1, 7, 64, 4096, 2**31 - 129, 2**31 - 1):
            for n, k in ((8, 8), (12, 8), (8, 12), (4096, 64), (2**31 - 8, 8), (8, 2**31 - 8)):
                for groups in (0, 1, 3, 512, 513):
                    decision, call = decided(spec, sizes=dict(m=m, n=n, k=k, g=groups), implementation=None)
                    assert (decision.reason is None) == (decision.kind == "kernel")
                    kinds.add(decision.kind)
                    if call is not None:
                        assert why_not_grouped(call.config, call.problem, decision.request, 90) is None
                    if decision.kind == "xla":
                        assert decision.cause == "capability"
    assert kinds == {"kernel", "xla", "nothing"}


def test_the_module_names_its_specifications():
    assert SPECS == (RAGGED_M, RAGGED_M_BY_K, RAGGED_K)
    assert all(spec in module.__doc__ for spec in SPECS)
