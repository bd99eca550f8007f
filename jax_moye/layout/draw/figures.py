"""Pictures of layouts, atoms, copies and products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax_moye.layout.draw.model import NEUTRAL, PALETTE, Cell, Panel, Picture, check_cells
from jax_moye.layout.draw.owners import Owners, owner_cell, owners_of, several, thread_colours, threads_legend
from jax_moye.layout.errors import InvalidShape, InvalidType, RankTooSmall
from jax_moye.layout.layout import Layout
from jax_moye.layout.swizzle import ComposedLayout, Swizzle

BANKS = 32
BANK_BYTES = 4
_BANKS_OF_A_COLOUR = BANKS // len(PALETTE)


# ---- Layouts -------------------------------------------------------------------------------------------------------


def draw_layout(layout: Layout | ComposedLayout, bits: int | None = None) -> Picture:
    """The picture of a layout of rank 1 or 2: the offset of each element.

    Args:
      layout: a layout, swizzled or not; a mode may be a tuple. Rank 1 is one row.
      bits: size of an element. With it the elements are coloured by the bank of shared memory they lie in, and the
        bank is written below the offset. None: coloured by offset, but swizzled layouts as 16-bit elements by bank.

    Raises:
      RankTooSmall: the layout has more than two modes.
      PictureTooLarge: more than 4096 elements.
    """
    if bits is None and isinstance(layout, ComposedLayout):
        bits = 16
    if bits is not None and (not isinstance(bits, int) or bits < 1):
        raise InvalidShape("draw", (layout, bits), f"{bits!r} bits are no element")
    if layout.rank > 2:
        hint = f"group(L, 1, {layout.rank}), or a slice L({','.join(['_', '_', *['0'] * (layout.rank - 2)])})"
        raise RankTooSmall("draw", (layout,), f"rank {layout.rank}; a picture has two axes", hint)
    check_cells(layout.size, layout, "a slice of it, L(_, 0), or one tile, zipped_divide(L, tile)[0]")
    offsets = layout.values().tolist()
    columns = layout[1].size if layout.rank == 2 else layout.size
    rows = layout.size // columns if layout.rank == 2 else 1
    make = _offset_cell if bits is None else _bank_cell(bits)
    cells = tuple(tuple(make(offsets[i + rows * j]) for j in range(columns)) for i in range(rows))
    axes = ("i", "j") if layout.rank == 2 else ("", "i")
    panel = Panel("layout", "", axes, cells, wraps=True)
    if bits is None:
        used = sorted({cell.colour for row in cells for cell in row if cell})
        legend = tuple((c, f"{c}") for c in used)
        return Picture(str(layout), (panel,), f"Number: offset. Colour: offset mod {len(PALETTE)}", legend)
    used = sorted({cell.colour for row in cells for cell in row if cell})
    step = _BANKS_OF_A_COLOUR
    legend = tuple((c, f"banks {c * step}-{c * step + step - 1}") for c in used)
    key = f"Number: offset in elements of {bits} bits; b: bank. Colour: banks of one 16-byte column"
    note = f"bank = floor(offset * {bits} bits / 32 bits) mod {BANKS}"
    return Picture(str(layout), (panel,), key, legend, (note,))


def _offset_cell(offset: int) -> Cell:
    return Cell((str(offset),), offset % len(PALETTE), (("offset", str(offset)),))


def _bank_cell(bits: int) -> Callable[[int], Cell]:
    def cell(offset: int) -> Cell:
        bank = offset * bits // (8 * BANK_BYTES) % BANKS
        data = (("offset", str(offset)), ("bank", str(bank)))
        return Cell((str(offset), f"b{bank}"), bank // _BANKS_OF_A_COLOUR, data)

    return cell


def draw_swizzle(swizzle: Swizzle, bits: int | None = None) -> Picture:
    """The picture of one period of a swizzle on row-major rows of as many elements as it takes to reach its Y bits."""
    row = 1 << (swizzle.base + abs(swizzle.shift))
    return draw_layout(swizzle @ Layout((swizzle.period // row, row), order="row"), 16 if bits is None else bits)


# ---- Thread-value layouts ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """The owners of the elements of one operand, before there are colours."""

    name: str
    title: str
    axes: tuple[str, str]
    place: tuple[int, int]
    owners: list[list[Owners]]

    def panel(self, colour: Callable[[int], int]) -> Panel:
        cells = tuple(tuple(owner_cell(o, colour) for o in row) for row in self.owners)
        joint = " " if any(len(o) > 1 for row in self.owners for o in row) else ""
        return Panel(self.name, self.title, self.axes, cells, self.place, joint)


def _grid(owners: list[Owners], rows: int, columns: int, transposed: bool = False) -> list[list[Owners]]:
    """Rows of owners, where element (i, j) is at i + rows * j."""
    if transposed:
        return [[owners[i + rows * j] for i in range(rows)] for j in range(columns)]
    return [[owners[i + rows * j] for j in range(columns)] for i in range(rows)]


def _tv_picture(title: str, tables: list[_Table], fixed: tuple[Panel, ...], notes: tuple[str, ...]) -> Picture:
    owners = [t.owners for t in tables]
    rule, colour = thread_colours(owners)
    panels = (*fixed, *(t.panel(colour) for t in tables))
    threads = [o for table in owners for row in table for o in row if len({t for t, _v in o}) > 1]
    for count in (2, 3):
        for o in [o for o in threads if min(len({t for t, _v in o}), 3) == count][:1]:
            first, *others = sorted({t for t, _v in o})
            who = f"thread {others[0]}" if count == 2 else f"{len(others)} more threads"
            notes = (*notes, f"{several('T', (first, *others))}: thread {first} and {who} have the same element.")
    if any(cell is None for p in panels for row in p.cells for cell in row):
        notes = (*notes, "Empty cells: no thread has the element.")
    key = f"T: thread, V: its value. Colour: {rule}"
    return Picture(title, panels, key, threads_legend(owners, colour), notes)


def draw_tv(tv: Layout, tile: tuple[int, int], title: str | None = None) -> Picture:
    """The picture of a thread-value layout on a tile.

    Args:
      tv: layout (thread, value) -> i + rows * j.
      tile: (rows, columns).
      title: first line; None: the layout's text.

    Raises:
      InvalidType: the layout does not have two modes.
      PictureTooLarge: more than 4096 elements.
    """
    if tv.rank != 2:
        raise InvalidType("draw_tv", (tv, tile), f"rank {tv.rank}: a thread-value layout has the modes (thread, value)")
    rows, columns = tile
    check_cells(rows * columns, tv)
    table = _Table("tile", "", ("i", "j"), (0, 0), _grid(owners_of(tv, rows * columns), rows, columns))
    return _tv_picture(str(tv) if title is None else title, [table], (), ())


# ---- Products ------------------------------------------------------------------------------------------------------


def _product(
    title: str,
    mnk: tuple[int, int, int],
    tvs: dict[str, Layout],
    lane: Callable[[int], int],
    smem: str,
    notes: tuple[str, ...],
    of: Any,
) -> Picture:
    """A left, B above, C where the rows of A meet the columns of B."""
    m, n, k = mnk
    check_cells(m * k + n * k + m * n, of, "an instruction or tile with smaller M, N, K")
    shapes = {"A": (m, k, False), "B": (n, k, True), "C": (m, n, False)}
    axes = {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")}
    places = {"A": (1, 0), "B": (0, 1), "C": (1, 1)}
    tables, fixed = [], []
    for name, (rows, columns, transposed) in shapes.items():
        heading = f"{name} ({','.join(axes[name])})"
        if name in smem:
            height, width = (columns, rows) if transposed else (rows, columns)
            cell = Cell((), NEUTRAL, (("memory", "shared"),))
            heading += ": shared memory"
            fixed.append(Panel(name, heading, axes[name], ((cell,) * width,) * height, places[name]))
            continue
        owners = owners_of(tvs[name], rows * columns, lane)
        tables.append(_Table(name, heading, axes[name], places[name], _grid(owners, rows, columns, transposed)))
    layouts = tuple(f"{name}_TV = {tvs[name]}" for name in "ABC" if name not in smem)
    if smem:
        layouts += (f"The instruction reads {' and '.join(smem)} from shared memory: no thread holds elements of it.",)
    return _tv_picture(title, tables, tuple(fixed), (*layouts, *notes))


def draw_mma_atom(atom: Any) -> Picture:
    """The picture of an MMA instruction: which thread holds which elements of A, B and C in which of its values.

    Threads are lanes of the warp (of the warpgroup for wgmma; of the first quad pair on Volta).
    """
    notes = () if atom.layout_D_TV == atom.layout_C_TV else (f"D_TV = {atom.layout_D_TV} (the table shows C)",)
    tvs = {"A": atom.layout_A_TV, "B": atom.layout_B_TV, "C": atom.layout_C_TV}
    return _product(atom.name, atom.shape_mnk, tvs, atom.thr_id, atom.smem_operands, notes, atom.name)


def draw_tiled_mma(mma: Any) -> Picture:
    """The picture of a TiledMma: which thread holds which elements of the tile's A, B and C in which of its values."""
    m, n, k = mma.tile_shape
    title = f"{mma.atom.name}: {mma.threads} threads, tile ({m},{n},{k})"
    tvs = {"A": mma.layout_A_TV, "B": mma.layout_B_TV, "C": mma.layout_C_TV}
    notes = (f"atoms {mma.atom_layout}",)
    return _product(title, mma.tile_shape, tvs, int, mma.atom.smem_operands, notes, mma)


# ---- Copies --------------------------------------------------------------------------------------------------------


def draw_copy_atom(atom: Any) -> Picture:
    """The picture of a copy instruction on its data: a row is what one thread gives, or points to in shared memory."""
    columns = atom.num_val_src
    size = max(atom.val_layout_src.cosize, atom.val_layout_dst.cosize)
    check_cells(2 * size, atom)
    tables = []
    for place, (name, tv) in enumerate((("source", atom.val_layout_src), ("destination", atom.val_layout_dst))):
        owners = owners_of(tv, size, atom.thr_id)
        rows = [owners[i : i + columns] for i in range(0, size, columns)]
        tables.append(_Table(name, name, ("i", "j"), (0, place), rows))
    notes = (f"S_TV = {atom.val_layout_src}", f"D_TV = {atom.val_layout_dst}")
    return _tv_picture(f"{atom.op.name} of {atom.value_type}", tables, (), notes)


def draw_tiled_copy(copy: Any) -> Picture:
    """The picture of a TiledCopy: whose which value each element of the tile is at the source and the destination."""
    extents = copy.tile_size
    if len(extents) > 2:
        raise RankTooSmall("draw", (copy,), f"a tile of rank {len(extents)}; a picture has two axes")
    rows, columns = (*extents, 1)[:2]
    check_cells(2 * rows * columns, copy, "a tile of fewer threads or values")
    sides = (("source", copy.layout_S_TV), ("destination", copy.layout_D_TV))
    tables = []
    for place, (name, tv) in enumerate(sides):
        owners = _grid(owners_of(tv, rows * columns), rows, columns)
        tables.append(_Table(name, name, ("i", "j"), (0, place), owners))
    title = f"{copy.atom.op.name} of {copy.atom.value_type}: {copy.threads} threads, tile ({rows},{columns})"
    return _tv_picture(title, tables, (), tuple(f"{name[0].upper()}_TV = {tv}" for name, tv in sides))
