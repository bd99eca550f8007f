"""The model of our kernels: against measurements, and against physics."""

import dataclasses
import os
import random
import re
import statistics

import jax
import pytest
from python._selection.problems import problem_of
from python._selection.results import (
    CONFIGS,
    ROOT,
    SUITE,
    SWEEP,
    config_of,
    errors_of_kernels,
    errors_of_xla,
    host_bound,
    measured,
    needs_results,
    problem_of_workload,
    spread,
    who,
)

from jax_moye._kernels.configs import facts_of
from jax_moye._kernels.devices import DEVICES
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye._selection.capability import why_not
from jax_moye._selection.cost import predicted_us, terms
from jax_moye._selection.cost_xla import xla_us


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
        problem = problem_of_workload(row)
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
        problem = problem_of_workload(row, config.dtype)
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


def legal_rows(problem, arch=90):
    return [row for row in CONFIGS if why_not(row, problem, arch) is None]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"])
def test_more_work_is_never_faster(dtype):
    """More products of a sum, more matrices: no row takes less time, and so the best does not."""
    order = "NT" if dtype in ("s8", "e4m3") else "NN"
    for m, n in ((16, 16), (128, 4096), (640, 640), (4096, 4096)):
        ks = [16, 32, 48, 64, 128, 144, 512, 1024, 4096, 4112, 16384]
        batches = [1, 2, 3, 8, 64, 1000]
        for problems in (
            [problem_of(1, m, n, k, dtype, order) for k in ks],
            [problem_of(batch, m, n, 128, dtype, order) for batch in batches],
        ):
            rows = legal_rows(problems[0])
            assert rows
            best = []
            for problem in problems:
                assert legal_rows(problem) == rows
                best.append(min(predicted_us(row, problem, 90) for row in rows))
            assert best == sorted(best)
            for row in rows:
                times = [predicted_us(row, problem, 90) for problem in problems]
                assert times == sorted(times), (row.name, times)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"])
def test_larger_results_are_never_faster(dtype):
    """More rows, more columns: of 16 rows and more. Hopper tiles of fewer were measured to be slower."""
    sizes = [16, 32, 64, 80, 128, 144, 256, 640, 1024, 4096, 4112, 16384]
    for k in (16, 768, 4096):
        for other in (16, 144, 4096):
            for problems in (
                [problem_of(1, m, other, k, dtype, "NT") for m in sizes],
                [problem_of(1, other, n, k, dtype, "NT") for n in sizes],
            ):
                for row in legal_rows(problems[0]):
                    times = [predicted_us(row, problem, 90) for problem in problems]
                    assert times == sorted(times), (row.name, times)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"])
def test_aligned_operands_are_never_slower(dtype):
    """No row takes longer where every pitch is a multiple of 16 bytes, and so the best one does not."""
    for m, n, k in ((16, 16, 16), (128, 4096, 768), (4096, 4096, 4096)):
        for order in ("NN", "NT", "TN", "TT"):
            aligned = problem_of(1, m, n, k, dtype, order)

            def odd(strides):
                return tuple(stride + (stride > 1) for stride in strides)

            others = [
                dataclasses.replace(aligned, a_strides=odd(aligned.a_strides)),
                dataclasses.replace(aligned, b_strides=odd(aligned.b_strides)),
                dataclasses.replace(aligned, d_strides=odd(aligned.d_strides)),
            ]
            best = min(predicted_us(row, aligned, 90) for row in legal_rows(aligned))
            for other in others:
                rows = legal_rows(other)
                assert set(rows) <= set(legal_rows(aligned))
                for row in rows:
                    assert predicted_us(row, aligned, 90) <= predicted_us(row, other, 90), (row.name, order)
                assert not rows or best <= min(predicted_us(row, other, 90) for row in rows)


def test_wider_results_are_never_faster():
    for m, n, k in ((64, 64, 64), (4096, 4096, 64), (8192, 8192, 8192)):
        narrow = problem_of(1, m, n, k, "bf16")
        wide = dataclasses.replace(narrow, out_dtype="f32")
        for row in legal_rows(narrow):
            if "f32" in row.out_dtypes:
                assert predicted_us(row, narrow, 90) <= predicted_us(row, wide, 90)


def test_no_time_is_below_the_roofline():
    """At the clock of the data sheet no row is predicted to be faster than an H200 can be."""

    device = DEVICES["h200"]
    for dtype in ("bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"):
        for m, n, k in ((16, 16, 16), (128, 8192, 8192), (4096, 4096, 4096), (16384, 16384, 64)):
            problem = problem_of(1, m, n, k, dtype, "NT")
            item, out = ITEM_BYTES[dtype], ITEM_BYTES[problem.out_dtype]
            least = max(
                2e6 * m * n * k / device.flops(dtype),
                1e6 * ((m + n) * k * item + m * n * out) / device.memory_bytes_per_s,
            )
            for row in legal_rows(problem):
                assert predicted_us(row, problem, 90) >= least, (row.name, m, n, k)


def test_terms_add_up():
    rng = random.Random(5)
    for _ in range(100):
        problem = problem_of(
            *(rng.choice((1, 3, 64, 100, 1000)) for _ in range(4)), rng.choice(("bf16", "f32", "tf32"))
        )
        for row in legal_rows(problem):
            t = terms(row, problem, 90)
            total = t.launch_us + t.products_us + t.stores_us + t.memory_us - t.hidden_us + t.pack_us
            assert t.us == predicted_us(row, problem, 90) == pytest.approx(t.factor * total)
            assert getattr(t, f"{t.dominating}_us") == max(
                t.launch_us, t.products_us, t.stores_us, t.memory_us, t.pack_us
            )
            usable = facts_of(row.kernel).speed.usable.get(
                row.k_parts, 1.0
            )  # clusters along k leave some multiprocessors free
            assert t.waves == -(-t.tiles // (int(t.multiprocessors * usable) * t.resident))
            # The last tile of each mode costs as much as the others, but for Hopper tiles of fewer than 16 rows.
            (tile_m, tile_n), tile_k = row.cluster_tile, row.tile[2]
            sizes = {"m": tile_m, "n": tile_n, "k": tile_k}
            if problem.m < 16 and row.kernel.startswith("sm90_"):
                del sizes["m"]
            whole = {name: -(-getattr(problem, name) // size) * size for name, size in sizes.items()}
            assert terms(row, dataclasses.replace(problem, **whole), 90)[:3] == t[:3]
