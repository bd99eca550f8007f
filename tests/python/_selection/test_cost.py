"""The models of a kernel's time and of XLA's: how far they are from what was measured, and who computes then."""

import dataclasses
import functools
import json
import logging
import math
import os
import pathlib
import re
import statistics

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from python.support import TARGET, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.devices import DEVICES
from jax_moye._selection import cost, cost_xla, decide, measurements
from jax_moye._selection.capability import LoweringTarget, usable_configs, why_not
from jax_moye._selection.cost import predicted_us
from jax_moye._selection.cost_xla import xla_us
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.problem import GemmProblem, make_problem
from jax_moye._selection.ranking import select
from jax_moye._selection.request import Operand, Request

ROOT = pathlib.Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
CONFIGS = jax_moye.configs()
H200 = LoweringTarget("cuda", 90, None, usable_configs("cuda", 90))
# What the constants were fitted to. Later files may hold other kernels, and say when to fit again.
SUITE, SWEEP = "nvidia_h200-2026-11-20-e0cb999.json", "nvidia_h200-2026-11-20-5752550-sweep.json"
FILES = (
    SUITE,
    SWEEP,
    *(f"nvidia_h200-2026-11-20-{commit}.json" for commit in ["4dd834c", "511fcf1", "6753480", "6889ca3"]),
)

needs_results = pytest.mark.skipif(not RESULTS.exists(), reason="no measurements beside the tests")


def measured(*files):
    """Rows of files of results."""
    return [row for name in files for row in json.loads((RESULTS / name).read_text())["rows"]]


def problem_of(row, dtype=None):
    """The problem of a row; dtype: of the config, where that is not the operands' (tf32)."""
    lead = "b" if row["batch"] > 1 else ""
    a, b = lead + ("mk" if row["layout"][0] == "N" else "km"), lead + ("kn" if row["layout"][1] == "N" else "nk")
    sizes = {"b": row["batch"], "m": row["m"], "n": row["n"], "k": row["k"]}
    shapes = [[sizes[label] for label in labels] for labels in (a, b)]
    return make_problem(f"{a},{b}->{lead}mn", *shapes, dtype or row["dtype"], row["dtype"])


def kernel_dtype(row):
    """What XLA multiplies in: H2 is f32 at default precision."""
    return "tf32" if "_tf32_" in row["config"] else row["dtype"]


def host_bound(row):
    return row.get("host_bound", ())


def config_of(row):
    """The row of the table that was measured; None where this build lacks it."""
    return next((config for config in CONFIGS if config.name == row["config"]), None)


def errors_of_xla():
    """(row, predicted over measured) of all rows in which the host was not the limit."""
    return [
        (row, xla_us(problem_of(row, kernel_dtype(row)), 90) / row["baselines"]["xla"])
        for row in measured(*FILES)
        if "xla" not in host_bound(row)
    ]


def errors_of_kernels():
    found = []
    for row in measured(SUITE):
        config = config_of(row)
        if config is not None and "jax_moye" not in host_bound(row):
            found.append((row, predicted_us(config, problem_of(row, config.dtype), 90) / row["us"]))
    return found


def spread(ratios):
    """How far ratios are from 1: the root of the mean square of their logarithms."""
    return math.sqrt(statistics.fmean(math.log(ratio) ** 2 for ratio in ratios))


# ------------------------------------------------------------------------------------------------- against measurements


@needs_results
def test_xlas_time_is_what_was_measured():
    errors = errors_of_xla()
    assert len(errors) > 90
    assert {row["regime"] for row, _ in errors} == {"large", "mid", "skinny", "tiny", "batched", "odd", "precision"}
    ratios = [error for _, error in errors]
    assert spread(ratios) < 0.07
    assert abs(math.log(statistics.geometric_mean(ratios))) < 0.03
    for row, error in errors:
        assert 1 / 1.2 < error < 1.2, (row["id"], error)


@needs_results
def test_the_kernels_times_are_what_was_measured():
    errors = errors_of_kernels()
    if len(errors) < 5:
        pytest.skip("few of the measured rows in this build")
    ratios = [error for _, error in errors]
    assert spread(ratios) < 0.06
    for row, error in errors:
        assert 1 / 1.2 < error < 1.2, (row["id"], error)


def regrets():
    """Of each row of the sweep: time of the best config measured over that of the model's choice among them."""
    found = {}
    for row in measured(SWEEP):
        problem = problem_of(row)
        us = {config: row["configs"][config.name] for config in CONFIGS if config.name in row["configs"]}
        if len(us) > 5:
            found[row["id"]] = min(us.values()) / us[min(us, key=lambda config: predicted_us(config, problem, 90))]
    return found


@needs_results
def test_regret_of_the_model():
    found = regrets()
    if not found:
        pytest.skip("few of the measured rows in this build")
    assert len(found) == 6
    assert statistics.geometric_mean(found.values()) > 0.99
    assert min(found.values()) > 0.98


def who(row, config):
    """Why XLA would compute a measured row if our kernel were the one that was measured; None if it would not."""
    dtype = jnp.dtype({"bf16": "bfloat16", "f32": "float32", "f64": "float64"}[row["dtype"]])
    precision = (lax.Precision.HIGHEST,) * 2 if config.dtype == "f32" else None
    operands, problem = (Operand((1,), dtype),) * 2, problem_of(row, config.dtype)
    request = Request("mk,kn->mn", dtype, precision, None, None, None)
    call = decide.KernelCall(problem, config, False, operands)
    found = decide._Found(call, predicted_us(config, problem, 90))
    return decide._ours_or_xlas(request, operands, H200, found).reason


@needs_results
def test_xla_gets_what_it_was_measured_to_compute_faster():
    """No row on which we were level or faster, and all on which we were much slower."""
    left, kept = [], []
    with jax.enable_x64(True):
        for row in measured(SUITE):
            config = config_of(row)
            if config is None:
                continue
            ratio = row["us"] / row["baselines"]["xla"]
            reason = who(row, config)
            if not {"jax_moye", "xla"} <= set(host_bound(row)):
                assert reason is None or ratio > 1.05, (row["id"], ratio, reason)
                assert reason is not None or ratio < 1.3, (row["id"], ratio)
            (kept if reason is None else left).append(row["id"])
    assert set(left) <= {"C1", "C3", "C5", "C7", "C8", "C9", "D1", "D2", "E2", "H1", "H3"}
    assert all(row_id[0] not in "ABG" for row_id in left)
    assert len(left) > 3


@needs_results
def test_tiny_products_are_measured_to_be_faster_by_xla():
    """Where the host was the limit: what CALL_US and XLA_CALL_US say of it."""
    bound = [row for row in measured(*FILES) if host_bound(row) and row["regime"] in ("tiny", "batched")]
    ratios = [row["us"] / row["baselines"]["xla"] for row in bound]
    assert len(ratios) == 14
    assert sum(ratio > 1 for ratio in ratios) == 13
    assert pytest.approx(statistics.geometric_mean(ratios), rel=0.03) == cost.CALL_US / cost_xla.XLA_CALL_US


PAGE = ROOT / "docs" / "how_selection_works.md"
BLOCK = "<!-- fit: begin -->\n{}<!-- fit: end -->"


def fit_in_words():
    """The figures of docs/how_selection_works.md, which come from nowhere but the files."""
    xla, kernels, regret = (
        [error for _, error in errors_of_xla()],
        [error for _, error in errors_of_kernels()],
        regrets(),
    )

    def words(ratios):
        return f"{spread(ratios):.1%} (root mean square; at most {max(max(r, 1 / r) for r in ratios) - 1:.0%})"

    def ratio(row):
        config = config_of(row)
        problem = problem_of(row, config.dtype)
        predicted = predicted_us(config, problem, 90) / xla_us(problem, 90)
        return predicted * row["baselines"]["xla"] / row["us"]

    with jax.enable_x64(True):
        left = [row for row in measured(SUITE) if who(row, config_of(row)) is not None]
    kept = [row["us"] / row["baselines"]["xla"] for row in measured(SUITE) if row not in left]
    slower = [f"{row['id']} {row['us'] / row['baselines']['xla']:.2f}" for row in left]
    by_host = [row["id"] for row in left if {"jax_moye", "xla"} <= set(host_bound(row))]
    ratios = [ratio(row) for row in measured(SUITE) if not host_bound(row)]
    mean = statistics.geometric_mean(regret.values())
    lines = [
        "How well they fit one H200 (`benchmarks/results/`; without the workloads on which the host was the limit):",
        "",
        "| | measurements | error |",
        "|---|---|---|",
        f"| XLA's time, six files | {len(xla)} | {words(xla)} |",
        f"| the time of our kernel that was measured, `{SUITE}` | {len(kernels)} | {words(kernels)} |",
        f"| the ratio of the two in that file | {len(ratios)} | {spread(ratios):.1%} (root mean square) |",
        "",
        f"XLA would get these of that file's {len(measured(SUITE))} workloads, here with our time over XLA's:",
        f"{', '.join(slower)}.",
        f"The host was the limit on {', '.join(by_host)}.",
        f"On all others our time is {min(kept):.2f} to {max(kept):.2f} of XLA's.",
        "",
        f"`{SWEEP}` has the times of up to 28 configs on each of {len(regret)} large products.",
        f"There the best time is {mean:.4f} of the time of the model's first choice (geometric mean), and "
        f"{min(regret.values()):.3f} at worst.",
        "The factors of the tiles are that file's means. It says nothing about other products, nor about choices among "
        "small tiles.",
    ]
    return "\n".join(lines) + "\n"


@needs_results
@pytest.mark.skipif(not PAGE.exists(), reason="no docs beside the tests")
def test_the_pages_figures_are_the_files():
    if any(config_of(row) is None for row in measured(SUITE)):
        pytest.skip("not all of the measured rows in this build")
    block = BLOCK.format(fit_in_words())
    text = PAGE.read_text()
    if os.environ.get("JAX_MOYE_UPDATE_GOLDEN"):
        text = re.sub(BLOCK.format(".*"), lambda match: block, text, flags=re.DOTALL)
        PAGE.write_text(text)
    assert block in text, "set JAX_MOYE_UPDATE_GOLDEN=1 to write what is right now"


# -------------------------------------------------------------------------------------------------------------- physics


def square(m, n, k, batch=1, dtype="bf16", order="NN", out=None):
    a = (m * k, k, 1) if order[0] == "N" else (m * k, 1, m)
    b = (n * k, 1, n) if order[1] == "N" else (n * k, k, 1)
    return GemmProblem(batch, m, n, k, a, b, (m * n, n, 1), dtype, out or {"tf32": "f32"}.get(dtype, dtype), False)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64"])
def test_xla_needs_no_less_time_for_more(dtype):
    sizes = [1, 8, 16, 64, 72, 128, 136, 512, 1024, 4096, 8192]
    for m in sizes:
        for n in sizes:
            for ladder in (
                [square(m, n, 8 * k, dtype=dtype, order="NT") for k in sizes],
                [square(m, n, 64, batch, dtype=dtype, order="NT") for batch in sizes],
                [square(size, m, n * 8, dtype=dtype, order="NT") for size in sizes],
                [square(m, size, n * 8, dtype=dtype, order="NT") for size in sizes],
                [square(m, n, 64, dtype=dtype, order="NT", out=out) for out in ("bf16", "f32")],
            ):
                times = [xla_us(problem, 90) for problem in ladder]
                assert times == sorted(times), (m, n)
                assert all(xla_us(problem, 90, passes=1) > us for problem, us in zip(ladder, times, strict=True))


def test_aligned_operands_are_never_slower_for_xla():
    for dtype in ("bf16", "tf32", "f32", "f64"):
        for m, n, k in ((16, 256, 7168), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 512, 64)):
            aligned = square(m, n, k, dtype=dtype)
            one = dataclasses.replace(aligned, a_strides=(0, k + 1, 1))
            both = dataclasses.replace(one, b_strides=(0, 1, n + 1))
            times = [xla_us(problem, 90) for problem in (aligned, one, both)]
            assert times == sorted(times)


def test_xlas_time_is_not_below_the_roofline():
    device = DEVICES["h200"]
    for dtype in ("bf16", "f16", "tf32", "f32", "f64"):
        for m, n, k in ((16, 16, 16), (1, 28672, 4096), (4096, 4096, 4096), (16384, 16384, 64)):
            problem = square(m, n, k, dtype=dtype)
            item = {"bf16": 2, "f16": 2, "f64": 8}.get(dtype, 4)
            moved = ((m + n) * k + m * n) * item
            least = max(2e6 * m * n * k / device.flops(dtype), 1e6 * moved / device.memory_bytes_per_s)
            assert xla_us(problem, 90) >= least


def test_of_what_xla_was_not_measured_nothing_is_said():
    problem = square(1, 4096, 4096)
    assert xla_us(problem, 90) is not None
    for arch in (None, 70, 80, 86, 89, 100, 120):
        assert xla_us(problem, arch) is None
    for changes in (
        {"dtype": "s8", "out_dtype": "s32"},
        {"dtype": "e4m3", "out_dtype": "f32"},
        {"dtype": "f16", "out_dtype": "f16", "accumulator": "f16"},
        {"a_strides": (0, 8192, 2)},
        {"batch": 4, "a_strides": (0, 4096, 1)},  # shared by the matrices
        {"batch": 4, "d_strides": (4096, 4 * 4096, 1)},  # rows of all matrices in turn
    ):
        assert xla_us(dataclasses.replace(problem, **changes), 90) is None, changes


# ------------------------------------------------------------------------------------------------------- who computes

DECODE = (1, 4096, 4096)  # m, n, k: our tiles have 64 rows, and nobody splits k


def decision_of(m, n, k, dtype=jnp.bfloat16, arch=90, **options):
    operands = tuple(Operand(shape, jnp.dtype(dtype)) for shape in ((m, k), (k, n)))
    fields = dict(precision=None, config=None, implementation=None, interpret=None) | options
    request = Request("mk,kn->mn", jnp.dtype(dtype), **fields)
    return decide.decide(request, operands, LoweringTarget("cuda", arch, None, usable_configs("cuda", arch)))


def reason_of(*args, **options):
    decision = decision_of(*args, **options)
    assert (decision.reason is None) == (decision.kind == "kernel")
    assert decision.cause == (None if decision.kind == "kernel" else "time")
    return decision.reason


@pytest.fixture
def slow(monkeypatch):
    """XLA as if it were twice as fast as our kernels, whichever this build has."""

    def twice_as_fast(problem, arch, passes=0):
        return None if arch != 90 else predicted_us(select(problem, 90, CONFIGS), problem, 90) / 2 * (1 + 3 * passes)

    monkeypatch.setattr(decide, "xla_us", twice_as_fast)


def test_a_product_on_which_xla_is_faster_is_left_to_it(slow):
    reason = reason_of(1024, 4096, 4096)
    words = reason.split()
    assert reason == f"XLA is expected to take {words[5]} us, and the best kernel {words[-1]}"
    assert float(words[-1]) == pytest.approx(2 * float(words[5]), rel=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"implementation": "moye"},
        {"config": CONFIGS[0].name},
        {"deterministic": True},
        {"batch_invariant": True},
        {"arch": 80},
        {"beta": 1.0},  # XLA would read and write the result once more
        {"epilogue": Epilogue("relu", 1.0, 0.0, ())},
    ],
    ids=str,
)
def test_not_where_the_caller_wants_ours_or_nothing_is_known(slow, options):
    if "config" in options:
        name = next((row.name for row in CONFIGS if why_not(row, square(1024, 4096, 4096), 90) is None), None)
        if name is None:
            pytest.skip("no row of bf16 in this build")
        options = {"config": name}
    assert reason_of(1024, 4096, 4096) is not None
    assert reason_of(1024, 4096, 4096, **options) is None


def test_high_precision_stays_exact(slow):
    """XLA multiplies f32 at HIGH in TF32: less than what our kernels promise."""
    if not any(row.dtype == "f32" for row in CONFIGS):
        pytest.skip("no row of f32 in this build")
    high = (lax.Precision.HIGH,) * 2
    assert reason_of(1024, 4096, 4096, jnp.float32, precision=high) is None
    assert reason_of(1024, 4096, 4096, jnp.float32, precision=(lax.Precision.HIGHEST,) * 2) is not None


def test_the_margin(monkeypatch):
    decision = decision_of(4096, 4096, 4096)
    ours = predicted_us(decision.call.config, square(4096, 4096, 4096), 90)
    assert decision.predicted.ours == ours
    for factor, is_left in ((0.99, False), (1.01, True)):
        monkeypatch.setattr(decide, "xla_us", lambda *args, f=factor, **kwargs: ours / 1.2 / f)
        assert (reason_of(4096, 4096, 4096) is not None) == is_left


@pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU")
def test_lowering_and_explain_leave_it_to_xla(monkeypatch, caplog):
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(ffi, "register", lambda platform: None)
    monkeypatch.setattr(measurements, "find", lambda *args: None)
    monkeypatch.setattr(decide, "xla_us", lambda problem, arch, passes=0: 0.5 if problem.m == 24 else None)
    jax.clear_caches()
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((24, 4096), (4096, 4096)))
    with caplog.at_level(logging.INFO, "jax_moye"):
        text = lowered_text(jax_moye.matmul, a, b)
    assert TARGET not in text
    assert "XLA is expected to take 0.5 us" in caplog.text
    explained = jax_moye.explain(a, b, device="h200")[0]
    assert explained.computed_by == "xla"
    assert explained.reason.startswith("XLA is expected to take 0.5 us, and the best kernel ")
    assert explained.candidates[0].us > 1
    insisting = functools.partial(jax_moye.matmul, implementation="moye")
    assert TARGET in lowered_text(insisting, a, b)
    # Another platform, and a product of another size.
    assert TARGET in lowered_text(jax_moye.matmul, b, b)
