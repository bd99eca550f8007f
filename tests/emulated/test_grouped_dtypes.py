"""Products of groups of TF32 and of 8-bit floats: seeded random problems, as in test_grouped.py, whose rows are cut.

Exact integers, with the race checker on and memory guarded; 8-bit floats with scales, and with an epilogue behind them.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from tests.emulated.driver import build
from tests.emulated.test_grouped import INT32_MAX, INT32_MIN, KINDS, MAX_GROUPS, Case, check, random_case

ROWS = {
    "tf32": "{sm90_grouped, tf32, f32, {64, 64, 32}, 3, {1, 1}, 16}",
    # Two wgmmas of a consumer, one above the other; columns that no box of f32 results divides.
    "tf32_128": "{sm90_grouped, tf32, f32, {128, 80, 32}, 2, {1, 1}, 16}",
    "e4m3": "{sm90_grouped, e4m3, f32, {64, 64, 128}, 3, {1, 1}, 16}",  # sums leave the tensor core with every stage
    "e4m3_128": "{sm90_grouped, e4m3, f32, {128, 80, 128}, 2, {1, 1}, 16}",  # of one wgmma after the other
    "e5m2xe4m3": "{sm90_grouped, e5m2xe4m3, f32, {64, 64, 128}, 3, {1, 1}, 16}",
    "e4m3_fast": "{sm90_grouped, e4m3, f32_fast, {128, 80, 128}, 2, {1, 1}, 16}",
}
ORDER = "NT"  # of operands that are not of 16 bits wgmma reads what lies along k
CASES = 42  # of each row


def is_float8(name: str) -> bool:
    return not name.startswith("tf32")


def cases_of(name: str) -> list[Case]:
    rng = np.random.default_rng([11, list(ROWS).index(name)])
    cases = []
    for _ in range(CASES):
        case = random_case(rng, ORDER)
        options = dict(case.options, pad=int(rng.choice([0, 16])), d_rows=int(rng.integers(3)))
        if is_float8(name) and rng.random() < 0.6:
            options |= {"out": "bf16", "scales": 1}
        cases.append(dataclasses.replace(case, k=case.k + int(rng.integers(2)) * 200, options=options))
    return cases


@pytest.fixture(scope="module", params=ROWS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def binary(name, tmp_path_factory):
    return build(tmp_path_factory.mktemp("row"), ROWS[name], order=ORDER)


def test_random_problems(binary, name):
    """NaN and infinities of one group reach no other, and what is behind the last one is zero whatever its scales.

    Rows are stored in their order and elsewhere.
    """
    check(binary, [case.line() for case in cases_of(name)])


def test_what_random_problems_are():
    cases = [(name, case) for name in ROWS for case in cases_of(name)]
    assert {case.kind for _, case in cases} == set(KINDS)
    limited = [[max(0, size) for size in case.sizes] for _, case in cases]
    assert sum(sum(sizes) < case.m for (_, case), sizes in zip(cases, limited, strict=True)) > 10
    assert sum(0 in sizes for sizes in limited) > 10
    assert sum(max(sizes) > 64 for sizes in limited) > 10
    assert sum(case.k > 128 for _, case in cases) > 10  # several stages of 8-bit floats
    assert MAX_GROUPS in {len(case.sizes) for _, case in cases}
    of_scales = [case for name, case in cases if is_float8(name) and "scales" in case.options]
    kinds = {(case.options["epilogue"], case.options["d_rows"]) for case in of_scales}
    assert kinds == set(itertools.product((0, 1), range(3)))
    assert sum(sum(max(0, size) for size in case.sizes) < case.m for case in of_scales) > 5


def test_sizes_around_those_of_tiles(binary, name):
    sizes = itertools.product((0, 1, 63, 64, 65, 127, 129), repeat=2)
    words = "out=bf16 scales=1" if is_float8(name) else "special=1"
    check(binary, [f"190 8 16 order={ORDER} sizes={x},{y} {words}" for x, y in sizes])


def test_extreme_sizes(binary, name):
    """The smallest products, no k at all, as many groups as there is room for, and sizes that overflow their sums."""
    many = ("1," * (MAX_GROUPS - 1) + "1", "0," * (MAX_GROUPS - 1) + "9")
    few = ("0", "1", "200", f"{INT32_MAX},{INT32_MAX}", f"{INT32_MIN},{INT32_MAX}", "-1,-1", "8,-8,8")
    shapes = ("1 8 0", "70 8 0", "1 8 16", "600 8 16")
    problems = [*itertools.product(shapes, few), *itertools.product(shapes[1:3], many)]
    words = "out=bf16 scales=1 epilogue=0" if is_float8(name) else ""
    check(binary, [f"{shape} order={ORDER} sizes={sizes} {words}" for shape, sizes in problems])


def test_orders_of_threads(binary, name):
    """Whatever the order in which threads run, and of several CTAs at the same time."""
    del name
    threads = [f"threads={kind} seed={seed}" for kind in ("fifo", "lifo", "random") for seed in range(4)]
    check(binary, [f"330 136 300 order={ORDER} sizes=70,0,1,64,33 multiprocessors=1 mode=random {x}" for x in threads])
    check(binary, [f"330 136 300 order={ORDER} sizes=70,0,1,64,33 workers=3 multiprocessors=5"])


def test_floats_are_finished(binary, name):
    """Bias, activation and residual, and scales: results of 32 bits, of cut tiles and of several."""
    scales = " scales=1" if is_float8(name) else ""
    shapes = ("190 72 48 sizes=70,0,1,64", "16 16 16 sizes=9,7", "330 200 144 sizes=129,63,65")
    check(binary, [f"{x} order={ORDER} out=f32 epilogue=1{y}" for x in shapes for y in ("", scales)])
