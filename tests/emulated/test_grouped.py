"""Products of groups in the emulator: seeded random problems, exact, with the race checker on and memory guarded.

What is compiled are rows of our own, with smaller tiles than the table's.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.emulated.driver import build, run_cases

ROWS = (
    "{sm90_grouped, bf16, f32, {64, 64, 64}, 3, {1, 1}, 16}",
    # Two wgmmas of a consumer, one above the other; columns that no box of the epilogue divides.
    "{sm90_grouped, bf16, f32, {128, 80, 64}, 2, {1, 1}, 16}",
)
ORDERS = ("NN", "NT", "TN")
CASES = 84  # of each row and order: 504 together
MAX_GROUPS = 512
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def cut(rng: np.random.Generator, length: int, groups: int) -> np.ndarray:
    """Sizes whose sum is `length`, many of them zero where groups are many."""
    ends = np.sort(rng.integers(0, length + 1, groups - 1))
    return np.diff(ends, prepend=0, append=length)


def into_one(rng: np.random.Generator, length: int, groups: int) -> np.ndarray:
    sizes = np.zeros(groups, int)
    sizes[rng.integers(groups)] = length
    return sizes


def wild(rng: np.random.Generator, length: int, groups: int) -> np.ndarray:
    """Sizes that nobody should pass: what is below zero counts as zero, and groups end where the length does."""
    sizes = rng.integers(-length - 1, length // 2 + 2, groups)
    return np.where(rng.random(groups) < 0.1, rng.choice([INT32_MIN, -1, INT32_MAX], groups), sizes)


# How the sizes of groups are chosen: (rng, length, groups) -> sizes.
KINDS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "cut": cut,
    "cut_short": lambda rng, length, groups: cut(rng, int(rng.integers(length + 1)), groups),
    "cut_long": lambda rng, length, groups: cut(rng, length + int(rng.integers(1, length + 2)), groups),
    "edges": lambda rng, length, groups: rng.choice([0, 1, 63, 64, 65, 127, 128, 129], groups),  # of tiles
    "few_and_empty": lambda rng, length, groups: np.where(rng.random(groups) < 0.7, 0, rng.integers(0, 90, groups)),
    "ones": lambda rng, length, groups: np.ones(groups, int),
    "into_one": into_one,
    "empty": lambda rng, length, groups: np.zeros(groups, int),
    "wild": wild,
}
# The last group of these ends where the length does.
FILLING = ("cut", "cut_long", "into_one")


@dataclasses.dataclass(frozen=True)
class Case:
    order: str
    m: int
    n: int
    k: int
    sizes: tuple[int, ...]
    kind: str
    options: dict[str, int | str]

    @property
    def length(self) -> int:
        """Of what is cut into groups."""
        return self.k if self.order == "TN" else self.m

    def line(self) -> str:
        """The driver's arguments."""
        words = dict(order=self.order, sizes=",".join(map(str, self.sizes)), **self.options)
        return " ".join([str(self.m), str(self.n), str(self.k), *(f"{key}={value}" for key, value in words.items())])


def random_groups(rng: np.random.Generator) -> int:
    kind = rng.random()
    if kind < 0.75:
        return int(rng.integers(1, 12))
    if kind < 0.9:
        return int(rng.choice([31, 32, 33, 63, 64, 65]))  # a lane of a warp has one group, or two
    return int(rng.choice([100, 257, 511, MAX_GROUPS]))


def random_case(rng: np.random.Generator, order: str) -> Case:
    groups = random_groups(rng)
    kind = str(rng.choice(list(KINDS)))
    most = 200 if groups < 12 else 72 if groups < 100 else 24  # of what each group has a matrix of

    def dense(most: int) -> int:
        return 8 * int(rng.integers(1, most // 8 + 1))

    if order == "TN":
        m, n, k = dense(most), dense(most), int(rng.integers(0, 201))
    else:
        m, n, k = int(rng.integers(1, 201)), dense(most), dense(most)
    length = k if order == "TN" else m
    sizes = np.clip(KINDS[kind](rng, length, groups), INT32_MIN, INT32_MAX)
    # Behind the last group there is no bias: see test_bias_behind_the_last_group.
    has_epilogue = rng.random() < 0.4 and (order == "TN" or kind in FILLING)
    options: dict[str, int | str] = dict(
        out="bf16" if has_epilogue else str(rng.choice(["bf16", "f32"])),
        epilogue=int(has_epilogue),
        special=int(rng.random() < 0.5),
        pad=int(rng.choice([0, 8])),
        d_pad=int(rng.choice([0, 8])),
        mode=str(rng.choice(["lazy", "eager", "random"])),
        threads=str(rng.choice(["fifo", "lifo", "random"])),
        multiprocessors=int(rng.integers(1, 6)),
        seed=int(rng.integers(1000)),
        data=int(rng.integers(1000)),
    )
    return Case(order, m, n, k, tuple(map(int, sizes)), kind, options)


def cases_of(row: str, order: str, count: int = CASES) -> list[Case]:
    rng = np.random.default_rng([ROWS.index(row), ORDERS.index(order)])
    return [random_case(rng, order) for _ in range(count)]


def check(binary, lines: list[str]) -> None:
    reports = run_cases(binary, lines)
    wrong = [f"{report}: {line}" for line, report in zip(lines, reports, strict=True) if report != "ok"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(lines)} cases", *wrong])


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: re.search(r"\{(\d.*?)\}", row)[1].replace(", ", "x"))
def row(request):
    return request.param


@pytest.fixture(scope="module")
def binary(row, tmp_path_factory):
    return build(tmp_path_factory.mktemp("row"), row)


@pytest.mark.parametrize("order", ORDERS)
def test_random_problems(binary, row, order):
    """Exact integers; what is no group's, and NaN and infinities of one group, reach no other."""
    check(binary, [case.line() for case in cases_of(row, order)])


def test_what_random_problems_are():
    """The cases have what they are to find: every kind with every order, and sizes of all sorts."""
    cases = [case for row, order in itertools.product(ROWS, ORDERS) for case in cases_of(row, order)]
    assert len(cases) == len({case.line() for case in cases}) >= 500
    for order in ORDERS:
        own = [case for case in cases if case.order == order]
        assert {case.kind for case in own} == set(KINDS)
        limited = [[max(0, size) for size in case.sizes] for case in own]
        lengths = [case.length for case in own]
        assert sum(sum(sizes) < length for sizes, length in zip(limited, lengths, strict=True)) > 20
        assert sum(sum(sizes) > length for sizes, length in zip(limited, lengths, strict=True)) > 20
        assert sum(0 in sizes for sizes in limited) > 20
        assert sum(max(sizes) > 64 for sizes in limited) > 10  # more than a tile
        assert {1, MAX_GROUPS} <= {len(case.sizes) for case in own}
        for key, count in dict(out=2, epilogue=2, special=2, mode=3, threads=3, multiprocessors=5).items():
            assert len({case.options[key] for case in own}) == count, key


@pytest.mark.parametrize("order", ORDERS)
def test_sizes_around_those_of_tiles(binary, order):
    """Two groups that end before, at and behind the ends of tiles, and what lies behind them."""
    sizes = itertools.product((0, 1, 63, 64, 65, 127, 128, 129), repeat=2)
    shape = "16 8 190" if order == "TN" else "190 8 16"
    check(binary, [f"{shape} order={order} sizes={x},{y} special=1" for x, y in sizes])


@pytest.mark.parametrize("order", ORDERS)
def test_extreme_sizes(binary, order):
    """The smallest products, no k at all, as many groups as there is room for, and sizes that overflow their sums."""
    many = (
        "1," * (MAX_GROUPS - 1) + "1",
        "0," * (MAX_GROUPS - 1) + "9",
        f"{INT32_MAX}," * (MAX_GROUPS - 1) + "1",
        f"{INT32_MIN}," * (MAX_GROUPS - 1) + "70",
    )
    few = ("0", "1", "200", f"{INT32_MAX},{INT32_MAX},{INT32_MAX}", f"{INT32_MIN},{INT32_MAX}", "-1,-1", "8,-8,8")
    shapes = ("8 8 0", "8 8 1", "8 8 9", "8 8 600") if order == "TN" else ("1 8 0", "70 8 0", "1 8 8", "600 8 8")
    problems = [*itertools.product(shapes, few), *itertools.product(shapes[1:3], many)]
    check(binary, [f"{shape} order={order} sizes={sizes}" for shape, sizes in problems])


@pytest.mark.parametrize("order", ORDERS)
def test_tiles_without_k(binary, order):
    """Nothing but zeros to store, whatever the order in which threads run: consumers still take turns."""
    shape = "64 16 8" if order == "TN" else "256 16 8"
    threads = [f"threads={kind} seed={seed}" for kind in ("fifo", "lifo", "random") for seed in range(5)]
    check(binary, [f"{shape} order={order} sizes=0,0,0,0 multiprocessors=1 {words}" for words in threads])


@pytest.mark.parametrize("order", ["NN", "NT"])
def test_bias_behind_the_last_group(binary, order):
    """Rows of no group have no bias, and nothing behind the last one's is read."""
    check(binary, [f"130 72 136 order={order} sizes=3,0,17,64 out={out} epilogue=1" for out in ("bf16", "f32")])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("n", "options"), [(12, "out=bf16"), (10, "out=f32"), (10, "out=f32 epilogue=1")])
def test_what_tma_cannot_store(binary, order, n, options):
    """Rows that are not of 16 bytes: refused before anything runs."""
    report = run_cases(binary, [f"16 {n} 16 order={order} sizes=9,7 {options}"])[0]
    assert report.startswith("error: rows of d are not of 16 bytes, or this tile leaves no registers"), report


def test_several_os_threads(binary):
    """CTAs that run at the same time."""
    check(binary, [f"200 136 136 order={order} sizes=70,0,1,64,33 workers=3 multiprocessors=5" for order in ORDERS])
