"""Dividing layouts into tiles, multiplying them, and tiling a block to a shape.

A *tiler* is a layout, an integer n (that is n:1), `_`, or a tuple of tilers that acts mode by mode.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from jax_moye.layout import algebra
from jax_moye.layout import int_tuple as it
from jax_moye.layout.algebra import CACHE, check_tiler, tile_of
from jax_moye.layout.errors import (
    LayoutError,
    OutOfDomain,
    ProfileMismatch,
    RankTooSmall,
    ShapeDivisibility,
    TileToShapeDivisibility,
)
from jax_moye.layout.int_tuple import _, as_int_tuple, show
from jax_moye.layout.layout import Layout, as_layout, as_tiler, make, on_layout
from jax_moye.layout.modes import append, make_layout, make_ordered_layout

# ---- Division ------------------------------------------------------------------------------------------------------


@on_layout
def logical_divide(layout: Any, tiler: Any, *, allow_residue: bool = False) -> Layout:
    """The layout with each tiled mode replaced by (tile, rest): elements of a tile, and tiles.

    Law, for one layout B as tiler: `R == A o (B, complement(B, A.size))`; `R[0] == composition(A, B)`; where the tile
    divides A, R is a permutation of A. With a tuple, mode i is divided by its element; modes beyond stay.

    Args:
      layout: A, a layout or composed layout.
      tiler: B.
      allow_residue: accept a tile that does not divide. The result is then larger than A, and whoever uses it must
        leave out (predicate) what lies beyond A's shape.

    >>> logical_divide("(4,2,3):(2,1,8)", "4:2")
    Layout('((2,2),(2,3)):((4,1),(2,8))')
    >>> logical_divide("16:1", 5)
    Traceback (most recent call last):
    ...
    jax_moye.layout.errors.ShapeDivisibility: logical_divide(16:1, 5:1): ...

    Raises:
      ShapeDivisibility: the tile does not divide the mode (unless `allow_residue`).
      TilerTooLong: more tiles than modes.
      NonInjective, StrideDivisibility, Carry, OutOfDomain: as in `complement` and `composition`.
    """
    return _divide("logical_divide", layout, as_tiler(tiler, "logical_divide"), allow_residue)


def _divide(op: str, layout: Layout, tiler: Any, residue: bool) -> Layout:
    if tiler is _:
        return layout
    if isinstance(tiler, tuple):
        check_tiler(op, layout, tiler)
        modes = list(layout)
        for i, t in enumerate(tiler):
            try:
                modes[i] = _divide(op, modes[i], t, residue)
            except LayoutError as error:
                raise error.inside(op, (layout, tiler), i) from None
        return make_layout(*modes)
    return _divide_one(op, layout, tiler if isinstance(tiler, Layout) else tile_of(op, tiler), residue)


@functools.lru_cache(CACHE)
def _divide_one(op: str, layout: Layout, tile: Layout, residue: bool) -> Layout:
    try:
        rest = algebra.complement(tile, algebra.coalesce(layout).shape)
    except LayoutError as error:
        raise error.inside(op, (layout, tile)) from None
    size = tile.size * rest.size
    holes = _has_holes(tile)
    if size < layout.size or (size != layout.size and residue and holes):
        problem = (
            f"{rest.size} tiles of {tile.size} elements do not cover the {layout.size} there are: the tile has gaps"
        )
        raise ShapeDivisibility(op, (layout, tile), f"{problem} that are no multiple of its parts")
    if size != layout.size and not residue:
        problem = f"{rest.size} tiles of {tile.size} elements are {size}, more than the {layout.size} there are"
        hint = "allow_residue=True where the rest is predicated"
        if isinstance(tile.stride, int) and tile.stride <= 1:
            hint = f"a tile of {_nearest_divisors(layout.size, tile.size)} elements, or {hint}"
        raise ShapeDivisibility(op, (layout, tile), problem, hint)
    try:
        return algebra.composition(layout, make_layout(tile, rest), extend=residue and not holes)
    except LayoutError as error:
        raise error.inside(op, (layout, tile)) from None


def _has_holes(tile: Layout) -> bool:
    """Whether a stride of the tile is no multiple of what the smaller ones cover: copies of it leave indices out."""
    covered = 1
    for d, s in sorted((d, s) for s, d in algebra.filter(tile).leaves if d):
        if d % covered:
            return True
        covered = s * d
    return False


def _nearest_divisors(n: int, k: int) -> str:
    """The divisors of n next below and above k."""
    if n > 10**6:
        return str(math.gcd(n, k))
    below = max((d for d in range(1, min(n, k) + 1) if n % d == 0), default=1)
    above = next((d for d in range(k, n + 1) if n % d == 0), None)
    return f"{below} or {above}" if above is not None else str(below)


def _unzip(op: str, layout: Layout, divided: Layout, tiler: Any) -> Layout:
    """((tiles), (rests, other modes)) of a layout whose modes are (tile, rest) pairs."""
    try:
        shape = it.zip2_by(divided.shape, tiler)
        stride = it.zip2_by(divided.stride, tiler)
    except ProfileMismatch as error:
        problem = f"`_` leaves a mode alone that is no pair (tile, rest): {error.problem}"
        raise ProfileMismatch(op, (layout, tiler), problem, "the extent of the mode in place of _") from None
    return make(shape, stride)


def _spread(layout: Layout, first: bool) -> Layout:
    """((..), (a, b, ..)) with the modes of the second, and perhaps of the first, made modes of the whole.

    As in CuTe a tuple of one element stays a tuple.
    """

    def parts(t: Any) -> tuple[Any, ...]:
        return t if isinstance(t, tuple) and len(t) != 1 else (t,)

    def join(t: Any) -> Any:
        return (*(parts(t[0]) if first else (t[0],)), *parts(t[1]))

    return make(join(layout.shape), join(layout.stride))


@on_layout
def zipped_divide(layout: Any, tiler: Any, *, allow_residue: bool = False) -> Layout:
    """`logical_divide` with tiles and rests gathered: ((TileM,TileN,...), (RestM,RestN,...,L,...)).

    Law: `R[0] == composition(A, tiler)`. `_` in the tiler is allowed on a mode that is a pair (tile, rest) already.

    >>> zipped_divide("(8,6):(6,1)", (4, 3))
    Layout('((4,3),(2,2)):((6,1),(24,3))')

    Raises:
      ProfileMismatch: `_` on a mode that is no pair. And what `logical_divide` raises.
    """
    return _zipped("zipped_divide", layout, tiler, allow_residue)


def _zipped(op: str, layout: Layout, tiler: Any, residue: bool) -> Layout:
    tiler = as_tiler(tiler, op)
    return _unzip(op, layout, _divide(op, layout, tiler, residue), tiler)


@on_layout
def tiled_divide(layout: Any, tiler: Any, *, allow_residue: bool = False) -> Layout:
    """`zipped_divide` with the rests as modes of their own: ((TileM,TileN,...), RestM, RestN, ..., L, ...).

    >>> tiled_divide("(8,6):(6,1)", (4, 3))
    Layout('((4,3),2,2):((6,1),24,3)')
    """
    return _spread(_zipped("tiled_divide", layout, tiler, allow_residue), False)


@on_layout
def flat_divide(layout: Any, tiler: Any, *, allow_residue: bool = False) -> Layout:
    """`zipped_divide` with all modes side by side: (TileM, TileN, ..., RestM, RestN, ..., L, ...).

    >>> flat_divide("(8,6):(6,1)", (4, 3))
    Layout('(4,3,2,2):(6,1,24,3)')
    """
    return _spread(_zipped("flat_divide", layout, tiler, allow_residue), True)


@on_layout
def tile(layout: Any, *tiler: Any, allow_residue: bool = False) -> Layout:
    """`tiled_divide` by the tile of the arguments, one for each mode. MoYe.jl's and CuTe's name.

    >>> tile("(8,6):(6,1)", 4, 3)
    Layout('((4,3),2,2):((6,1),24,3)')
    """
    return tiled_divide(layout, tiler, allow_residue=allow_residue)


# ---- Products ------------------------------------------------------------------------------------------------------


@on_layout
def logical_product(block: Any, tiler: Any) -> Layout:
    """(A, copies of A laid out as B says): `(A, complement(A, A.size * B.cosize) o B)`.

    Law: `R[0] == A`, the shape of `R[1]` refines B's, and R is injective if A and B are. With a tuple, mode by mode.

    >>> logical_product("(2,2):(4,1)", "6:1")
    Layout('((2,2),(2,3)):((4,1),(2,8))')

    Raises:
      ShapeDivisibility, ...: B does not fit the gaps that A leaves.
      TilerTooLong: more factors than modes.
    """
    return _product("logical_product", block, as_tiler(tiler, "logical_product"))


def _product(op: str, block: Layout, tiler: Any) -> Layout:
    if tiler is _:
        return block
    if isinstance(tiler, tuple):
        check_tiler(op, block, tiler)
        modes = list(block)
        for i, t in enumerate(tiler):
            try:
                modes[i] = _product(op, modes[i], t)
            except LayoutError as error:
                raise error.inside(op, (block, tiler), i) from None
        return make_layout(*modes)
    return _product_one(op, block, tiler if isinstance(tiler, Layout) else tile_of(op, tiler))


@functools.lru_cache(CACHE)
def _product_one(op: str, block: Layout, tiler: Layout) -> Layout:
    try:
        gaps = algebra.complement(block, block.size * tiler.cosize)
        try:
            return make_layout(block, algebra.composition(gaps, tiler))
        except OutOfDomain:
            # A block with holes in it leaves fewer places below its target than copies are asked for: go on above.
            reach = max((s * d for s, d in block.leaves if d > 0), default=1)
            gaps = algebra.complement(block, reach * tiler.cosize)
            return make_layout(block, algebra.composition(gaps, tiler))
    except LayoutError as error:
        raise error.inside(op, (block, tiler)) from None


@on_layout
def zipped_product(block: Any, tiler: Any) -> Layout:
    """`logical_product` with blocks and copies gathered: ((BlockM,BlockN,...), (CopiesM,CopiesN,...,L,...))."""
    return _zipped_product("zipped_product", block, tiler)


def _zipped_product(op: str, block: Layout, tiler: Any) -> Layout:
    tiler = as_tiler(tiler, op)
    return _unzip(op, block, _product(op, block, tiler), tiler)


@on_layout
def tiled_product(block: Any, tiler: Any) -> Layout:
    """`zipped_product` with the copies as modes of their own: ((BlockM,BlockN,...), CopiesM, CopiesN, ..., L, ...).

    >>> tiled_product("(2,2):(1,2)", Layout("(3,4):(4,1)"))
    Layout('((2,2),3,4):((1,2),16,4)')
    """
    return _spread(_zipped_product("tiled_product", block, tiler), False)


@on_layout
def flat_product(block: Any, tiler: Any) -> Layout:
    """`zipped_product` with all modes side by side."""
    return _spread(_zipped_product("flat_product", block, tiler), True)


def _mode_product(op: str, block: Layout, tiler: Any, raked: bool, coalesce: bool) -> Layout:
    tiler = as_tiler(tiler, op)
    tiler = tiler if isinstance(tiler, Layout) else tile_of(op, tiler) if isinstance(tiler, int) else tiler
    tiler = as_layout(tiler, op)
    n = max(block.rank, tiler.rank)
    a, b = _product_one(op, append(block, n), append(tiler, n))
    first, second = (b, a) if raked else (a, b)
    try:
        out = make(it.zip_tuples(first.shape, second.shape), it.zip_tuples(first.stride, second.stride))
    except ProfileMismatch:
        raise ProfileMismatch(
            op,
            (block, tiler),
            f"the tuple of one mode {first} meets the integer {second}",
            f"({second.shape}):({second.stride}) for {second}",
        ) from None
    return algebra.coalesce(out, it.repeat(1, out.rank)) if coalesce else out


@on_layout
def blocked_product(block: Any, tiler: Any, *, coalesce: bool = False) -> Layout:
    """Copies of the block side by side: mode i is (block i, copies i).

    Law: size |A||B|, rank that of the longer operand.

    Args:
      block: A.
      tiler: B, a layout.
      coalesce: join each mode where it can be (MoYe.jl's flag).

    >>> blocked_product("(2,2):(1,2)", "(3,4):(4,1)")
    Layout('((2,3),(2,4)):((1,16),(2,4))')

    Raises:
      ProfileMismatch: a 1-tuple meets an integer.
    """
    return _mode_product("blocked_product", block, tiler, False, coalesce)


@on_layout
def raked_product(block: Any, tiler: Any, *, coalesce: bool = False) -> Layout:
    """Copies of the block interleaved: mode i is (copies i, block i).

    >>> raked_product("(2,2):(1,2)", "(3,4):(4,1)")
    Layout('((3,2),(4,2)):((16,1),(4,2))')

    Raises:
      ProfileMismatch: a 1-tuple meets an integer.
    """
    return _mode_product("raked_product", block, tiler, True, coalesce)


@on_layout
def tile_to_shape(block: Any, shape: Any, order: Any = None) -> Layout:
    """The block repeated to a shape: every shared-memory layout is made this way, swizzled ones too.

    Law: `compatible(shape, R.shape)`; `R` is the blocked product of the block and an ordered layout of the repetitions.

    Args:
      block: a layout or composed layout.
      shape: the target, of at least the block's rank.
      order: numbers by which the repetitions follow each other; None: the first mode first.

    >>> tile_to_shape("(8,64):(64,1)", (128, 128))
    Layout('((8,16),(64,2)):((64,512),(1,8192))')

    Raises:
      RankTooSmall: the target has fewer modes than the block.
      TileToShapeDivisibility: an extent of the target is not a multiple of the block's.
    """
    shape = as_int_tuple(shape, "tile_to_shape")
    n = it.rank(shape)
    if n < block.rank:
        raise RankTooSmall(
            "tile_to_shape", (block, shape), f"the target {show(shape)} has rank {n}, the block {block.rank}"
        )
    padded = append(block, n)
    target, extents = it.product_each(shape), it.product_each(padded.shape)
    for i, (t, e) in enumerate(zip(target, extents, strict=True)):
        if t % e:
            near = tuple(max(e, t - t % e) if t % e else t for t, e in zip(target, extents, strict=True))
            above = tuple(t + -t % e for t, e in zip(target, extents, strict=True))
            raise TileToShapeDivisibility(
                "tile_to_shape",
                (block, shape),
                f"extent {t} of mode {i} is not a multiple of the block's {e}",
                f"{show(near)} or {show(above)}" if near != above else show(above),
            )
    counts = tuple(t // e for t, e in zip(target, extents, strict=True))
    if order is None:
        copies = Layout(counts)
    else:
        order = as_int_tuple(order, "tile_to_shape")
        if not isinstance(order, tuple):
            order = (order,) if len(counts) == 1 else order
        try:
            copies = make_ordered_layout(counts, order)
        except LayoutError as error:
            raise ProfileMismatch("tile_to_shape", (block, shape, order), error.problem) from None
    try:
        return _mode_product("blocked_product", padded, copies, False, False)
    except LayoutError as error:
        raise error.inside("tile_to_shape", (block, shape) if order is None else (block, shape, order)) from None
