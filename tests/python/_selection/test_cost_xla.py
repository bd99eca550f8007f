"""The model of XLA: against measurements, and against physics."""

import dataclasses
import statistics

import pytest
from python._selection.results import (
    FILES,
    edges,
    errors_of_xla,
    host_bound,
    measured,
    needs_results,
    over_mean,
    problem_of_workload,
    spread,
    square,
)

from jax_moye._kernels.devices import DEVICES
from jax_moye._selection import cost, cost_xla
from jax_moye._selection.cost_xla import xla_us


@needs_results
def test_xlas_time_is_what_was_measured():
    errors = errors_of_xla()
    assert len(errors) > 90
    assert {row["regime"] for row, _ in errors} == {"large", "mid", "skinny", "tiny", "batched", "odd", "precision"}
    errors, mean = over_mean(errors)
    assert 0.9 < mean < 1
    assert spread([error for _, error in errors]) < 0.08
    for row, error in errors:
        assert 1 / 1.3 < error < 1.3, (row["id"], error)


@needs_results
def test_tiny_products_are_measured_to_be_faster_by_xla():
    """Where the host was the limit: what CALL_US and XLA_CALL_US say of it."""
    bound = [row for row in measured(*FILES) if host_bound(row) and row["regime"] in ("tiny", "batched")]
    ratios = [row["us"] / row["baselines"]["xla"] for row in bound]
    assert len(ratios) == 14
    assert sum(ratio > 1 for ratio in ratios) == 13
    assert pytest.approx(statistics.geometric_mean(ratios), rel=0.03) == cost.CALL_US / cost_xla.XLA_CALL_US


@needs_results
def test_xla_splits_what_has_few_tiles_of_odd_operands():
    """Whole tiles would be 1.1 to 26 times what XLA took, and ours would be chosen where it is slower."""
    few = [row for row in edges() if row["batch"] == 1 and {row["n"], row["k"]} & {577, 130, 4097}]
    assert len(few) == 10
    for row in few:
        assert 0.3 < xla_us(problem_of_workload(row), 90) / row["xla_us"] < 1, (row["id"], row["layout"])


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
