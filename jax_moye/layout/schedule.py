"""The order in which CTAs compute the tiles of D, as `cuda/gemm/tile_scheduler.h` has it, and what it costs.

A tile of D needs a row of tiles of A and a column of tiles of B. Of the CTAs that run at one time, a wave, the first to
need one loads it from memory, and the others find it in the L2 cache. In a row of four CTAs each needs the one row of A
and a column of its own:

>>> wave_traffic([tile_coord(i, 2, 4, super_m=1) for i in range(4)])
Traffic(memory=5, l2=3)

in a square they share rows and columns:

>>> wave_traffic([tile_coord(i, 2, 4, super_m=2) for i in range(4)])
Traffic(memory=4, l2=4)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from jax_moye.layout.errors import InvalidShape, InvalidType


def tile_coord(tile: Any, tiles_m: int, tiles_n: int, super_m: int = 8) -> tuple[Any, Any]:
    """The tile of D, (m, n), that has a number.

    Tiles run down `super_m` rows before they step one column to the right; the last group holds the rows that remain.
    A bijection from [0, tiles_m * tiles_n).

    Args:
      tile: the number, or an array of numbers.
      tiles_m: rows of tiles.
      tiles_n: columns of tiles.
      super_m: rows of a group.

    >>> [tile_coord(i, 3, 2, super_m=2) for i in range(6)]
    [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    """
    group_m = min(super_m, tiles_m)
    first = tile // (group_m * tiles_n) * group_m
    left = tiles_m - first
    rows = np.minimum(group_m, left) if isinstance(tile, np.ndarray) else min(group_m, left)
    in_group = tile - first * tiles_n
    return first + in_group % rows, in_group // rows


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Loads of A and B: of `wave_traffic` in tiles, two for each tile of D; of `product_traffic` in elements.

    Attributes:
      memory: rows of tiles of A and columns of tiles of B, each loaded once by a wave.
      l2: loads that find what another CTA of the wave has loaded.
    """

    memory: int
    l2: int

    def __add__(self, other: Traffic) -> Traffic:
        """Of two waves."""
        return Traffic(self.memory + other.memory, self.l2 + other.l2)


def operand_loads(tiles: Iterable[tuple[int, int]]) -> int:
    """How many different row tiles of A and column tiles of B the tiles of D together need.

    >>> operand_loads([(0, 0), (0, 1), (0, 2), (0, 3)]), operand_loads([(0, 0), (1, 0), (0, 1), (1, 1)])
    (5, 4)
    """
    tiles = list(tiles)
    return len({m for m, _n in tiles}) + len({n for _m, n in tiles})


def wave_traffic(tiles: Iterable[tuple[int, int]]) -> Traffic:
    """What the tiles of D that are computed at one time load from memory, and from the L2 cache."""
    tiles = list(tiles)
    memory = operand_loads(tiles)
    return Traffic(memory, 2 * len(tiles) - memory)


def waves(tiles_m: int, tiles_n: int, super_m: int, resident: int) -> list[list[tuple[int, int]]]:
    """The tiles of D in the order of the schedule, `resident` at a time.

    >>> waves(2, 3, super_m=2, resident=4)
    [[(0, 0), (1, 0), (0, 1), (1, 1)], [(0, 2), (1, 2)]]

    Raises:
      InvalidType: a number that is no integer.
      InvalidShape: a number smaller than 1.
    """
    given = (tiles_m, tiles_n, super_m, resident)
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in given):
        raise InvalidType("waves", given, "a schedule is made of integers")
    if min(given) < 1:
        raise InvalidShape("waves", given, f"{min(given)} in (tiles_m,tiles_n,super_m,resident) is less than 1")
    tiles = tiles_m * tiles_n
    order = [tile_coord(i, tiles_m, tiles_n, super_m) for i in range(tiles)]
    return [order[i : i + resident] for i in range(0, tiles, resident)]


def product_traffic(m: int, n: int, k: int, tile: tuple[int, int], super_m: int = 8, resident: int = 132) -> Traffic:
    """The elements of A (m,k) and B (n,k) that all CTAs together load: from memory, and from the L2 cache.

    A wave loads each row of tiles of A and each column of tiles of B that it needs once from memory, over the whole of
    K; the L2 cache is not taken to hold anything from one wave to the next.

    Args:
      m: rows of D.
      n: columns of D.
      k: the summed extent.
      tile: (m,n) of a CTA's tile; the last ones may reach beyond D.
      super_m: rows of tiles of a group.
      resident: CTAs that run at one time.

    >>> product_traffic(128, 256, 64, (64, 64), super_m=1, resident=4)
    Traffic(memory=40960, l2=24576)
    >>> product_traffic(128, 256, 64, (64, 64), super_m=2, resident=4)
    Traffic(memory=32768, l2=32768)

    Raises:
      InvalidType: a number that is no integer.
      InvalidShape: a number smaller than 1.
    """
    rows, columns = -(-m // tile[0]), -(-n // tile[1])
    total = rows * columns * (tile[0] + tile[1]) * k
    memory = 0
    for wave in waves(rows, columns, super_m, resident):
        memory += (len({i for i, _j in wave}) * tile[0] + len({j for _i, j in wave}) * tile[1]) * k
    return Traffic(memory, total - memory)


def schedule_traffic(tiles_m: int, tiles_n: int, super_m: int, resident: int) -> Traffic:
    """The traffic of all waves together; the L2 cache is not taken to hold anything from one wave to the next.

    >>> schedule_traffic(32, 32, super_m=1, resident=128), schedule_traffic(32, 32, super_m=8, resident=128)
    (Traffic(memory=288, l2=1760), Traffic(memory=192, l2=1856))
    """
    total = Traffic(0, 0)
    for wave in waves(tiles_m, tiles_n, super_m, resident):
        total += wave_traffic(wave)
    return total
