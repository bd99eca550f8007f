"""Attention and its gradients in the emulator, with the race checker on: through the custom calls, in guarded memory.

What the latter compiles are rows of our own, with fewer stages than the table's.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import attention_configs
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.attention import rounded_to_tf32
from jax_moye._primitives.attention_call import run_attention, run_attention_grad
from tests.emulated.attention_cases import DIMS, KINDS, Case, check, of_f32, random_case
from tests.emulated.driver import build, run_cases

every_config = pytest.mark.parametrize("config", attention_configs(), ids=lambda config: config.name)
LAZY = InterpretParams()

PLAIN = Case(batch=1, kv_heads=2, group=1, q_rows=150, kv_rows=200, head_dim=64)
CASES = {
    "plain": PLAIN,
    "one row": dataclasses.replace(PLAIN, q_rows=1, kv_rows=1),
    "whole tiles": dataclasses.replace(PLAIN, q_rows=128, kv_rows=256),
    "many tiles of keys": dataclasses.replace(PLAIN, kv_heads=1, q_rows=10, kv_rows=700),
    "many tiles of queries": dataclasses.replace(PLAIN, kv_heads=1, q_rows=700, kv_rows=10),
    "groups": dataclasses.replace(PLAIN, batch=2, group=3, q_rows=70, kv_rows=130, dims=DIMS[1]),
    "causal": dataclasses.replace(PLAIN, q_rows=300, kv_rows=300, diagonal=0),
    "causal, more keys": dataclasses.replace(PLAIN, q_rows=70, kv_rows=300, diagonal=230, dims=DIMS[2]),
    "causal, rows that see nothing": dataclasses.replace(PLAIN, q_rows=300, kv_rows=130, diagonal=-150),
    "causal, nothing is seen": dataclasses.replace(PLAIN, diagonal=-150),
    "causal, all is seen": dataclasses.replace(PLAIN, diagonal=199),
    "causal groups": dataclasses.replace(PLAIN, group=2, diagonal=-3, dims=DIMS[3]),
    "head_dim of 80": dataclasses.replace(PLAIN, head_dim=80, diagonal=17),
    "head_dim of 128": dataclasses.replace(PLAIN, head_dim=128, diagonal=0, dims=DIMS[4], dims_o="bhqd"),
    "head_dim of 136": dataclasses.replace(PLAIN, head_dim=136, dims=DIMS[3]),
    "head_dim of 192": dataclasses.replace(PLAIN, head_dim=192, diagonal=0, group=2, dims=DIMS[2], dims_o="bhqd"),
    "head_dim of 256": dataclasses.replace(PLAIN, head_dim=256, diagonal=20, mask="bk", dims=DIMS[4]),
    "head_dim of 8": dataclasses.replace(PLAIN, head_dim=8),
    "peaked": dataclasses.replace(PLAIN, kind="peaked", diagonal=50),
    "positive": dataclasses.replace(PLAIN, kind="positive", kv_rows=300),
    "without keys": dataclasses.replace(PLAIN, kv_rows=0),
    "causal without keys": dataclasses.replace(PLAIN, kv_rows=0, diagonal=0),
    "without queries": dataclasses.replace(PLAIN, q_rows=0),
    "masked, one row": dataclasses.replace(PLAIN, q_rows=1, kv_rows=1, mask="qk"),
    "masked, many tiles of keys": dataclasses.replace(PLAIN, kv_heads=1, q_rows=10, kv_rows=700, mask="kq"),
    "masked, many tiles of queries": dataclasses.replace(PLAIN, kv_heads=1, q_rows=700, kv_rows=10, mask="hqk"),
    "masked, rows that see nothing": dataclasses.replace(
        PLAIN, q_rows=300, kv_rows=130, diagonal=-150, mask="bhqk", mask_is_infinite=True
    ),
    "masked by words": dataclasses.replace(PLAIN, kv_heads=1, q_rows=40, kv_rows=720, mask="qk"),
    "masked by words, a row whose only score is masked": dataclasses.replace(
        PLAIN, batch=6, kv_heads=1, q_rows=70, kv_rows=80, diagonal=0, mask="bk", mask_is_infinite=True
    ),
    "masked by words that end early": dataclasses.replace(PLAIN, batch=2, kv_rows=16, mask="bk"),
    "masked keys that a first row reads alone": dataclasses.replace(
        PLAIN, batch=6, kv_heads=1, q_rows=70, kv_rows=72, diagonal=0, mask="bk", mask_is_infinite=True
    ),
    "masked groups": dataclasses.replace(PLAIN, batch=2, group=3, q_rows=70, kv_rows=130, diagonal=20, mask="qbhk"),
    "masked without keys": dataclasses.replace(PLAIN, kv_rows=0, mask="bqk"),
    "masked without queries": dataclasses.replace(PLAIN, q_rows=0, mask="k"),
    "biased, rows of 49": dataclasses.replace(PLAIN, batch=2, q_rows=49, kv_rows=49, bias="hqk", ds_is_f32=True),
    "biased without keys": dataclasses.replace(PLAIN, kv_rows=0, bias="hqk", ds_is_f32=True),
    "biased, nothing is seen": dataclasses.replace(PLAIN, diagonal=-150, bias="hqk", ds_is_f32=True),
}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        pytest.param(config, name, id=f"{config.name}-{name}")
        for config in attention_configs()
        for name, case in CASES.items()
        if case.head_dim <= config.tile[2]
    ],
)
def test_cases(config, name):
    check(config, CASES[name], LAZY)


@every_config
@pytest.mark.parametrize("mask", ["bhqk", "kq", "bk", "h", "q", "hqbk", ""])
def test_masks(config, mask):
    """A row whose scores are all masked is the mean of values, or NaN, and only those have gradients of it.

    Of 208 columns the mask is read in words of 16, of 200 in bytes.
    """
    case = Case(batch=2, kv_heads=1, group=2, q_rows=70, kv_rows=200, head_dim=64, mask=mask)
    for diagonal in (None, 130, -20):  # with the last some rows have no column, which is 0 in any case
        for is_infinite in (False, True):
            kv_rows = 208 if mask.endswith("k") and is_infinite == (diagonal is None) else 200
            of_case = {"diagonal": diagonal, "mask_is_infinite": is_infinite, "kv_rows": kv_rows}
            check(config, dataclasses.replace(case, **of_case), LAZY)


BIASES = {
    "learned": dict(bias="hqk", bias_is_f32=False, ds_is_f32=True),
    "of pairs": dict(bias="bhqk", ds_is_f32=False, kv_rows=131),
    "of pairs, in another order": dict(bias="qkbh", ds_is_f32=True),
    "of keys": dict(bias="hk", diagonal=131, bias_is_f32=False, kv_rows=201),
    "of rows": dict(bias="q", ds_is_f32=True),
    "one": dict(bias="", bias_is_f32=False),
    "masked": dict(bias="hqk", mask="bqk", diagonal=130, ds_is_f32=True),
    "masked by -inf": dict(bias="bhqk", mask="bhqk", mask_is_infinite=True, diagonal=-20, ds_is_f32=False),
    "low": dict(bias="hqk", low=-2e9, ds_is_f32=True),
    "as low as can be": dict(bias="hqk", low=float(np.finfo(np.float32).min), mask="bk", ds_is_f32=True),
    "-inf": dict(bias="hqk", low=-np.inf, ds_is_f32=True, with_rest=True),
    "-inf in 16 bits": dict(bias="bqk", low=-np.inf, bias_is_f32=False, ds_is_f32=True, kv_rows=73),
}


@every_config
@pytest.mark.parametrize("name", BIASES)
def test_biases(config, name):
    """Rows of even and odd numbers of columns; a row all of whose scores are low is the mean, or NaN."""
    case = Case(batch=2, kv_heads=1, group=2, q_rows=70, kv_rows=200, head_dim=config.tile[2])
    of_case = {"ds_parts": 2 if config.dtype == "bf16" and config.kernel == "sm90_attention_grad" else 1}
    check(config, dataclasses.replace(case, **(of_case | BIASES[name])), LAZY)


CAPS = {
    "Gemma's": dict(diagonal=131, cap=50.0),
    "near": dict(cap=1.0, kind="peaked", mask="bqk", with_rest=True),
    "a window": dict(cap=2.0, diagonal=130, mask="qk", mask_is_infinite=True),
    "rows that see nothing": dict(cap=1.0, diagonal=-20, mask="hqbk"),
    "of one sign": dict(cap=20.0, kind="positive", diagonal=0),
}


@every_config
@pytest.mark.parametrize("name", CAPS)
def test_caps(config, name):
    """Scores that are far below the cap and such that are near to it."""
    case = Case(batch=2, kv_heads=1, group=2, q_rows=70, kv_rows=200, head_dim=config.tile[2])
    of_case = {"ds_parts": 2 if config.dtype == "bf16" and config.kernel == "sm90_attention_grad" else 1}
    check(config, dataclasses.replace(case, **(of_case | CAPS[name])), LAZY)


DROPOUTS = {
    "of pairs": dict(dropout="bhqk"),
    "the same for batch and heads": dict(dropout="qk", diagonal=0, q_rows=200, with_rest=True),
    "in another order": dict(dropout="kqhb", diagonal=131, kv_rows=201, kind="peaked"),
    "by words": dict(dropout="hqk", kv_rows=208, mask="bk", group=1),
    "of whole rows": dict(dropout="bq", kind="positive"),
    "of whole columns": dict(dropout="hk", diagonal=-20),
    "of all or nothing": dict(dropout="b"),
    "masked": dict(dropout="bhqk", mask="bhqk", diagonal=131),
    "masked, with gradients": dict(dropout="bhqk", mask="bhqk", diagonal=131, mask_has_gradients=True),
    "masked by -inf": dict(dropout="hqk", mask="bqk", mask_is_infinite=True, diagonal=131),
    "biased": dict(dropout="qk", bias="hqk", ds_is_f32=True, with_rest=True),
    "biased and masked": dict(dropout="bhqk", bias="hqk", mask="bqk", bias_is_f32=False, ds_is_f32=False),
    "biased and masked, with gradients": dict(
        dropout="qk", bias="bqk", mask="bqk", mask_has_gradients=True, ds_is_f32=True, kv_rows=131
    ),
}


@every_config
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout(config, name):
    """Sums of rows are of all weights; which are dropped is read in bytes, in words, along any dimensions."""
    case = Case(batch=2, kv_heads=1, group=2, q_rows=70, kv_rows=200, head_dim=config.tile[2])
    of_case = {"ds_parts": 2 if config.dtype == "bf16" and config.kernel == "sm90_attention_grad" else 1}
    check(config, dataclasses.replace(case, **(of_case | DROPOUTS[name])), LAZY)


@pytest.mark.parametrize(
    "config",
    [row for row in attention_configs() if row.kernel == "sm90_attention" and row.dtype == "bf16"],
    ids=lambda row: row.name,
)
def test_scores_of_minus_infinity(config):
    """A row without any other is NaN, as softmax has it."""
    q, k, v = (np.zeros((1, rows, 2, 64), "bfloat16") for rows in (70, 200, 200))
    q[0, 3], k[...], v[...] = -3e38, 3e38, 1
    dims = {"dims_q": "bqhd", "dims_k": "bkhd", "dims_v": "bkhd"}
    o, _ = jax.jit(functools.partial(run_attention, config=config, scale=1.0, diagonal=None, interpret=LAZY, **dims))(
        q, k, v
    )
    expected = np.where(np.arange(70) == 3, np.nan, 1)[None, :, None, None]
    np.testing.assert_array_equal(np.asarray(o, np.float32), np.broadcast_to(expected, o.shape))


@pytest.mark.parametrize(
    "config",
    [row for row in attention_configs() if row.kernel == "sm90_attention_grad" and row.dtype == "bf16"],
    ids=lambda row: row.name,
)
@pytest.mark.parametrize("mask", [None, "bqk"])
def test_two_parts_of_the_derivative_of_scores(config, mask):
    """They are as precise as its 16 first bits, with the weights the same sign and not."""
    for kind in KINDS:
        case = Case(
            batch=2, kv_heads=1, group=2, q_rows=70, kv_rows=200, head_dim=config.tile[2], ds_parts=2, kind=kind
        )
        check(config, dataclasses.replace(case, mask=mask, diagonal=130), LAZY)
        check(
            config,
            dataclasses.replace(case, mask=mask, q_rows=300, kv_rows=100),
            InterpretParams(mode="random", seed=1),
        )


@pytest.mark.parametrize(
    "config",
    [row for row in attention_configs() if row.kernel == "sm90_attention" and row.dtype != "tf32"],
    ids=lambda row: row.name,
)
def test_what_rounding_took(config):
    """The result and the rest are as precise as sums in float32: of level scores the weights are not rounded."""
    case = Case(batch=2, kv_heads=1, group=2, q_rows=140, kv_rows=270, head_dim=config.tile[2] - 8, with_rest=True)
    for kind in KINDS:
        check(config, dataclasses.replace(case, kind=kind, dims_o="bhqd"), LAZY)
    for seed, mask in enumerate((None, "bqk", "h")):
        of_case = dict(kind="level", diagonal=100 - 200 * seed, mask=mask)
        check(config, dataclasses.replace(case, **of_case), InterpretParams(mode="random", seed=seed))


@pytest.mark.parametrize(
    "config", [row for row in attention_configs() if row.dtype == "tf32"], ids=lambda row: row.name
)
def test_operands_of_float32_are_rounded(config):
    """A lone key has the weight 1: the result is its value, dv is d_o, and the score is that of rounded rows."""
    ffi.register("cpu")
    rng = np.random.default_rng(5)
    q, k, v, d_o = (rng.standard_normal((1, 1, 1, config.tile[2])).astype(np.float32) for _ in range(4))
    dims: dict[str, Any] = dict(dims_q="bqhd", dims_k="bkhd", dims_v="bkhd")
    options = dims | dict(config=config, scale=1.0, cap=None, diagonal=None, interpret=LAZY)
    score = np.sum(np.asarray(rounded_to_tf32(q), np.float64) * np.asarray(rounded_to_tf32(k), np.float64))
    if config.kernel == "sm90_attention":
        o, lse = jax.jit(lambda *arrays: run_attention(*arrays, dims_o=None, **options))(q, k, v)
        np.testing.assert_array_equal(o, rounded_to_tf32(v))
        np.testing.assert_allclose(lse.ravel(), score, rtol=0, atol=2.0**-18)  # cut off, they are 2^-10 away
    else:
        lse, delta = np.full((1, 1, 1), score, np.float32), np.zeros((1, 1, 1), np.float32)
        grad = jax.jit(lambda *arrays: run_attention_grad(*arrays, dims_o=None, ds_parts=1, **options))
        dq, dk, dv = grad(q, k, v, d_o, lse, delta)
        of_weight = np.float32(
            np.sum(np.asarray(rounded_to_tf32(d_o), np.float64) * np.asarray(rounded_to_tf32(v), np.float64))
        )
        ds = rounded_to_tf32(of_weight)
        assert abs(ds) > abs(of_weight)  # or to cut it off would be the same
        np.testing.assert_array_equal(dv, rounded_to_tf32(d_o))
        np.testing.assert_allclose(dq, ds * rounded_to_tf32(k), rtol=2.0**-20)
        np.testing.assert_allclose(dk, ds * rounded_to_tf32(q), rtol=2.0**-20)
        for cap in (None, 64.0):  # the weight is rounded, too
            options |= dict(cap=cap)
            capped = score if cap is None else cap * np.tanh(score / cap)
            lse = np.full((1, 1, 1), capped - np.log1p(0.75 * 2.0**-10), np.float32)
            weighed = jax.jit(functools.partial(run_attention_grad, dims_o=None, ds_parts=1, **options))
            _, _, dv = weighed(q, k, v, d_o, lse, delta)
            np.testing.assert_allclose(dv, (1 + 2.0**-10) * rounded_to_tf32(d_o), rtol=2.0**-20)


@every_config
@pytest.mark.parametrize("mode", ["eager", "random"])
def test_schedules(config, mode):
    """When copies take effect, and which thread runs first, changes nothing."""
    of_case = dict(head_dim=config.tile[2], diagonal=100, with_rest=True)
    case = Case(batch=2, kv_heads=1, group=2, q_rows=140, kv_rows=270, **of_case)
    for seed in range(1 if mode == "eager" else 3):
        check(config, case, InterpretParams(mode=mode, seed=seed))


@every_config
def test_random_cases(config):
    rng = np.random.default_rng(sum(map(ord, config.name)))
    for seed in range(8):
        check(config, random_case(rng, config.tile[2]), InterpretParams(mode="random", seed=seed))


def test_what_random_cases_are():
    """They have what they are to find."""
    rng = np.random.default_rng(0)
    cases = [random_case(rng, 128) for _ in range(300)]
    assert {case.kind for case in cases} == set(KINDS)
    assert {case.dims for case in cases} == set(DIMS)
    assert {case.group for case in cases} == {1, 2, 3}
    assert sum(case.head_dim % 64 > 0 for case in cases) > 50
    assert sum(case.q_rows % 128 > 0 for case in cases) > 50
    assert sum(case.diagonal is not None and case.diagonal < 0 for case in cases) > 30
    assert sum(case.diagonal is not None and 0 < case.diagonal < case.kv_rows for case in cases) > 30
    masked = [case for case in cases if case.mask is not None]
    assert 100 < len(masked) < 200
    for is_infinite in (False, True):
        assert {letter for case in masked if case.mask_is_infinite == is_infinite for letter in case.mask} == {*"bhqk"}
    assert len({case.mask for case in masked}) > 30
    assert sum(case.diagonal is not None for case in masked) > 50
    assert 100 < sum(case.with_rest for case in cases) < 200
    biased = [case for case in cases if case.bias is not None]
    assert 80 < len(biased) < 160
    assert {letter for case in biased for letter in case.bias} == {*"bhqk"}
    assert {(case.bias_is_f32, case.ds_is_f32) for case in biased} == {(x, y) for x in (0, 1) for y in (None, 0, 1)}
    assert sum(case.mask is not None for case in biased) > 20
    capped = [case for case in cases if case.cap is not None]
    assert 50 < len(capped) < 160
    assert {case.cap for case in capped} == {1, 20, 50}
    assert sum(case.mask is not None and case.diagonal is not None for case in capped) > 15
    assert all(case.bias is None for case in capped)
    dropped = [case for case in cases if case.dropout is not None]
    assert 60 < len(dropped) < 130
    assert {letter for case in dropped for letter in case.dropout} == {*"bhqk"}
    assert all(case.cap is None for case in dropped)
    assert sum(case.mask is not None and case.mask_has_gradients for case in dropped) > 8
    assert sum(case.bias is not None for case in dropped) > 15


# ---- in guarded memory, with gaps between rows that nobody may write

ROWS = (
    "{sm90_attention, bf16, f32, {64, 64, 64}, 2, {1, 1}, 16}",
    "{sm90_attention, f16, f32, {128, 128, 128}, 2, {1, 1}, 16}",
    "{sm90_attention, bf16, f32, {64, 64, 128}, 2, {1, 8}, 16}",
    "{sm90_attention, f16, f32, {128, 64, 256}, 2, {1, 1}, 16}",
    "{sm90_attention, bf16, f32, {64, 64, 256}, 2, {1, 4}, 16}",
    "{sm90_attention, tf32, f32, {64, 64, 64}, 3, {1, 1}, 16}",
    "{sm90_attention, tf32, f32, {128, 64, 128}, 2, {1, 1}, 16}",
    "{sm90_attention_grad, bf16, f32, {128, 64, 64}, 2, {1, 1}, 16}",
    "{sm90_attention_grad, f16, f32, {128, 64, 128}, 3, {1, 1}, 16}",
    "{sm90_attention_grad, bf16, f32, {64, 64, 256}, 2, {1, 1}, 16}",
    "{sm90_attention_grad, tf32, f32, {128, 64, 64}, 2, {1, 1}, 16}",
    "{sm90_attention_grad, tf32, f32, {64, 64, 128}, 2, {1, 1}, 16}",
)
PROBLEMS = 60  # of each row


def problem_of(rng: np.random.Generator, most_dim: int, is_of_gradients: bool, is_of_f32: bool) -> str:
    """The driver's arguments."""
    case = random_case(rng, most_dim, 400)
    case = of_f32(case) if is_of_f32 else case
    options = dict(
        batch=case.batch,
        heads=case.kv_heads,
        group=case.group,
        diagonal="none" if case.diagonal is None else case.diagonal,
        mask=case.mask or "none",
        infinite=int(case.mask_is_infinite),
        cap=case.cap or 0,
        bias="none" if not case.bias else case.bias,
        bias16=int(not case.bias_is_f32),
        dropout=case.dropout or "none",
        gradients=int(case.mask_has_gradients and bool(case.dropout)),
        ds=0 if not case.bias or case.ds_is_f32 is None or not is_of_gradients else 1 + (not case.ds_is_f32),
        pad=8 * rng.integers(0, 3),
        rest=0 if is_of_f32 else rng.integers(2),
        level=int(rng.random() < 0.3),
        sharp=rng.choice([1, 4]),
        data=rng.integers(1000),
        mode=rng.choice(["lazy", "eager", "random"]),
        threads=rng.choice(["fifo", "lifo", "random"]),
        multiprocessors=rng.integers(1, 6),
        workers=rng.choice([1, 1, 3]),
        seed=rng.integers(1000),
    )
    kv_rows = 0 if rng.random() < 0.05 else case.kv_rows
    return " ".join([f"{case.q_rows} {kv_rows} {case.head_dim}", *(f"{key}={value}" for key, value in options.items())])


@pytest.mark.parametrize("row", ROWS)
def test_random_problems(row, tmp_path):
    rng = np.random.default_rng(ROWS.index(row))
    most_dim = int(row[: row.index("}")].rpartition(" ")[2])
    lines = [problem_of(rng, most_dim, "_grad" in row, "tf32" in row) for _ in range(PROBLEMS)]
    reports = run_cases(build(tmp_path, row), lines)
    wrong = [f"{report}: {line}" for line, report in zip(lines, reports, strict=True) if report != "ok"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(lines)} problems", *wrong])
