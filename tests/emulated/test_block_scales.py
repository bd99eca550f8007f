"""Products of blocks that have scales, in the emulator: seeded random problems, exact, with the race checker on and
memory guarded.

What is compiled are rows of our own, with fewer stages than the table's.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.emulated.driver import build, run_cases

# Both heights of a tile, of which the lower one is shared along its columns; CTAs that share b's columns. (Planted bugs
# have a third row.)
ROWS = {
    "e4m3_64": "{sm90_cooperative, e4m3, f32_blocks, {64, 128, 128}, 3, {1, 1}, 16}",
    "e5m2xe4m3_c2x1": "{sm90_cooperative, e5m2xe4m3, f32_blocks, {128, 128, 128}, 2, {2, 1}, 16}",
}
CASES = 60  # of each row


def random_case(rng: np.random.Generator) -> str:
    """The driver's arguments."""
    m, n = (int(rng.integers(1, 300)) for _ in range(2))
    options = dict(
        batch=int(rng.choice([1, 1, 2, 3])),
        columns=int(rng.random() < 0.5),
        out=str(rng.choice(["f32", "bf16", "f16"])),
        special=int(rng.random() < 0.3),
        mode=str(rng.choice(["lazy", "eager", "random"])),
        threads=str(rng.choice(["fifo", "lifo", "random"])),
        multiprocessors=int(rng.integers(1, 6)),
        seed=int(rng.integers(1000)),
        data=int(rng.integers(1000)),
    )
    words = (f"{key}={value}" for key, value in options.items())
    return " ".join([str(m), str(n), str(128 * int(rng.integers(0, 6))), *words])


def check(binary, lines: list[str]) -> None:
    reports = run_cases(binary, lines)
    wrong = [f"{report}: {line}" for line, report in zip(lines, reports, strict=True) if report != "ok"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(lines)} cases", *wrong])


@pytest.fixture(scope="module", params=ROWS)
def binary(request, tmp_path_factory):
    return build(tmp_path_factory.mktemp("row"), ROWS[request.param])


def test_random_problems(binary, request):
    """Exact sums; NaN and infinities of a scale reach what they are of, and no other row, column or block."""
    rng = np.random.default_rng(list(ROWS).index(request.node.callspec.params["binary"]))
    check(binary, [random_case(rng) for _ in range(CASES)])


def test_sizes_around_those_of_tiles(binary):
    """Rows and columns at the ends of tiles, of consumers' rows, and of pairs of columns."""
    sizes = itertools.product((1, 8, 63, 64, 65, 128, 129), (1, 2, 127, 128, 129), (0, 1))
    check(binary, [f"{m} {n} 384 columns={columns}" for m, n, columns in sizes])


def test_several_os_threads(binary):
    """CTAs that run at the same time."""
    check(binary, [f"300 290 512 batch=2 columns={columns} workers=3 multiprocessors=5" for columns in (0, 1)])
