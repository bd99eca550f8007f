"""Shared-memory matrix descriptors of wgmma, made from layouts.

wgmma reads A and B out of shared memory by a 64-bit descriptor: where the tile begins, two strides and a swizzle. Only
tiles made of `gmma_smem_atom`s, in units of 16 bytes one of the following, have one (W = 1, 2, 4, 8 for rows of 16, 32,
64, 128 bytes; n and k count atoms):

    K-major   ((8,n),2):((W,SBO),1)           without a swizzle  ((8,n),2):((1,SBO),LBO)
    MN-major  ((W,n),(8,k)):((1,LBO),(W,SBO))  without a swizzle  ((1,n),(8,k)):((0,SBO),(1,LBO))

PTX ISA: "Asynchronous warpgroup level matrix multiply: matrix descriptor".
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout import int_tuple as it
from jax_moye.layout.algebra import coalesce, composition
from jax_moye.layout.cast import upcast
from jax_moye.layout.divide import logical_divide
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.errors import (
    AtomMismatch,
    CoordOutOfRange,
    LayoutError,
    Misaligned,
    NotCanonicalGmma,
    RankMismatch,
    ShapeDivisibility,
)
from jax_moye.layout.layout import Layout, as_any
from jax_moye.layout.swizzle import ComposedLayout, Swizzle

UNIT = 16  # bytes: everything in a descriptor counts these
K_BYTES = 32  # of an operand that one instruction reads along K
_LAYOUT_TYPES = {0: 0, 1: 3, 2: 2, 3: 1}  # bits of the swizzle -> the descriptor's field
_OP = "make_gmma_desc"


@dataclasses.dataclass(frozen=True, slots=True)
class GmmaDescriptor:
    """The fields of a descriptor; addresses and offsets in units of 16 bytes.

    Attributes:
      start_address: of the first element in shared memory.
      leading_byte_offset: LBO. Not read for swizzled K-major tiles.
      stride_byte_offset: SBO.
      layout_type: 0: no swizzle, 1: 128 bytes, 2: 64 bytes, 3: 32 bytes.
    """

    start_address: int
    leading_byte_offset: int
    stride_byte_offset: int
    layout_type: int

    def __int__(self) -> int:
        """The 64 bits. The base offset is 0: tiles are aligned to the swizzle."""
        return (
            self.start_address | self.leading_byte_offset << 16 | self.stride_byte_offset << 32 | self.layout_type << 62
        )


def make_gmma_desc(layout: Any, major: str, value_type: Any, *, k: int = 0, address: int = 0) -> GmmaDescriptor:
    """The descriptor of what one wgmma reads of a tile of A or B in shared memory.

    Args:
      layout: of the tile, (MN,K) in elements; `tile_to_shape(gmma_smem_atom(...), (MN, K))` is always right.
      major: "K" or "MN": which of the two is contiguous.
      value_type: element type.
      k: which of the K/(32 bytes) instructions along K.
      address: of the tile in shared memory, in bytes.

    >>> from jax_moye.layout import gmma_smem_atom, tile_to_shape
    >>> tile = tile_to_shape(gmma_smem_atom("K", "SW128", "bfloat16"), (128, 64))
    >>> make_gmma_desc(tile, "K", "bfloat16", k=1)
    GmmaDescriptor(start_address=2, leading_byte_offset=1, stride_byte_offset=64, layout_type=1)

    Raises:
      NotCanonicalGmma: no descriptor describes the tile; or MN-major elements that have not 16 bits.
      Misaligned: the address is not a multiple of 8 rows of the swizzle.
      AtomMismatch, RankMismatch, ShapeDivisibility, CoordOutOfRange: no such major; not two modes; K is no multiple of
        32 bytes; k is not below their number.
    """
    tile = as_any(layout, _OP)
    kind = dtype(value_type, _OP)
    given = (tile, major, kind.name)
    if major not in ("K", "MN"):
        raise AtomMismatch(_OP, given, f"no such major: {major!r}", '"K" or "MN"')
    if kind.bits not in (8, 16, 32):
        raise AtomMismatch(_OP, given, f"wgmma has no elements of {kind.bits} bits")
    if tile.rank != 2:
        raise RankMismatch(_OP, given, f"a tile of rank {tile.rank}: it is (MN,K)")
    if major == "MN" and kind.bits != 16:
        raise NotCanonicalGmma(_OP, given, f"MN-major {kind.name}: only 16-bit elements may be", 'major "K"')
    plain, at, swizzle = _in_bytes(tile, kind.bits // 8, given)
    width = 1 << swizzle.bits  # W
    step = K_BYTES * 8 // kind.bits
    if plain[1].size % step:
        raise ShapeDivisibility(_OP, given, f"K = {plain[1].size} is no multiple of {step}, {K_BYTES} bytes")
    k = it.as_int(k, _OP, given)
    if not 0 <= k < plain[1].size // step:
        raise CoordOutOfRange(_OP, (*given, k), f"instruction {k} does not lie in [0,{plain[1].size // step})")
    start = address + at + plain[1](k * step) * kind.bits // 8
    if address % (UNIT if width == 1 else 8 * UNIT * width):
        raise Misaligned(_OP, (*given, address), f"address {address} is no multiple of {8 * UNIT * width}")
    if (start - address) % UNIT or (start - address) & swizzle.yyy_mask:
        raise NotCanonicalGmma(_OP, given, f"the tile begins at byte {start - address}, inside a swizzled block")
    units = UNIT * 8 // kind.bits
    mn, along_k = _modes(plain, step, units, major, given)
    leading, stride = _strides(mn, along_k, width, major, given)
    fields = {"start address": start // UNIT, "LBO": leading, "SBO": stride}
    for field, value in fields.items():
        if not 0 <= value < 1 << 14:
            raise NotCanonicalGmma(_OP, given, f"{field} of {value} x 16 bytes has more than 14 bits")
    return GmmaDescriptor(start // UNIT, leading, stride, _LAYOUT_TYPES[swizzle.bits])


def _in_bytes(tile: Any, size: int, given: Any) -> tuple[Layout, int, Swizzle]:
    """The layout in elements, the byte where it begins, and the swizzle of bytes, which must be Sw<i,4,3>."""
    if not isinstance(tile, ComposedLayout):
        return tile, 0, Swizzle(0, 4, 3)
    swizzle = tile.swizzle.downcast(size)
    if not swizzle.bits:
        swizzle = Swizzle(0, 4, 3)
    if (swizzle.base, swizzle.shift) != (4, 3) or swizzle.bits > 3:
        raise NotCanonicalGmma(
            _OP, given, f"{swizzle} on bytes: wgmma has Sw<0,4,3> to Sw<3,4,3>", "gmma_smem_atom makes those"
        )
    return tile.layout, tile.offset * size, swizzle


def _modes(plain: Layout, step: int, units: int, major: str, given: Any) -> tuple[Layout, Layout]:
    """MN and what one instruction reads of K, both in units of 16 bytes."""
    expected = (plain[0].size, step // units) if major == "K" else (plain[0].size // units, step)
    try:
        read = [upcast(plain[0], units), upcast(composition(plain[1], step), units)]
    except LayoutError as error:
        raise NotCanonicalGmma(_OP, given, f"no whole 16 bytes along {major}: {error.problem}") from None
    if (read[0].size, read[1].size) != expected:
        raise NotCanonicalGmma(_OP, given, f"{units} elements along {major} are not 16 contiguous bytes")
    return coalesce(read[0]), coalesce(read[1])


def _strides(mn: Layout, along_k: Layout, width: int, major: str, given: Any) -> tuple[int, int]:
    """LBO and SBO."""
    if major == "K":
        row, next_rows = _split("MN", mn, 8, given)
        (column,) = _only("K", along_k, given)
        _check("rows of a block", row, width, given)
        if width > 1:
            _check("the two halves of K", column, 1, given)
        return column, next_rows
    row, next_rows = _split("MN", mn, width, given)
    column, next_columns = _split("K", along_k, 8, given)
    if width > 1:
        _check("16 bytes of a row", row, 1, given)
    _check("columns of a block", column, width, given)
    return (next_columns, next_rows) if width == 1 else (next_rows, next_columns)


def _split(name: str, mode: Layout, extent: int, given: Any) -> tuple[int, int]:
    """The strides inside and between the blocks of `extent`."""
    try:
        inner, outer = logical_divide(mode, extent)
    except LayoutError as error:
        raise NotCanonicalGmma(_OP, given, f"{name} has no blocks of {extent} x 16 bytes: {error.problem}") from None
    return (*_only(name, inner, given), *_only(name, outer, given))


def _only(name: str, mode: Layout, given: Any) -> tuple[int]:
    mode = coalesce(mode)
    if not isinstance(mode.stride, int):
        raise NotCanonicalGmma(_OP, given, f"{name} needs more than one stride: {mode} in units of 16 bytes")
    return (mode.stride if mode.size > 1 else 0,)


def _check(what: str, stride: int, expected: int, given: Any) -> None:
    if stride != expected:
        raise NotCanonicalGmma(
            _OP, given, f"{what} lie {stride} x 16 bytes apart, not {expected}", "tile_to_shape(gmma_smem_atom(...))"
        )
