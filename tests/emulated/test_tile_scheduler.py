"""The order in which CTAs take the tiles of d."""

from __future__ import annotations

import pathlib
import subprocess

import numpy as np
import pytest

import jax_moye
from jax_moye.layout.schedule import Traffic, schedule_traffic, tile_coord, wave_traffic, waves
from tests import cxx
from tests.emulated.problems import Problem
from tests.emulated.test_matrix import check_exact


def number_of_order(tiles_m: int, tiles_n: int, super_m: int) -> int:
    """What tile_scheduler.cc prints."""
    tile = np.arange(tiles_m * tiles_n)
    m, n = tile_coord(tile, tiles_m, tiles_n, super_m)
    code = (m * 64 + n + 1).astype(np.uint64)
    return int(1 + ((tile + 1).astype(np.uint64) * code * code).sum(dtype=np.uint64))


def test_every_tile_once_and_as_in_python():
    """A bijection in C++, for all grids up to 64 x 64 and super_m 1 to 16, and the same order in Python."""
    binary = cxx.build("tile_scheduler", [pathlib.Path(__file__).with_name("tile_scheduler.cc")])
    done = subprocess.run([binary], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-500:]
    of_cxx = iter(map(int, done.stdout.split()))
    for super_m in range(1, 17):
        for m in range(1, 65):
            for n in range(1, 65):
                assert next(of_cxx) == number_of_order(m, n, super_m), (m, n, super_m)
    assert next(of_cxx, None) is None


def test_one_number_or_many():
    """tile_coord of an array is that of its elements."""
    for m, n, super_m in ((5, 3, 2), (7, 5, 8), (13, 2, 4)):
        of_array = np.stack(tile_coord(np.arange(m * n), m, n, super_m), axis=1).tolist()
        assert [tuple(coord) for coord in of_array] == [tile_coord(i, m, n, super_m) for i in range(m * n)]


def test_traffic_of_the_seed():
    """Four CTAs in a row load 5 tiles from memory and 3 from L2; in a square 4 and 4."""
    assert wave_traffic(waves(2, 4, 1, 4)[0]) == Traffic(memory=5, l2=3)
    assert wave_traffic(waves(2, 4, 2, 4)[0]) == Traffic(memory=4, l2=4)


@pytest.mark.parametrize(("m", "n", "resident"), [(32, 32, 132), (7, 40, 16), (33, 5, 24)])
def test_traffic_counts_every_load(m, n, resident):
    for super_m in (1, 3, 8, 16):
        traffic = schedule_traffic(m, n, super_m, resident)
        assert traffic.memory + traffic.l2 == 2 * m * n
        assert traffic.memory >= m + n
    # All at one time: every row and column of tiles once, in any order.
    assert schedule_traffic(m, n, 8, m * n) == Traffic(m + n, 2 * m * n - m - n)


def test_more_rows_of_tiles_than_a_group():
    config = next(
        c for c in jax_moye.configs() if c.kernel == "sm80_multistage" and c.alignment == 16 and c.tile[0] == 64
    )
    for order in ("NN", "TT"):
        check_exact(config, Problem(9 * 64 + 1, 3 * 64, 24, order, batch=2))
