"""What the order of tiles costs: `jax_moye.layout.schedule`. The order itself is held against C++'s elsewhere."""

from __future__ import annotations

import doctest

import pytest

from jax_moye.layout import errors, schedule
from jax_moye.layout.schedule import product_traffic, schedule_traffic


def test_doctests():
    result = doctest.testmod(schedule)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.parametrize("super_m", [1, 3, 8, 40])
def test_with_square_tiles_elements_are_loads_of_tiles(super_m):
    counted = product_traffic(16 * 64, 20 * 64, 96, (64, 64), super_m, resident=24)
    tiles = schedule_traffic(16, 20, super_m, resident=24)
    assert (counted.memory, counted.l2) == (tiles.memory * 64 * 96, tiles.l2 * 64 * 96)


def test_one_cta_at_a_time_finds_nothing_in_the_cache():
    found = product_traffic(256, 512, 64, (64, 128), resident=1)
    assert found.l2 == 0
    assert found.memory == 4 * 4 * (64 + 128) * 64


def test_all_at_one_time_load_each_matrix_once():
    found = product_traffic(256, 512, 64, (64, 128), resident=16)
    assert found.memory == (256 + 512) * 64


def test_the_last_tiles_may_reach_beyond():
    assert product_traffic(65, 64, 32, (64, 64), resident=2) == product_traffic(128, 64, 32, (64, 64), resident=2)


def test_numbers_are_checked():
    with pytest.raises(errors.InvalidShape):
        product_traffic(64, 64, 64, (64, 64), super_m=0)
    with pytest.raises(errors.InvalidType):
        product_traffic(64, 64, 64, (64, 64), resident=1.5)
