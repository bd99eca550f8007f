"""The order of configs for a problem."""

import itertools
import random

import pytest
from python._selection.problems import example_config, row_major_problem

import jax_moye
from jax_moye._kernels.configs import facts_of
from jax_moye._selection import ranking
from jax_moye._selection.capability import why_not
from jax_moye._selection.cost import predicted_us
from jax_moye._selection.problem import NotServedError, make_problem
from jax_moye._selection.ranking import _best, contenders, rank, select

CONFIGS = jax_moye.configs()


SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 65, 100, 128, 129, 255, 768, 1000, 1023, 4096)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_every_problem_of_a_served_dtype_is_served(dtype, order):
    for m, n, k in itertools.product((1, 2, 3, 8, 17, 64, 129, 4096), repeat=3):
        for batch in (1, 3):
            problem = row_major_problem(m, n, k, batch, dtype, order=order)
            config = select(problem, 90, CONFIGS)
            assert why_not(config, problem, 90) is None
            legal = [row for row in CONFIGS if why_not(row, problem, 90) is None]
            assert predicted_us(config, problem, 90) == min(predicted_us(row, problem, 90) for row in legal)


def test_ranking_is_complete_and_legal_first():
    problem = row_major_problem(64, 64, 33)
    ranked = rank(problem, 90, CONFIGS)
    assert sorted(candidate.config.name for candidate in ranked) == sorted(row.name for row in CONFIGS)
    legal = [candidate.reason is None for candidate in ranked]
    assert legal == sorted(legal, reverse=True)
    assert all(candidate.reason is None or " " in candidate.reason for candidate in ranked)


def test_large_problems_get_large_tiles_and_small_ones_small_tiles():
    tile_m, tile_n, _ = select(row_major_problem(4096, 4096, 4096), 90, CONFIGS).tile
    assert tile_m * tile_n >= 128 * 128
    assert select(row_major_problem(64, 64, 4096), 90, CONFIGS).tile[:2] == (64, 64)
    assert select(row_major_problem(640, 640, 640), 90, CONFIGS).tile[:2] == (64, 64)  # 25 CTAs of 128, or 100 of 64
    assert select(row_major_problem(64, 64, 64, batch=4096), 90, CONFIGS).tile[:2] == (64, 64)


def test_selection_is_a_pure_function():
    problem = row_major_problem(100, 100, 100)
    assert select(problem, 90, CONFIGS) is select(problem, 90, CONFIGS)
    assert rank(problem, 90, CONFIGS) is rank(problem, 90, CONFIGS)


def test_no_config_at_all():
    with pytest.raises(NotServedError, match="no kernel takes bf16 operands"):
        select(row_major_problem(4, 4, 4), 80, ())
    with pytest.raises(NotServedError, match="example: it loads 16 bytes"):
        select(row_major_problem(4, 4, 5), 80, (example_config(),))


def test_operands_are_padded_where_that_is_faster():
    """Rows of odd pitch: padded for TMA first, unless the product is so small that the copy is most of it."""
    padding = {row.name for row in CONFIGS if facts_of(row.kernel).pads}
    in_place = {row.name for row in CONFIGS if row.kernel == "sm80_multistage" and row.alignment == 2}
    if not padding or not in_place:
        pytest.skip("not both kinds of rows in this build")
    assert select(row_major_problem(64, 64, 31), 90, CONFIGS).name not in padding
    for m, n, k in ((4096, 4096, 4095), (16, 4096, 4095), (8192, 8192, 33)):
        assert select(row_major_problem(m, n, k), 90, CONFIGS).name in padding
        assert select(row_major_problem(m, n, k), 80, CONFIGS).name not in padding


def test_a_kernel_without_a_speed_comes_last():
    problem = row_major_problem(256, 256, 256)
    new = example_config(kernel="sm80_new", orders=("NN", "NT", "TN", "TT"))
    known = example_config(orders=("NN", "NT", "TN", "TT"))
    assert [candidate.config for candidate in rank(problem, 90, (new, known))] == [known, new]


def test_a_kernel_without_a_speed_is_timed_where_its_tile_has_the_rows():
    """One config of it, that with the fewest rows, beside the first of the others; alone they are all there is."""
    orders = ("NN", "NT", "TN", "TT")
    new = [example_config(kernel="sm80_new", orders=orders, tile=(rows, 64, 64)) for rows in (1, 4, 16)]
    known = tuple(example_config(orders=orders, tile=(rows, 64, 32)) for rows in (64, 128, 256))
    table = (*new, *known)

    def timed(m, table=table):
        return contenders(row_major_problem(m, 256, 256), 90, table, most=2)

    first = [candidate.config for candidate in rank(row_major_problem(3, 256, 256), 90, known)][:2]
    assert timed(3) == [*first, new[1]]
    assert timed(1)[2:] == [new[0]]
    assert timed(16)[2:] == [new[2]]
    assert timed(17) == [candidate.config for candidate in rank(row_major_problem(17, 256, 256), 90, known)][:2]
    assert len(timed(3, tuple(new))) == 2


def test_a_kernel_without_a_speed_is_timed_where_nobody_loads_more_at_a_time():
    """Of operands of whole words one that loads elements is none to race with."""
    orders = ("NN", "NT", "TN", "TT")
    new = example_config(kernel="sm80_new", orders=orders, tile=(16, 64, 64), alignment=2)
    known = example_config(orders=orders, tile=(64, 64, 32), alignment=2)
    for n, expected in ((256, [known]), (257, [known, new])):
        assert contenders(row_major_problem(8, n, 256), 90, (new, known), most=2) == expected


@pytest.mark.parametrize("kernel", ["sm90_cooperative", "sm90_pingpong"])
def test_a_tile_that_no_gpu_has_timed_comes_last(kernel):
    """However well it divides the problem: 132 tiles of 128x208 are one wave, of 128x128 two."""
    fields = dict(
        kernel=kernel, orders=("NN", "NT", "TN", "TT"), threads=384, smem_bytes=200_000, min_arch=90, max_arch=90
    )
    untimed = example_config(**fields, tile=(128, 208, 64), stages=4)
    timed = example_config(**fields, tile=(128, 128, 64), stages=5)
    for m, n, k in ((12 * 128, 11 * 208, 4096), (128, 208, 8), (8, 8, 0), (4096, 4096, 4096)):
        ranked = rank(row_major_problem(m, n, k), 90, (untimed, timed))
        assert [candidate.config for candidate in ranked] == [timed, untimed], (m, n, k)
        assert select(row_major_problem(m, n, k), 90, (untimed,)) is untimed


def test_the_best_is_the_first_of_the_ranking():
    """select() does not sort the table; what it finds is what explain() lists first."""
    rng = random.Random(3)
    found = 0
    for _ in range(300):
        m, n, k = (rng.choice(SIZES) for _ in range(3))
        dtype = rng.choice(("bf16", "f16", "f32", "f64", "tf32", "s8", "e4m3"))
        out = {"tf32": "f32", "s8": "s32", "e4m3": "f32"}.get(dtype, dtype)
        problem = make_problem("mk,kn->mn", (m, k), (k, n), dtype, out)
        arch = rng.choice((80, 90))
        first = rank(problem, arch, CONFIGS)[0]
        assert _best(problem, arch, CONFIGS) is (first.config if first.reason is None else None)
        found += first.reason is None
    assert found > 200


def test_a_selection_is_kept(monkeypatch):
    problem = make_problem("mk,kn->mn", (72, 88), (88, 104), "bf16", "bf16")
    first = ranking.select(problem, 90, CONFIGS)
    monkeypatch.setattr(ranking, "predicted_us", None)
    monkeypatch.setattr(ranking, "why_not", None)
    again = make_problem("mk,kn->mn", (72, 88), (88, 104), "bf16", "bf16")
    assert ranking.select(again, 90, CONFIGS) is first
