"""Two right-hand operands of every group in one launch: seeded random problems, as in test_grouped.py.

d = relu(2 a b) * (a second_b), m being ragged: exact integers, with the race checker on and memory guarded.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest

from tests.emulated.driver import build, run_cases
from tests.emulated.test_grouped import INT32_MAX, INT32_MIN, KINDS, MAX_GROUPS, Case, check, random_case

ROWS = {
    "64x128": "{sm90_grouped, bf16, f32, {64, 128, 64}, 3, {1, 1}, 16}",  # rows in boxes of 16
    "128x128": "{sm90_grouped, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}",  # two wgmmas, one above the other
}
ORDERS = ("NN", "NT")
CASES = 63  # of each row and order


def cases_of(row: str, order: str) -> list[Case]:
    rng = np.random.default_rng([7, list(ROWS).index(row), ORDERS.index(order)])
    cases = []
    for _ in range(CASES):
        case = random_case(rng, order)
        options = case.options | {"out": "bf16", "epilogue": 0, "pair": int(rng.integers(1, 3))}
        cases.append(dataclasses.replace(case, options=options))
    return cases


@pytest.fixture(scope="module", params=ROWS)
def row(request):
    return request.param


@pytest.fixture(scope="module")
def binary(row, tmp_path_factory):
    return build(tmp_path_factory.mktemp("row"), ROWS[row])


@pytest.mark.parametrize("order", ORDERS)
def test_random_problems(binary, row, order):
    """With both products as results and without; NaN and infinities of one group reach no other."""
    check(binary, [case.line() for case in cases_of(row, order)])


def test_what_random_problems_are():
    """Every kind of sizes, groups that are empty, those of more than a tile, and rows of no group; columns likewise."""
    for order in ORDERS:
        cases = [case for row in ROWS for case in cases_of(row, order)]
        assert {case.kind for case in cases} == set(KINDS)
        limited = [[max(0, size) for size in case.sizes] for case in cases]
        assert sum(sum(sizes) < case.m for case, sizes in zip(cases, limited, strict=True)) > 10
        assert sum(0 in sizes for sizes in limited) > 10
        assert sum(max(sizes) > 128 for sizes in limited) > 10
        assert sum(case.n > 64 for case in cases) > 10  # more than a tile, whose columns are of both
        assert {MAX_GROUPS} <= {len(case.sizes) for case in cases}
        for key, count in dict(pair=2, special=2, mode=3, threads=3, multiprocessors=5).items():
            assert len({case.options[key] for case in cases}) == count, key


@pytest.mark.parametrize("order", ORDERS)
def test_sizes_around_those_of_tiles(binary, order):
    sizes = itertools.product((0, 1, 63, 64, 65, 127, 129), repeat=2)
    check(binary, [f"190 72 16 order={order} sizes={x},{y} out=bf16 pair=2 special=1" for x, y in sizes])


@pytest.mark.parametrize("order", ORDERS)
def test_extreme_sizes(binary, order):
    """No k, one row, as many groups as there is room for, sizes that overflow their sums, one that has all rows."""
    sizes = ("0", "1", "200", f"{INT32_MAX},{INT32_MAX}", f"{INT32_MIN},{INT32_MAX}", "-1,-1", "0,0,600,0")
    many = ("1," * (MAX_GROUPS - 1) + "1", "0," * (MAX_GROUPS - 1) + "9")
    shapes = ("1 8 0", "70 72 0", "1 8 8", "600 8 8")
    problems = [*itertools.product(shapes, sizes), *itertools.product(shapes[1:], many)]
    check(binary, [f"{shape} order={order} sizes={words} out=bf16 pair=2" for shape, words in problems])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("order=NN out=f32", "d of two b is stored by TMA: 16-bit elements, rows of 16 bytes"),
        ("order=TN out=bf16", "rows of d are not of 16 bytes, or .*, or takes no second b"),
    ],
    ids=["f32", "ragged k"],
)
def test_what_no_kernel_makes_of_two(binary, words, message):
    """Refused before anything runs."""
    (report,) = run_cases(binary, [f"16 16 16 sizes=9,7 pair=1 {words}"])
    assert report.startswith("error: ")
    assert re.search(message, report), report
