"""Products of groups whose rows are stored elsewhere: seeded random problems, as in test_grouped.py.

Rows of d are in an order that is drawn, and some lie outside; exact integers, with the race checker on and memory
guarded. Other dtypes have theirs in test_grouped_dtypes.py.
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
    "64x128": "{sm90_grouped, bf16, f32, {64, 128, 64}, 3, {1, 1}, 16}",
    # Two wgmmas, one above the other; columns that no box of the epilogue divides.
    "128x80": "{sm90_grouped, bf16, f32, {128, 80, 64}, 2, {1, 1}, 16}",
}
ORDERS = ("NN", "NT")
CASES = 45  # of each row and order


def cases_of(row: str, order: str) -> list[Case]:
    rng = np.random.default_rng([11, list(ROWS).index(row), ORDERS.index(order)])
    cases = []
    for _ in range(CASES):
        case = random_case(rng, order)
        options = case.options | {"d_rows": int(rng.integers(1, 3))}
        if row == "64x128" and rng.random() < 0.4:
            options |= {"out": "bf16", "epilogue": 0, "pair": int(rng.integers(1, 3))}
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
    """With epilogues and two right-hand operands, too; what is outside d is not stored, and nothing else is missing."""
    check(binary, [case.line() for case in cases_of(row, order)])


def test_what_random_problems_are():
    """Each row once, or some outside; groups of all sorts, and rows of none."""
    for order in ORDERS:
        cases = [case for row in ROWS for case in cases_of(row, order)]
        assert {case.kind for case in cases} == set(KINDS)
        limited = [[max(0, size) for size in case.sizes] for case in cases]
        assert sum(sum(sizes) < case.m for case, sizes in zip(cases, limited, strict=True)) > 10
        assert sum(0 in sizes for sizes in limited) > 10
        assert sum(max(sizes) > 64 for sizes in limited) > 10  # more than a tile
        assert {MAX_GROUPS} <= {len(case.sizes) for case in cases}
        assert {-(-case.k // 64) for case in cases} >= {1, 2, 3}
        counts = dict(d_rows=2, out=2, epilogue=2, special=2, mode=3, threads=3, multiprocessors=5)
        for key, count in counts.items():
            assert len({case.options[key] for case in cases}) == count, key
        assert {case.options.get("pair", 0) for case in cases} == {0, 1, 2}


@pytest.mark.parametrize("order", ORDERS)
def test_extreme_sizes(binary, order):
    """No k, no row of a group, sizes whose sums overflow, as many groups as there is room for."""
    sizes = ("0", "200", f"{INT32_MAX},{INT32_MAX}", f"{INT32_MIN},{INT32_MAX}", "1," * (MAX_GROUPS - 1) + "1")
    shapes = ("1 8 0", "70 8 0", "1 8 8", "300 8 8")
    problems = itertools.product(shapes, sizes)
    check(binary, [f"{m} order={order} sizes={s} d_rows=1 special=1" for m, s in problems])


def test_rows_further_apart_than_they_are_long(binary):
    """Indices count rows, whatever lies between them."""
    words = "order=NT sizes=70,0,1,64,33 d_rows=1 pad=24 d_pad=24"
    check(binary, [f"200 136 136 {words} out={out}" for out in ("bf16", "f32")])


def test_every_operand_of_a_row_is_its_own(binary):
    """Bias and residual are of the product's rows, wherever these are stored."""
    words = "order=NN sizes=70,0,1,64,33,32 epilogue=1"
    kinds = itertools.product((1, 2), ("bf16", "f32"))
    check(binary, [f"200 136 136 {words} d_rows={d} out={out}" for d, out in kinds])


def test_what_cannot_be_stored(binary):
    """Rows that are not of 16 bytes: refused before anything runs, as in order."""
    report = run_cases(binary, ["16 12 16 order=NT sizes=9,7 out=bf16 d_rows=1"])[0]
    assert re.match(r"error: rows of d are not of 16 bytes", report), report


def test_several_os_threads(binary):
    """CTAs that run at the same time."""
    words = "sizes=70,0,1,64,33 d_rows=1 workers=3 multiprocessors=5"
    check(binary, [f"200 136 136 order={order} {words}" for order in ORDERS])
