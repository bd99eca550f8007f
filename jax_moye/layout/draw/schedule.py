"""The picture of the order in which CTAs compute the tiles of D."""

from __future__ import annotations

from jax_moye.layout.draw.model import PALETTE, Cell, Panel, Picture, check_cells
from jax_moye.layout.errors import InvalidShape, InvalidType
from jax_moye.layout.schedule import operand_loads as operand_loads
from jax_moye.layout.schedule import tile_coord as tile_coord
from jax_moye.layout.schedule import wave_traffic, waves


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
    by_wave = waves(tiles_m, tiles_n, super_m, resident)
    cells: list[list[Cell | None]] = [[None] * tiles_n for _ in range(tiles_m)]
    for i, (m, n) in enumerate(coord for wave in by_wave for coord in wave):
        wave = i // resident
        cells[m][n] = Cell((str(i),), wave % len(PALETTE), (("tile", str(i)), ("wave", str(wave))))
    traffic = [wave_traffic(wave) for wave in by_wave]
    legend = tuple(
        (w % len(PALETTE), f"wave {w}: {len(wave)} tiles, {loads.memory} loads from memory, {loads.l2} from L2")
        for w, (wave, loads) in enumerate(zip(by_wave[:8], traffic, strict=False))
    )
    total = sum(loads.memory for loads in traffic)
    plain = sum(wave_traffic(wave).memory for wave in waves(tiles_m, tiles_n, 1, resident))
    notes = (
        f"Tiles run down {super_m} rows (super_M), then right. {resident} CTAs run at a time; if such a wave reads "
        f"every row tile of A and column tile of B that it needs from memory once, {len(by_wave)} waves read {total}, "
        f"and find the other {2 * tiles - total} of {2 * tiles} in the L2 cache. Row by row they would read {plain}.",
    )
    panel = Panel("D", "D: number of each tile", ("m", "n"), tuple(map(tuple, cells)))
    return Picture(
        f"CTA schedule of {tiles_m}x{tiles_n} tiles, super_M = {super_m}", (panel,), "Colour: wave mod 8", legend, notes
    )
