"""The order in which CTAs compute the tiles of D, as `cuda/gemm/tile_scheduler.h` has it."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.draw.model import PALETTE, Cell, Panel, Picture, check_cells
from jax_moye.layout.errors import InvalidShape, InvalidType


def tile_coord(tile: int, tiles_m: int, tiles_n: int, super_m: int = 8) -> tuple[int, int]:
    """The tile of D, (m, n), that has a number.

    Tiles run down `super_m` rows before they step one column to the right; the last group holds the rows that remain.
    A bijection from [0, tiles_m * tiles_n).

    >>> [tile_coord(i, 3, 2, super_m=2) for i in range(6)]
    [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    """
    group = tile // (super_m * tiles_n)
    first = group * super_m
    rows = min(super_m, tiles_m - first)
    in_group = tile - first * tiles_n
    return first + in_group % rows, in_group // rows


def operand_loads(tiles: Any) -> int:
    """How many different row tiles of A and column tiles of B the tiles of D together need.

    >>> operand_loads([(0, 0), (0, 1), (0, 2), (0, 3)]), operand_loads([(0, 0), (1, 0), (0, 1), (1, 1)])
    (5, 4)
    """
    return len({m for m, _n in tiles}) + len({n for _m, n in tiles})


def draw_schedule(tiles_m: int, tiles_n: int, super_m: int = 8, resident: int | None = None) -> Picture:
    """The picture of a schedule: in each tile of D its number, coloured by the wave that computes it.

    Args:
      tiles_m: rows of tiles.
      tiles_n: columns of tiles.
      super_m: rows that the order runs down before it steps right. 1: row by row.
      resident: CTAs that run at one time: a wave. None: as many as a square of `super_m` by `super_m` tiles.

    Raises:
      InvalidShape: a number smaller than 1.
      PictureTooLarge: more than 4096 tiles.
    """
    resident = super_m * super_m if resident is None else resident
    given = (tiles_m, tiles_n, super_m, resident)
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in given):
        raise InvalidType("draw_schedule", given, "a schedule is made of integers")
    if min(given) < 1:
        raise InvalidShape("draw_schedule", given, f"{min(given)} in (tiles_m,tiles_n,super_m,resident) is less than 1")
    tiles = tiles_m * tiles_n
    check_cells(tiles, given)
    order = [tile_coord(i, tiles_m, tiles_n, super_m) for i in range(tiles)]
    cells: list[list[Cell | None]] = [[None] * tiles_n for _ in range(tiles_m)]
    for i, (m, n) in enumerate(order):
        wave = i // resident
        cells[m][n] = Cell((str(i),), wave % len(PALETTE), (("tile", str(i)), ("wave", str(wave))))
    waves = [order[i : i + resident] for i in range(0, tiles, resident)]
    legend = tuple(
        (w % len(PALETTE), f"wave {w}: {len(wave)} tiles need {operand_loads(wave)} row and column tiles")
        for w, wave in enumerate(waves[:8])
    )
    total = sum(map(operand_loads, waves))
    by_rows = [(i // tiles_n, i % tiles_n) for i in range(tiles)]
    plain = sum(operand_loads(by_rows[i : i + resident]) for i in range(0, tiles, resident))
    notes = (
        f"Tiles run down {super_m} rows (super_M), then right. {resident} CTAs run at a time; if such a wave reads "
        f"every row tile of A and column tile of B that it needs from memory once, {len(waves)} waves read {total}, "
        f"and find the other {2 * tiles - total} of {2 * tiles} in the L2 cache. Row by row they would read {plain}.",
    )
    panel = Panel("D", "D: number of each tile", ("m", "n"), tuple(map(tuple, cells)))
    return Picture(
        f"CTA schedule of {tiles_m}x{tiles_n} tiles, super_M = {super_m}", (panel,), "Colour: wave mod 8", legend, notes
    )
