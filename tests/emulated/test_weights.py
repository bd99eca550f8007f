"""Products with weights in the emulator: seeded random problems, exact, with the race checker on and memory guarded.

What is compiled are rows of our own, with fewer stages than the table's.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest

from jax_moye._kernels.configs import weights_configs
from tests.emulated import weights_cases
from tests.emulated.driver import build, run_cases
from tests.emulated.weights_cases import KINDS

# Each dtype, and each tile of both operands' types.
ROWS = (
    "{sm90_weights, bf16xs8, f32, {16, 128, 128}, 2, {1, 1}, 16}",
    "{sm90_weights, bf16xs4, f32, {64, 256, 128}, 2, {1, 1}, 16}",
    "{sm90_weights, bf16xe4m3, f32, {32, 128, 128}, 2, {1, 1}, 16}",
    "{sm90_weights, f16xs8, f32, {64, 128, 128}, 2, {1, 1}, 16}",
    "{sm90_weights, f16xs4, f32, {32, 256, 128}, 3, {1, 1}, 16}",
    "{sm90_weights, f16xe4m3, f32, {16, 128, 128}, 3, {1, 1}, 16}",
)
CASES = 90  # of each row: 540 together
GROUPS = (64, 128, 192, 0)  # 0: all of k is one
MOST_PARTS = 8


@dataclasses.dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    options: dict[str, int | str]

    @property
    def groups(self) -> int:
        size = int(self.options["group"]) or max(self.k, 1)
        return -(-self.k // size)

    def line(self) -> str:
        """The driver's arguments."""
        words = (f"{key}={value}" for key, value in self.options.items())
        return " ".join([str(self.m), str(self.n), str(self.k), *words])


def fields_of(row: str) -> tuple[str, int]:
    """dtype and rows of a tile."""
    _, dtype, _, m, *_ = re.findall(r"\w+", row)
    return dtype, int(m)


def multiple_of_n(row: str) -> int:
    """Columns of 16 bytes of weights, which TMA's rows are multiples of."""
    return 32 if "s4" in row else 16


def random_case(rng: np.random.Generator, row: str) -> Case:
    dtype, _ = fields_of(row)
    kind = rng.random()
    k = 0 if kind < 0.05 else 8 * int(rng.integers(1, 17)) if kind < 0.3 else 8 * int(rng.integers(1, 90))
    n = multiple_of_n(row) * int(rng.integers(1, 320 // multiple_of_n(row) + 1))
    options: dict[str, int | str] = dict(
        group=int(rng.choice(GROUPS)),
        parts=int(rng.integers(1, MOST_PARTS + 1)) if rng.random() < 0.6 else 1,
        signed=int(rng.random() < 0.5),  # of weights that are not of 4 bits without a meaning
        zeros=int(rng.random() < 0.5),
        scales=str(rng.choice(["f32", "bf16", "f16"])),
        out="f32" if rng.random() < 0.5 else dtype.split("x")[0],
        special=int(rng.random() < 0.3),
        mode=str(rng.choice(["lazy", "eager", "random"])),
        threads=str(rng.choice(["fifo", "lifo", "random"])),
        multiprocessors=int(rng.integers(1, 6)),
        seed=int(rng.integers(1000)),
        data=int(rng.integers(1000)),
    )
    return Case(int(rng.integers(1, 81)), n, k, options)


def cases_of(row: str, count: int = CASES) -> list[Case]:
    rng = np.random.default_rng(ROWS.index(row))
    return [random_case(rng, row) for _ in range(count)]


def check(binary, lines: list[str]) -> None:
    reports = run_cases(binary, lines)
    wrong = [f"{report}: {line}" for line, report in zip(lines, reports, strict=True) if report != "ok"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(lines)} cases", *wrong])


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: "{}_{}".format(*fields_of(row)))
def row(request):
    return request.param


@pytest.fixture(scope="module")
def binary(row, tmp_path_factory):
    return build(tmp_path_factory.mktemp("row"), row)


def test_random_problems(binary, row):
    """Exact sums; NaN and infinities of a group of one column reach no other column."""
    check(binary, [case.line() for case in cases_of(row)])


def test_what_random_problems_are():
    """The cases have what they are to find, of each dtype."""
    assert len({fields_of(row)[0] for row in ROWS}) == 6
    for of_16_bits in ("bf16", "f16"):
        assert {fields_of(row)[1] for row in ROWS if fields_of(row)[0].split("x")[0] == of_16_bits} == {16, 32, 64}
    cases = [(row, case) for row in ROWS for case in cases_of(row)]
    assert len(cases) == len({(row, case.line()) for row, case in cases}) >= 500
    for row in ROWS:
        own = cases_of(row)
        tile = fields_of(row)[1]
        for key, count in dict(group=4, parts=8, signed=2, zeros=2, scales=3, out=2, special=2, mode=3).items():
            assert len({case.options[key] for case in own}) == count, key
        assert sum(case.k == 0 for case in own) > 0
        assert sum(case.k % 128 > 0 for case in own) > 20
        # The second half of the last stage lies behind k.
        assert sum(0 < case.k % 128 <= 64 for case in own) > 10
        assert sum(case.groups > 3 for case in own) > 10
        # Parts that have no k, and parts that end within a group.
        assert sum(-(-case.k // 128) < int(case.options["parts"]) for case in own) > 10
        assert sum(case.options["group"] in (0, 192) and case.options["parts"] != 1 for case in own) > 10
        assert sum(case.m % tile > 0 for case in own) > 20
        assert sum(case.m < 8 for case in own) > 0
        assert sum(case.n > 256 for case in own) > 0
        assert sum(case.n % 128 > 0 for case in own) > 20
    assert any(case.m > tile for row, case in cases for tile in [fields_of(row)[1]] if tile == 64)


def test_sizes_around_those_of_tiles(binary, row):
    """Rows and columns at the ends of tiles, k at those of halves of a stage."""
    tile, columns = fields_of(row)[1], 256 if "s4" in row else 128
    step = multiple_of_n(row)
    rows = (1, 7, 8, 9, tile - 1, tile, tile + 1)
    check(binary, [f"{m} {columns + n} 72 zeros=1" for m, n in itertools.product(rows, (-step, 0, step))])
    ks = (8, 56, 64, 72, 120, 128, 136, 184, 192, 200, 248, 256, 264, 320, 384, 640)
    check(binary, [f"9 {step} {k} group={group} zeros=1" for k, group in itertools.product(ks, GROUPS)])


def test_parts(binary, row):
    """As many parts as there are, of k that they divide, of k that they do not, and of less than they are."""
    n, parts = multiple_of_n(row), range(1, MOST_PARTS + 1)
    problems = itertools.product((0, 8, 200, 648, 1024), parts, (64, 192, 0))
    check(binary, [f"5 {n} {k} parts={p} group={g} zeros=1 signed=0" for k, p, g in problems])


def test_several_os_threads(binary):
    """CTAs that run at the same time."""
    lines = [f"70 288 392 parts={parts} zeros=1 workers=3 multiprocessors=5" for parts in (1, 3, 8)]
    check(binary, lines)


@pytest.mark.parametrize("config", weights_configs(), ids=lambda config: config.name)
def test_generated_products(config):
    """A few of those that tests/gpu/test_gpu_weights.py has, through the custom call."""
    rng = np.random.default_rng(sum(map(ord, config.name)))
    for _ in range(6):
        assert weights_cases.check(config, rng, weights_cases.shape_of(rng, config.dtype, 700), KINDS, 1, emulated=True)
