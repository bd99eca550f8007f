"""What is asked of a kernel's lead over XLA."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
from python.measured import SHAPE, entry_of, explained

from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.entry import parse_entry
from jax_moye._selection.leads import is_lost, wins_by
from jax_moye._selection.problem import GemmProblem
from jax_moye.layout.kernels import kernel_facts, kernel_names


@pytest.mark.parametrize(
    ("batch", "m", "n", "us", "least"),
    [
        (256, 1, 512, 10.0, 1.47),
        (256, 512, 1, 10.0, 1.47),
        (256, 1, 512, 50.0, 1.11),
        (1, 1, 512, 10.0, 1.17),
        (256, 2, 512, 10.0, 1.17),
    ],
)
def test_more_is_asked_of_batches_of_vectors(batch, m, n, us, least):
    """XLA computes them in one kernel with what stands around them, which shows in no time of the product alone."""
    strides = {"a_strides": (m * 128, 128, 1), "b_strides": (n * 128, 128, 1), "d_strides": (m * n, n, 1)}
    problem = GemmProblem(batch, m, n, 128, **strides, dtype="bf16", out_dtype="bf16", swapped=False)
    assert wins_by(us, problem) == pytest.approx(least)
    assert wins_by(us) == pytest.approx(1.02 + min(1.5 / us, 0.15))


@pytest.mark.parametrize(
    ("dtype", "order", "more"),
    [("tf32", "TN", 0.1), ("tf32", "NN", 0.0), ("tf32", "TT", 0.0), ("bf16", "TN", 0.0)],
)
def test_more_is_asked_of_gradients_of_weights_in_f32(dtype, order, more):
    """XLA computes them in one kernel with what stands in front of them."""
    m, n, k = 1024, 512, 4096
    a = (0, k, 1) if order[0] == "N" else (0, 1, m)
    b = (0, 1, n) if order[1] == "N" else (0, k, 1)
    problem = GemmProblem(1, m, n, k, a, b, (0, n, 1), dtype=dtype, out_dtype="f32", swapped=False)
    assert wins_by(30.0, problem) == pytest.approx(1.07 + more)


@pytest.mark.parametrize(
    ("shape", "us", "share"),
    [
        ((32768, 512, 512), 40.0, 0.419),  # 34 MB are written and read again
        ((32768, 512, 64), 12.0, 1.0),
        ((4096, 4096, 4096), 200.0, 0.0),  # less than a fifth
        ((16, 6144, 2048), 8.0, 0.0),
    ],
)
def test_more_is_asked_where_xla_computes_a_product_in_a_fusion(shape, us, share):
    """It takes in what stands behind the product, whose result a kernel of ours writes for another to read."""
    m, n, k = shape
    strides = {"a_strides": (m * k, k, 1), "b_strides": (n * k, 1, n), "d_strides": (m * n, n, 1)}
    problem = GemmProblem(1, *shape, **strides, dtype="bf16", out_dtype="bf16", swapped=False)
    alone = wins_by(us, problem)
    assert wins_by(us, problem, is_fused=True) == pytest.approx(alone + share, abs=1e-3)
    entry = entry_of(explained(*SHAPE, implementation="moye"))
    times = {"us": {"one": us}, "xla_us": {"x": us * (alone + share / 2)}}
    entry = dataclasses.replace(entry, config="one", problem=problem, **times)
    assert entry.is_won_by_ours("x")
    assert dataclasses.replace(entry, fused=("x",)).is_won_by_ours("x") == (share == 0)
    assert dataclasses.replace(entry, fused=("another signature",)).is_won_by_ours("x")


@pytest.mark.parametrize(("us", "more"), [(5.0, 0.15), (15.0, 0.1), (150.0, 0.01)])
def test_more_is_asked_where_xla_adds_up_parts_of_k(us, more):
    """Which it does in a program in one kernel with what stands behind the product."""
    assert wins_by(us, is_parted=True) == pytest.approx(wins_by(us) + more)
    entry, lead = entry_of(explained(*SHAPE, implementation="moye")), wins_by(us) + more / 2
    times = {"us": {"one": us}, "xla_us": {"x": us * lead}, "lead": {"x": lead}}
    entry = dataclasses.replace(entry, config="one", **times)
    assert entry.is_won_by_ours("x")
    assert not dataclasses.replace(entry, parted=("x",)).is_won_by_ours("x")
    assert dataclasses.replace(entry, parted=("another signature",)).is_won_by_ours("x")


@pytest.mark.parametrize(("us", "more"), [(10.0, 0.08), (30.0, 0.08), (60.0, 0.05), (300.0, 0.01)])
@pytest.mark.parametrize(
    ("variant", "has_arrays"),
    [
        ("c", True),
        ("none bias residual", True),
        ("gelu_tanh bias kept", True),
        ("d_silu c", True),
        ("none c[0]", True),
        ("", False),
        ("gelu_tanh bias", False),
        ("silu second_b", False),
    ],
)
def test_more_is_asked_of_epilogues_with_arrays(us, more, variant, has_arrays):
    """Their instructions are many, and cold in a program."""
    strides = {"a_strides": [0, 512, 1], "b_strides": [0, 512, 1], "d_strides": [0, 512, 1]}
    dtypes = {"dtype": "bf16", "out_dtype": "bf16", "accumulator": "f32", "swapped": False, "epilogue": True}
    least = 1.02 + min(1.5 / us, 0.15) + more * has_arrays
    for lead, is_won in ((least + 1e-6, True), (least - 1e-6, False)):
        raw = {"problem": {"batch": 1, "m": 512, "n": 512, "k": 512, **strides, **dtypes}, "variant": variant}
        raw |= {"config": "one", "row": "", "us": {"one": us}, "xla_us": {"a": us * lead}, "host_bound": False}
        assert parse_entry({**raw, "date": "2026-01-01"}).is_won_by_ours("a") == is_won


@pytest.mark.parametrize("us", [5.0, 50.0])
@pytest.mark.parametrize("kernel", ["sm90_split_k", "sm90_pingpong", "sm90_cooperative", "sm90_parallel_split_k"])
def test_no_more_is_asked_of_short_kernels_that_take_in_others(us, kernel):
    """Cold instructions cost them less, and kernels of XLA's are gone."""
    config, other = f"{kernel}_bf16_128x128x64_s5_a16", "sm90_sliced_k_bf16_16x32x64_s9_a16"
    for asked in ({"has_arrays": True}, {"is_pair": True}):
        assert wins_by(us, **asked, config=config) == 1.02
        assert wins_by(us, **asked, config=other) == wins_by(us, **asked) > 1.02
    assert wins_by(us, config=config) == wins_by(us)
    strides = {"a_strides": [0, 512, 1], "b_strides": [0, 512, 1], "d_strides": [0, 512, 1]}
    dtypes = {"dtype": "bf16", "out_dtype": "bf16", "accumulator": "f32", "swapped": False, "epilogue": True}
    raw = {"problem": {"batch": 1, "m": 512, "n": 512, "k": 512, **strides, **dtypes}, "date": "2026-01-01"}
    raw |= {"row": "", "xla_us": {"a": us * 1.021}, "host_bound": False}
    for variant in ("none residual", "c", "silu second_b", "gelu_tanh bias"):
        for name in (config, other):
            entry = parse_entry({**raw, "variant": variant, "config": name, "us": {name: us}})
            assert entry.is_won_by_ours("a") == (name == config and variant != "gelu_tanh bias")


def test_short_are_kernels_that_have_short_ones():
    """As cuda/gemm says; sm90_parallel_split_k is sm90_cooperative's. Three more were not measured in programs."""
    sources = pathlib.Path(__file__).parents[3] / "cuda" / "gemm"
    if not sources.is_dir():
        pytest.skip("no sources beside the tests")
    short = {path.stem for path in sources.glob("*.cuh") if "prepare_short()" in path.read_text()}
    not_measured = {"sm90_sliced_k", "sm90_transposed", "sm90_odd_rows"}
    takes_in = {name for name in kernel_names() if kernel_facts(name).takes_in_shortly}
    assert takes_in == (short | {"sm90_parallel_split_k"}) - not_measured


@pytest.mark.parametrize("us", [20.0, 200.0])
def test_more_is_asked_where_xla_sums_columns_in_the_kernel_behind_the_product(us):
    """A program with ours reads the result once more for that: of 6272x1536x384 in bfloat16 in 6.5 us."""
    strides = {"a_strides": (0, 384, 1), "b_strides": (0, 384, 1), "d_strides": (0, 1536, 1)}
    problem = GemmProblem(1, 6272, 1536, 384, **strides, dtype="bf16", out_dtype="bf16", swapped=False)
    more = elementwise_us(2 * 6272 * 1536) / us
    assert wins_by(us, problem, is_summed=True) == pytest.approx(wins_by(us, problem) + more)
    assert more == pytest.approx(6.55 / us, abs=1e-3)
    entry, least = entry_of(explained(*SHAPE, implementation="moye")), wins_by(us, problem, has_arrays=True)
    times = {"us": {"one": us}, "xla_us": {"x": us * (least + more / 2)}}
    entry = dataclasses.replace(entry, config="one", problem=problem, variant="d_silu c", **times)
    assert entry.is_won_by_ours("x")
    assert not dataclasses.replace(entry, variant="d_silu c summed").is_won_by_ours("x")


@pytest.mark.parametrize(
    ("dtype", "sizes", "ours", "xla", "lost"),
    [
        ("tf32", (32, 75, 64, 64), 4.0, 4.0, True),
        ("tf32", (1, 512, 512, 512), 6.5, 6.5, False),
        ("tf32", (256, 64, 64, 64), 6.5, 6.5, False),  # small matrices, but many
        ("tf32", (1, 8192, 200, 8), 8.0, 8.0, True),
        ("tf32", (1, 8192, 200, 200), 10.0, 10.0, False),
        ("tf32", (1, 16, 4096, 4096), 10.0, 10.0, True),
        ("tf32", (1, 4096, 16, 4096), 10.0, 10.0, True),
        ("bf16", (1, 16, 4096, 4096), 10.0, 10.0, False),  # a decoding step's
        ("bf16", (1, 64, 64, 64), 10.0, 6.0, False),
        ("bf16", (1, 64, 64, 64), 10.0, 4.9, True),
    ],
)
def test_what_xla_is_sure_to_win_is_not_measured(dtype, sizes, ours, xla, lost):
    batch, m, n, k = sizes
    strides = {"a_strides": (m * k, k, 1), "b_strides": (n * k, k, 1), "d_strides": (m * n, n, 1)}
    out_dtype = "f32" if dtype == "tf32" else dtype
    problem = GemmProblem(batch, m, n, k, **strides, dtype=dtype, out_dtype=out_dtype, swapped=False)
    assert is_lost(problem, ours, xla) == lost
