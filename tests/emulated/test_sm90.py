"""The Hopper kernels in the emulator: rings of every length, grids, clusters and schedules, over tiles small enough.

What is compiled here are rows of our own, with the parts that the table's rows have and fewer elements. All runs have
the race checker on, operands that end at a guard page, NaN in the gaps between their rows, and exact integers.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest

import jax_moye
from tests.emulated.driver import build, run_cases
from tests.emulated.emulate import emulate
from tests.emulated.problems import ORDERS, Problem, make_call


@dataclasses.dataclass(frozen=True)
class Row:
    kernel: str
    dtype: str
    tile: tuple[int, int, int]
    stages: int
    cluster: tuple[int, int] = (1, 1)
    alignment: int = 16

    @property
    def parts(self) -> int:
        """CTAs that share one tile and split k."""
        return self.cluster[1] if self.kernel == "split_k" else 1

    def in_its_orders(self, case: str) -> str:
        """A case in an order that the row takes: some take no b that is contiguous along k."""
        if self.dtype != "tf32":
            return case
        return re.sub(r"order=(.)T", r"order=\1N", case) if "order=" in case else f"{case} order=TN"

    def text(self) -> str:
        """As the table has it."""
        m, n, k = self.tile
        cluster_m, cluster_n = self.cluster
        return (
            f"{{sm90_{self.kernel}, {self.dtype}, f32, {{{m}, {n}, {k}}}, {self.stages}, "
            f"{{{cluster_m}, {cluster_n}}}, {self.alignment}}}"
        )

    def __str__(self) -> str:
        (m, n, _), (cluster_m, cluster_n) = self.tile, self.cluster
        return f"{self.kernel}_{self.dtype}_{m}x{n}_s{self.stages}_c{cluster_m}x{cluster_n}"


ROWS = (
    Row("cooperative", "bf16", (128, 64, 64), 3, (2, 1)),
    # Two wgmmas of each consumer, one above the other; columns that no box and no chunk of the epilogue divides.
    Row("cooperative", "bf16", (256, 80, 64), 2, (1, 2)),
    Row("cooperative", "bf16", (64, 128, 64), 3),  # consumers side by side along n
    Row("cooperative", "f16", (192, 192, 64), 2),  # three consumers; six boxes of f32 through three of staging
    Row("cooperative", "e5m2", (128, 64, 128), 2, alignment=1),  # operands packed first, sums promoted
    Row("cooperative", "e4m3xe5m2", (128, 64, 128), 2, alignment=1),
    Row("pingpong", "bf16", (64, 64, 64), 3),
    Row("pingpong", "f16", (128, 64, 64), 2, (2, 1)),
    Row("pingpong", "bf16", (64, 112, 64), 2, (2, 1)),  # such columns, of which each CTA loads a part
    Row("pingpong", "bf16", (64, 192, 64), 2, (1, 2)),
    Row("split_k", "bf16", (64, 64, 64), 2, (1, 4)),
    Row("split_k", "bf16", (64, 64, 64), 2, (1, 3)),  # the ranks' shares of the sums differ
    Row("split_k", "f16", (128, 64, 64), 3, (1, 2)),  # two consumers, who put their sums where the other's stages were
    Row("transposed", "tf32", (64, 128, 32), 3),  # each warp that turns stages has one
    Row("split_k", "tf32", (64, 128, 32), 3, (1, 2)),
    Row("split_k", "tf32", (128, 128, 32), 3, (1, 3)),  # shares of the sums that begin inside a row
)
OUT_DTYPES = ("bf16", "f32", "f16")


@pytest.fixture(scope="module", params=ROWS, ids=str)
def row(request, tmp_path_factory):
    """A row and its program."""
    return request.param, build(tmp_path_factory.mktemp("row"), request.param.text())


def line(sizes, **options) -> str:
    """A case: the driver's arguments."""
    return " ".join([*map(str, sizes), *(f"{key}={value}" for key, value in options.items())])


def check(row, *lines: str) -> None:
    """Runs cases in one process: one for each costs a third more."""
    config, program = row
    lines = tuple(map(config.in_its_orders, lines))
    reports = run_cases(program, lines)
    wrong = [f"{report}: {config} {case}" for case, report in zip(lines, reports, strict=True) if report != "ok"]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(lines)} cases", *wrong])


def of_cluster(config: Row) -> tuple[int, int]:
    """Rows and columns of d that a cluster computes at a time."""
    return config.tile[0] * config.cluster[0], config.tile[1] * config.cluster[1] // config.parts


@pytest.mark.parametrize("multiprocessors", (1, 2, 3, 4))
def test_k_tiles(row, multiprocessors):
    """0 to 2 * stages + 1 tiles of k, whole ones and a piece, with three tiles of d per CTA at least.

    Tiles of d are one more than the CTAs share out evenly, so that they end at different times; a wrong phase, or one
    that starts anew with a tile, meets every remainder of the k-tiles by the stages. CTAs that split k have as many
    each, or one less, or none; they stay for one tile, whatever the number of multiprocessors.
    """
    config, _ = row
    if config.parts > 1 and multiprocessors > 1:
        pytest.skip("one CTA for each part of a tile")
    m, n = of_cluster(config)
    clusters = max(1, multiprocessors // (config.cluster[0] * config.cluster[1]))
    lines = []
    for k_tiles in range(config.parts * (2 * config.stages + 1) + 1):
        turn = k_tiles + multiprocessors
        k = max(0, config.tile[2] * k_tiles - (0, 3, 63)[turn % 3])
        # TMA stores bf16 and f16 where d's pitch is a multiple of 16 bytes, else threads do.
        options = dict(order=ORDERS[turn % 4], out=OUT_DTYPES[turn % 3], multiprocessors=multiprocessors)
        lines.append(line((m - turn % 2 * 5, n - turn // 2 % 2 * 8, k), batch=3 * clusters + 1, **options))
    check(row, *lines)


@pytest.mark.parametrize("order", ORDERS)
def test_tails(row, order):
    """Sizes around those of tiles, clusters and boxes; in some, CTAs of a cluster have nothing of d, or of a and b."""
    config, _ = row
    tile_m, tile_n, tile_k = config.tile
    (m, n), k = of_cluster(config), tile_k * config.stages * config.parts
    problems = [
        (1, 1, 1),
        (7, 9, 8),
        (tile_m, tile_n, tile_k),
        (tile_m + 1, tile_n - 1, tile_k + 1),
        (tile_m - 1, tile_n + 1, 17),
        (m + 1, n + 1, k + 1),
        (m - 1, n - 8, k - 1),
        (m + tile_m, n + tile_n, 7),
        (2 * m + 3, 9, tile_k),
        (3, 2 * n + 3, 2),
    ]
    lines = [
        line(sizes, order=order, out=out, pad=index % 3 * 5, d_pad=index % 4, batch=1 + index % 5 // 4)
        for index, (sizes, out) in enumerate(itertools.product(problems, OUT_DTYPES))
        if index % 2 == 0 or sizes[0] > m or out == "bf16"
    ]
    check(row, *lines)


@pytest.mark.parametrize("out", OUT_DTYPES)
def test_stores(row, out):
    """Where TMA stores d and where threads do, by its pitch: 16 bytes, 8, 4, 2."""
    config, _ = row
    m, n = of_cluster(config)
    pitches = ((n, 0), (n - 8, 16), (n, 4), (n - 2, 4), (n - 1, 0), (n + 9, 8), (n - 1, 1))
    check(row, *(line((m + 65, columns, 70), out=out, d_pad=d_pad, batch=2) for columns, d_pad in pitches))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("broadcast", ("a", "b"))
def test_broadcast_batch(row, order, broadcast):
    config, _ = row
    m, n = of_cluster(config)
    check(row, line((m - 3, n + 3, 130), order=order, broadcast=broadcast, batch=3, out="bf16"))


@pytest.mark.parametrize("out", OUT_DTYPES)
def test_epilogue(row, out):
    """alpha, beta, c, bias, activation, residual and the pre-activation, over several tiles."""
    config, _ = row
    m, n = of_cluster(config)
    lines = [
        line(sizes, epilogue=epilogue, out=out, d_pad=d_pad, batch=2)
        for sizes, d_pad in (((m + 7, n - 3, 140), 0), ((m - 1, n, 30), 8), ((17, 2 * n + 1, 0), 1))
        for epilogue in (1, 2)  # with and without c
    ]
    check(row, *lines)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "eager"},
        {"mode": "eager", "threads": "lifo"},
        {"mode": "lazy", "threads": "lifo"},
        {"mode": "lazy", "threads": "random", "seed": 7},
        *({"mode": "random", "threads": "random", "seed": seed} for seed in range(1, 9)),
        {"mode": "random", "threads": "fifo", "seed": 9},
        {"mode": "lazy", "workers": 2},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_schedules(row, options):
    """The answer does not depend on when asynchronous copies and wgmmas take place, or which thread runs first."""
    config, _ = row
    m, n = of_cluster(config)
    k = (config.stages + 1) * config.parts * config.tile[2] + 3
    sizes = (m + 1, n + 8, k)
    check(row, *(line(sizes, batch=2, multiprocessors=3, out=out, **options) for out in ("bf16", "f32")))


@pytest.mark.parametrize("early", [1, 2, 3], ids=["a", "b", "both"])
def test_operands_that_last_are_read_early(row, early):
    """Before the kernel ahead has ended, and no other array; packed operands never are, nor is a tile that has no k."""
    config, _ = row
    m, n = of_cluster(config)
    lines = []
    for k in (0, 30, (2 * config.stages + 1) * config.parts * config.tile[2] + 3):
        for order, schedule in (("NN", {"mode": "eager"}), ("TT", {"mode": "random", "threads": "random", "seed": k})):
            options = dict(order=order, early=early, batch=2, epilogue=1, out="bf16", **schedule)
            lines.append(line((m + 1, 2 * n + 8, k), **options))
    check(row, *lines)


def test_one_launch_after_another(row):
    """Each launch has its own maps: operands of the same sizes at other addresses."""
    config, _ = row
    m, n = of_cluster(config)
    check(row, line((m, n, 100), launches=3, out="bf16"))


@pytest.mark.parametrize("order", ORDERS)
def test_nan_and_infinity(row, order):
    """They reach their row and column of d, and nothing else: what lies beside a tile is filled with zeros."""
    config, _ = row
    m, n = of_cluster(config)
    check(row, *(line((m - 9, n + 7, 75), order=order, special=1, out=out) for out in OUT_DTYPES))


def test_multiprocessors_are_the_grid_of_persistent_kernels():
    persistent = ("sm90_cooperative", "sm90_pingpong")
    configs = [c for c in jax_moye.configs() if c.kernel in persistent and c.dtype == "bf16" and c.cluster == (1, 1)]
    config = min(configs, key=lambda config: config.tile[0] * config.tile[1])
    tile_m, tile_n, _ = config.tile
    for multiprocessors in (1, 3, 4):
        call = make_call(config, Problem(tile_m, tile_n, 8, "NT", batch=4), "bf16")
        report = emulate(config, call, multiprocessors=multiprocessors)
        assert report["ok"], report["message"]
        assert report["counters"]["ctas"] == multiprocessors
        np.testing.assert_array_equal(
            call.result().astype(np.float64), np.matmul(call.values_a.astype(np.float64), call.values_b)
        )
    with pytest.raises(ValueError, match="multiprocessors is 0, not positive"):
        emulate(config, call, multiprocessors=0)
