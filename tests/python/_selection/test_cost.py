"""The model of our kernels: against measurements, and against physics."""

import dataclasses
import itertools
import os
import random
import re
import statistics

import jax
import pytest
from python._selection.problems import example_config, problem_of
from python._selection.results import (
    CONFIGS,
    ROOT,
    SUITE,
    SWEEP,
    config_of,
    edges,
    errors_of_kernels,
    errors_of_xla,
    host_bound,
    kernel_dtype,
    layers,
    measured,
    needs_results,
    over_mean,
    problem_of_workload,
    spread,
    suite,
    who,
)

from jax_moye._kernels.configs import facts_of
from jax_moye._kernels.devices import DEVICES
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye._selection.capability import why_not
from jax_moye._selection.cost import predicted_us, terms
from jax_moye._selection.cost_xla import XLA_CALL_US, xla_us


@needs_results
def test_the_kernels_times_are_what_was_measured():
    errors = errors_of_kernels()
    if len(errors) < 40:
        pytest.skip("few of the measured rows in this build")
    errors, mean = over_mean(errors)
    assert 0.9 < mean < 1
    assert spread([error for _, error in errors]) < 0.065
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
    assert statistics.geometric_mean(found.values()) > 0.98  # tests/build/test_fit_cost.py has many more products
    assert min(found.values()) > 0.92


PAGE = ROOT / "docs" / "how_selection_works.md"


BLOCK = "<!-- fit: begin -->\n{}<!-- fit: end -->"


def fit_in_words():
    """The figures of docs/how_selection_works.md, which come from nowhere but the files."""
    xla, kernels = ([error for _, error in over_mean(errors)[0]] for errors in (errors_of_xla(), errors_of_kernels()))
    regret = regrets()

    def words(ratios):
        return f"{spread(ratios):.1%} (root mean square; at most {max(max(r, 1 / r) for r in ratios) - 1:.0%})"

    def ratio(row):
        config = config_of(row)
        problem = problem_of_workload(row, config.dtype)
        predicted = predicted_us(config, problem, 90) / xla_us(problem, 90)
        return predicted * row["baselines"]["xla"] / row["us"]

    def is_of_the_gpu(row):  # whose time the model does not take from the host's calls
        return xla_us(problem_of_workload(row, kernel_dtype(row)), 90) > XLA_CALL_US

    with jax.enable_x64(True):
        kept = [row for row in suite() if who(row, config_of(row)) is None]
    ours = [f"{row['id']} {row['us'] / row['baselines']['xla']:.2f}" for row in kept]
    faster = [row for row in suite() if row not in kept and row["baselines"]["xla"] < row["us"]]
    ratios = [ratio(row) for row in suite() if not host_bound(row) and is_of_the_gpu(row)]
    mean = statistics.geometric_mean(regret.values())
    lines = [
        "How well they fit one H200 (`benchmarks/results/`; without the workloads on which the host was the limit).",
        "The times are divided by their geometric mean over the predicted ones: these files are of other clocks.",
        "",
        "| | measurements | error |",
        "|---|---|---|",
        f"| XLA's time, six files | {len(xla)} | {words(xla)} |",
        f"| the time of our kernel, `{SUITE}` | {len(kernels)} | {words(kernels)} |",
        f"| the ratio of the two in that file | {len(ratios)} | {spread(ratios):.1%} (root mean square) |",
        "",
        f"Without a measurement our kernels would get {len(kept)} of that file's {len(suite())} workloads of 16 to 64 "
        "bits, here with our time over XLA's:",
        f"{', '.join(ours)}. Of the others XLA was faster on {len(faster)}.",
        "",
        f"`{SWEEP}` has the times of up to 28 configs on each of {len(regret)} large products.",
        f"There the best time is {mean:.4f} of the time of the model's first choice (geometric mean), and "
        f"{min(regret.values()):.3f} at worst.",
    ]
    return "\n".join(lines) + "\n"


@needs_results
@pytest.mark.skipif(not PAGE.exists(), reason="no docs beside the tests")
def test_the_pages_figures_are_the_files():
    if any(config_of(row) is None for row in suite()):
        pytest.skip("not all of the measured rows in this build")
    block = BLOCK.format(fit_in_words())
    text = PAGE.read_text()
    if os.environ.get("JAX_MOYE_UPDATE_GOLDEN"):
        text = re.sub(BLOCK.format(".*"), lambda match: block, text, flags=re.DOTALL)
        PAGE.write_text(text)
    assert block in text, "set JAX_MOYE_UPDATE_GOLDEN=1 to write what is right now"


def legal_rows(problem, arch=90):
    return [row for row in CONFIGS if why_not(row, problem, arch) is None]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "bf16x3", "bf16x9", "f64", "s8", "e4m3"])
def test_more_work_is_never_faster(dtype):
    """More products of a sum, more matrices: no row takes less time, and so the best does not."""
    order = "NT" if dtype in ("s8", "e4m3") else "NN"
    for m, n in ((16, 16), (128, 4096), (640, 640), (4096, 4096)):
        batches = [1, 2, 3, 8, 64, 1000]
        # Where rows begin within a line of the cache, fewer products can take longer.
        for problems in (
            [problem_of(1, m, n, k, dtype, order) for k in (128, 256, 512, 640, 1024, 4096, 4224, 16384)],
            [problem_of(1, m, n, k, dtype, order) for k in (144, 272, 528, 656, 1040, 4112, 4240, 16400)],
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
    """More rows, more columns. With TMA of whole tiles: what it fills with zeros was measured to take long."""
    sizes = [16, 32, 64, 80, 128, 144, 256, 640, 1024, 4096, 4112, 16384]

    def whole(sizes, tile):
        return sorted({-(-size // tile) * tile for size in sizes})

    for k in (16, 768, 4096):
        for other in (16, 144, 4096):
            for row in legal_rows(problem_of(1, 16, other, k, dtype, "NT")):
                tiles = row.cluster_tile if facts_of(row.kernel).speed.copy_us == 0 else (1, 1)
                for problems in (
                    [problem_of(1, m, other, k, dtype, "NT") for m in whole(sizes, tiles[0])],
                    [problem_of(1, other, n, k, dtype, "NT") for n in whole(sizes, tiles[1])],
                ):
                    times = [predicted_us(row, problem, 90) for problem in problems]
                    # All waves load as much in the model: where a second one reads the same columns, the first gains.
                    # Where a call's sizes say how many parts k has, cuda/gemm finds the number by constants of its own.
                    least = 0.8 if facts_of(row.kernel).splits_k_by_sizes else 0.95
                    assert all(more > least * less for less, more in itertools.pairwise(times)), (row.name, times)


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
                    if facts_of(row.kernel).speed.below_alignment:  # was never timed with aligned ones
                        continue
                    assert predicted_us(row, aligned, 90) <= predicted_us(row, other, 90), (row.name, order)
                assert not rows or best <= min(predicted_us(row, other, 90) for row in rows)


def test_contiguous_columns_come_in_whole_boxes():
    """A tile of 80 columns loads 128 of them, and waits for the cache; where k is contiguous it loads 80."""
    config = dataclasses.replace(
        example_config(kernel="sm90_pingpong"), stages=8, threads=384, smem_bytes=230_400, consumers=2
    )

    def loads_us(columns, order, n=15360, **changes):
        row = dataclasses.replace(config, tile=(64, columns, 64), consumer_tile=(64, columns), **changes)
        return terms(row, problem_of(1, 4096, n, 8192, "bf16", order), 90).memory_us

    for columns, box in ((64, 64), (80, 128), (96, 128), (128, 128), (144, 192), (192, 192)):
        # Of the rows of a, 64 in each tile, and the columns of b.
        assert loads_us(columns, "NN") / loads_us(columns, "NT") == pytest.approx((64 + box) / (64 + columns), abs=0.01)
        assert loads_us(columns, "TN") == loads_us(columns, "NN")
        assert loads_us(columns, "TT") == loads_us(columns, "NT")
        # Threads load what they need, and a packed operand is contiguous along k.
        assert loads_us(columns, "NN", kernel="sm80_multistage") == loads_us(columns, "NT", kernel="sm80_multistage")
        packs = {"n": 15361, "kernel": "sm90_cooperative", "alignment": 2}
        assert loads_us(columns, "NN", **packs) == loads_us(columns, "NT", **packs)


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
    for dtype in ("bf16", "f16", "tf32", "f32", "bf16x3", "bf16x9", "f64", "s8", "e4m3"):
        for m, n, k in ((16, 16, 16), (128, 8192, 8192), (4096, 4096, 4096), (16384, 16384, 64)):
            problem = problem_of(1, m, n, k, dtype, "NT")
            item, out = ITEM_BYTES[dtype], ITEM_BYTES[problem.out_dtype]
            memory = 1e6 * ((m + n) * k * item + m * n * out) / device.memory_bytes_per_s
            for row in legal_rows(problem):
                least = max(2e6 * m * n * k / device.flops(row.dtype), memory)
                assert predicted_us(row, problem, 90) >= least, (row.name, m, n, k)


@needs_results
def test_layers_take_what_was_measured():
    """But for rows that are not of 16 bytes, of which two were measured: they take longer than predicted."""
    errors = []
    for row in layers():
        problem = dataclasses.replace(problem_of_workload(row), epilogue=True)
        timed = {config: row["us"][config.name] for config in CONFIGS if config.name in row["us"]}
        for config, us in timed.items():
            error = predicted_us(config, problem, 90) / us
            assert 0.65 < error < 1.25, (row["id"], config.name)
            if "odd" not in row["id"]:
                errors.append(error)
    assert len(errors) > 50
    assert 0.95 < statistics.geometric_mean(errors) < 1.05
    assert spread(errors) < 0.08


@needs_results
def test_no_choice_is_a_cliff():
    """At the edge no config that the model chooses takes 1.5 times as long as the best: of those in this build."""
    counted = 0
    for row in edges():
        problem = problem_of_workload(row)
        timed = {config: row["us"][config.name] for config in CONFIGS if config.name in row["us"]}
        if len(timed) > 1:
            counted += 1
            first = min(timed, key=lambda config: predicted_us(config, problem, 90))
            assert timed[first] < 1.5 * min(timed.values()), (row["id"], row["layout"], first.name)
    assert counted > 80


def test_short_waves_take_a_tiles_way_through_its_cta():
    """Thousands of small matrices: the kernels on mma.sync were 1.6 to 1.8 times as slow as the best, and chosen."""
    many, few = (problem_of(batch, 8, 8, 8, "bf16") for batch in (20000, 100))
    rows = [row for row in legal_rows(many) if facts_of(row.kernel).speed.least_wave_us > 0]
    assert rows
    for row in rows:
        t = terms(row, many, 90)
        assert t.us >= t.launch_us + (t.waves - 1) * facts_of(row.kernel).speed.least_wave_us
        assert terms(row, few, 90).stores_us < 1  # a single wave


def test_terms_add_up():
    rng = random.Random(5)
    for _ in range(100):
        problem = problem_of(
            *(rng.choice((1, 3, 64, 100, 1000)) for _ in range(4)), rng.choice(("bf16", "f32", "tf32"))
        )
        for row in legal_rows(problem):
            t = terms(row, problem, 90)
            total = t.launch_us + t.products_us + t.stores_us + t.memory_us - t.hidden_us + t.pack_us + t.add_us
            assert (t.add_us > 0) == (t.parts > 1)
            assert t.us == predicted_us(row, problem, 90) == pytest.approx(t.factor * total)
            assert getattr(t, f"{t.dominating}_us") == max(
                t.launch_us, t.products_us, t.stores_us, t.memory_us, t.pack_us, t.add_us
            )
            speed = facts_of(row.kernel).speed
            usable = speed.usable.get(row.k_parts, 1.0)  # clusters along k leave some multiprocessors free
            assert t.waves == -(-t.tiles // (int(t.multiprocessors * usable) * t.resident))
            # The last tile of each mode costs as much as the others, but for the stores of a tile with fewer rows.
            (tile_m, tile_n), tile_k = row.cluster_tile, row.tile[2]
            sizes = {"m": tile_m, "n": tile_n, "k": tile_k}
            if problem.m < row.tile[0]:
                del sizes["m"]
            whole = {name: -(-getattr(problem, name) // size) * size for name, size in sizes.items()}
            of_whole = terms(row, dataclasses.replace(problem, **whole), 90)
            if of_whole.parts == t.parts:
                assert of_whole[:2] == t[:2]
                assert of_whole.stores_us == t.stores_us or speed.least_wave_us > 0  # of which loads are a part
