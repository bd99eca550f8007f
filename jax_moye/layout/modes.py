"""How layouts are made, and taken apart by mode: ordered layouts, take, group, append, slices, coordinates."""

from __future__ import annotations

from typing import Any

from jax_moye.layout import coords
from jax_moye.layout import int_tuple as it
from jax_moye.layout.errors import InvalidType, ModeOutOfRange, ProfileMismatch, RankMismatch, RankTooSmall
from jax_moye.layout.int_tuple import IntTuple, _, as_int_tuple, show
from jax_moye.layout.layout import ONE, Layout, as_any, as_layout, make, on_layout

# ---- Making layouts ------------------------------------------------------------------------------------------------


def make_layout(*args: Any) -> Layout:
    """A layout of layouts, side by side as modes; or of a shape and strides.

    >>> make_layout(Layout("3:1"), Layout("(2,2):(3,6)"))
    Layout('(3,(2,2)):(1,(3,6))')
    >>> make_layout((2, 3)), make_layout((2, 3), (3, 1))
    (Layout('(2,3):(1,2)'), Layout('(2,3):(3,1)'))
    """
    if args and all(isinstance(a, Layout) for a in args):
        return make(tuple(a.shape for a in args), tuple(a.stride for a in args))
    if len(args) not in (1, 2) or any(isinstance(a, Layout) for a in args):
        raise InvalidType("make_layout", args, "expected layouts, a shape, or a shape and strides")
    return Layout(*args)


def make_ordered_layout(shape: Any, order: Any) -> Layout:
    """The compact layout whose strides grow with `order`.

    >>> make_ordered_layout((3, 5), (10, 2))
    Layout('(3,5):(5,1)')

    Raises:
      ProfileMismatch: `order` is not nested like `shape`, or less deep.
    """
    shape, order = as_int_tuple(shape, "make_ordered_layout"), as_int_tuple(order, "make_ordered_layout")
    return Layout(shape, coords.compact_order(shape, order))


def make_layout_like(layout: Any) -> Layout:
    """The compact layout of the same shape with strides in the same order; stride 0 stays 0.

    >>> make_layout_like("(4,(2,3)):(12,(0,2))")
    Layout('(4,(2,3)):(3,(0,1))')
    """
    layout = as_any(layout, "make_layout_like")
    layout = layout if isinstance(layout, Layout) else layout.layout
    shown = it.transform_leaf(lambda s, d: 1 if d == 0 else s, layout.shape, layout.stride)
    order = it.transform_leaf(abs, layout.stride)
    return make(layout.shape, coords.compact_order(shown, order))


def make_fragment_like(layout: Any) -> Layout:
    """The layout of a thread's registers for a tensor of this layout.

    Mode 0 (the values of an atom) comes first and is column-major, stride 0 staying 0; the other modes follow compactly
    in the order of their strides. A layout of rank 1 gives the column-major layout of its shape.
    """
    from jax_moye.layout import divide

    layout = as_any(layout, "make_fragment_like")
    layout = layout if isinstance(layout, Layout) else layout.layout
    if layout.rank == 1:
        return Layout(layout.shape)
    first = layout[0]
    shown = it.transform_leaf(lambda s, d: 1 if d == 0 else s, first.shape, first.stride)
    first = make(first.shape, coords.compact_col_major(shown))
    order = it.transform_leaf(abs, it.modes(layout.stride)[1:])
    return divide.tiled_product(first, make_ordered_layout(it.modes(layout.shape)[1:], order))


# ---- Taking layouts apart ------------------------------------------------------------------------------------------


@on_layout
def flatten(layout: Any) -> Layout:
    """The layout with all leaves as modes; an integer shape stays."""
    return make(it.flatten(layout.shape), it.flatten(layout.stride))


def get(layout: Any, *path: int) -> Any:
    """Mode `path[0]`, of it mode `path[1]`, and so on.

    Raises:
      ModeOutOfRange: there is no such mode. (It is an IndexError too.)
    """
    layout = as_any(layout, "get")
    for i in path:
        i = it.as_int(i, "get", (layout, *path))
        n = layout.rank
        if not -n <= i < n:
            raise ModeOutOfRange("get", (layout, *path), f"mode {i} of a layout of rank {n}", f"modes 0 to {n - 1}")
        if not isinstance(layout, Layout):
            layout = layout.with_layout(get(layout.layout, i))
        elif isinstance(layout.shape, tuple):
            layout = make(layout.shape[i], it.modes(layout.stride)[i])
    return layout


@on_layout
def take(layout: Any, begin: int, end: int) -> Layout:
    """Modes [begin, end).

    Raises:
      BadRange: the range does not lie in the modes. EmptyRange: it has none.
    """
    it.check_range("take", layout, layout.rank, begin, end)
    return make(it.modes(layout.shape)[begin:end], it.modes(layout.stride)[begin:end])


@on_layout
def select(layout: Any, modes: Any) -> Layout:
    """The modes with the numbers `modes` (an integer or a tuple), in that order."""
    chosen = [get(layout, i) for i in it.wrap(as_int_tuple(modes, "select"))]
    return make(tuple(m.shape for m in chosen), tuple(m.stride for m in chosen))


@on_layout
def group(layout: Any, begin: int, end: int) -> Layout:
    """The layout with modes [begin, end) made one mode.

    >>> group("(2,3,4):(1,2,6)", 1, 3)
    Layout('(2,(3,4)):(1,(2,6))')

    Raises:
      BadRange: the range does not lie in the modes. EmptyRange: it has none.
    """
    it.check_range("group", layout, layout.rank, begin, end)
    return make(it.group(layout.shape, begin, end), it.group(layout.stride, begin, end))


def _pad(op: str, layout: Layout, rank: int, mode: Any) -> int:
    rank = it.as_int(rank, op, (layout, rank))
    if rank < layout.rank:
        raise RankTooSmall(op, (layout, rank, mode), f"rank {rank} is smaller than the rank {layout.rank} there is")
    return rank - layout.rank


@on_layout
def reverse(layout: Any) -> Layout:
    """The layout with its modes, and the modes of its modes, in the opposite order."""

    def turn(t: Any) -> Any:
        return tuple(map(turn, reversed(t))) if isinstance(t, tuple) else t

    return make(turn(layout.shape), turn(layout.stride))


@on_layout
def append(layout: Any, rank: int, mode: Any = ONE) -> Layout:
    """The layout with copies of `mode` behind it, up to `rank` modes.

    Raises:
      RankTooSmall: it has more.
    """
    mode = as_layout(mode, "append")
    count = _pad("append", layout, rank, mode)
    return (
        make(it.append_to_rank(layout.shape, rank, mode.shape), it.append_to_rank(layout.stride, rank, mode.stride))
        if count
        else layout
    )


@on_layout
def prepend(layout: Any, rank: int, mode: Any = ONE) -> Layout:
    """The layout with copies of `mode` before it, up to `rank` modes.

    Raises:
      RankTooSmall: it has more.
    """
    mode = as_layout(mode, "prepend")
    count = _pad("prepend", layout, rank, mode)
    return (
        make(it.prepend_to_rank(layout.shape, rank, mode.shape), it.prepend_to_rank(layout.stride, rank, mode.stride))
        if count
        else layout
    )


def _slice(op: str, coord: Any, layout: Layout, keep_blank: bool) -> tuple[list[Any], list[Any]]:
    """Shapes and strides of the modes where the coordinate is `_` (or, with keep_blank False, where it is not).

    As in CuTe they come out side by side, however deep they were.
    """
    shapes: list[Any] = []
    strides: list[Any] = []

    def walk(c: Any, s: Any, d: Any, top: bool) -> None:
        if isinstance(c, tuple):
            if not isinstance(s, tuple) or len(s) != len(c):
                error = RankMismatch if top else ProfileMismatch
                raise error(op, (coord, layout), f"{show(c)} is no coordinate of {show(s)}")
            for x, y, z in zip(c, s, d, strict=True):
                walk(x, y, z, False)
        elif (c is _) == keep_blank:
            shapes.append(s)
            strides.append(d)

    walk(coord, layout.shape, layout.stride, True)
    return shapes, strides


def _kept(op: str, coord: Any, layout: Layout, keep_blank: bool) -> Layout:
    shapes, strides = _slice(op, coord, layout, keep_blank)
    if not isinstance(coord, tuple) and shapes:
        return layout
    return make(tuple(shapes), tuple(strides))


def slice_and_offset(coord: Any, layout: Any) -> tuple[Any, int]:
    """The layout of the modes where `coord` is `_`, and the index of the rest of the coordinate.

    `layout(full coordinate) == offset + sliced(coordinate of the modes kept)`. A swizzled layout decays to a plain one
    where it can, possibly with negative strides: see ComposedLayout.

    >>> slice_and_offset((2, None), Layout("(4,(2,3)):(1,(4,8))"))
    (Layout('((2,3)):((4,8))'), 2)

    Raises:
      RankMismatch, ProfileMismatch: the coordinate does not fit the shape.
      CoordOutOfRange: it does not lie in the shape.
    """
    layout = as_any(layout, "slice_and_offset")
    coord = it.as_coord(coord, "slice_and_offset")
    if not isinstance(layout, Layout):
        return layout.slice_and_offset(coord)
    kept = _kept("slice_and_offset", coord, layout, True)
    at = it.transform_leaf(lambda c: 0 if c is _ else c, coord)
    return kept, coords.crd2idx(at, layout.shape, layout.stride)


def slice_(coord: Any, layout: Any) -> Any:
    """The first part of `slice_and_offset`."""
    return slice_and_offset(coord, layout)[0]


def dice(coord: Any, layout: Any) -> Layout:
    """The layout of the modes where `coord` has a number: what `slice_` leaves out.

    >>> dice((2, None), Layout("(4,(2,3)):(1,(4,8))"))
    Layout('(4):(1)')
    """
    layout = as_layout(layout, "dice")
    coord = it.as_coord(coord, "dice")
    return _kept("dice", coord, layout, False)


# ---- Coordinates ---------------------------------------------------------------------------------------------------


def crd2idx(coord: Any, layout: Any, stride: Any = None, *, strict: bool = True) -> int:
    """`layout(coord)`, with CuTe's order of arguments; strict=False goes on beyond the shape.

    Also `crd2idx(coord, shape, stride)`.
    """
    coord = as_int_tuple(coord, "crd2idx")
    if isinstance(layout, str) and stride is None:
        layout = as_any(layout, "crd2idx")
    if hasattr(layout, "with_layout"):
        return layout.swizzle(layout.offset + crd2idx(coord, layout.layout, strict=strict))
    if not isinstance(layout, Layout):
        layout = Layout(layout, stride)
    return coords.crd2idx(coord, layout.shape, layout.stride, strict)


def idx2crd(index: int, layout: Any, stride: Any = None, *, strict: bool = True) -> IntTuple:
    """The coordinate of a (codomain) index of a compact layout; for a shape, of the colexicographic position.

    Raises:
      CoordOutOfRange, OutOfDomain: no coordinate has the index. NonInjective: many have.
    """
    index = it.as_int(index, "idx2crd")
    if isinstance(layout, str) and stride is None and ":" in layout:
        layout = Layout(layout)
    if isinstance(layout, Layout):
        return coords.idx2crd(index, layout.shape, layout.stride, strict)
    stride = None if stride is None else as_int_tuple(stride, "idx2crd")
    return coords.idx2crd(index, as_int_tuple(layout, "idx2crd"), stride, strict)


def get_hier_coord(layout: Any, index: int) -> IntTuple:
    """The coordinate of an index of a compact layout, nested like its shape."""
    return idx2crd(index, as_layout(layout, "get_hier_coord"))


def get_flat_coord(layout: Any, index: int) -> IntTuple:
    """The coordinate of an index of a compact layout with one number for each mode; a number alone for rank 1."""
    layout = as_layout(layout, "get_flat_coord")
    coord = idx2crd(index, layout)
    if not isinstance(coord, tuple):
        return coord
    flat = tuple(coords.crd2idx(c, s, coords.compact_col_major(s)) for c, s in zip(coord, layout.shape, strict=True))
    return it.unwrap(flat)


def get_1d_coord(layout: Any, index: int) -> int:
    """The colexicographic position of an index of a compact layout."""
    layout = as_layout(layout, "get_1d_coord")
    return coords.crd2idx(idx2crd(index, layout), layout.shape, coords.compact_col_major(layout.shape))


def size(x: Any, *mode: int) -> int:
    """Number of coordinates of a layout, tensor or shape, or of a mode of it; number of threads of a tiled copy or MMA.

    >>> size("(4,(2,3)):(1,(4,8))"), size("(4,(2,3)):(1,(4,8))", 1), size((4, (2, 3)), 1, 0)
    (24, 6, 2)

    Args:
      x: a layout or its text, a Tensor, a shape, a TiledCopy or a TiledMma.
      mode: the mode (0-based), the mode of that mode, and so on: CuTe's `size<1,0>(x)`.

    Raises:
      ModeOutOfRange: there is no such mode.
    """
    if not hasattr(x, "size"):
        x = as_any(x, "size") if isinstance(x, str) and ":" in x else Layout(as_int_tuple(x, "size"))
    return get(getattr(x, "layout", x) if mode else x, *mode).size if mode else x.size


def cosize(layout: Any) -> int:
    """1 + the largest distance between two indices."""
    return as_any(layout, "cosize").cosize


def rank(x: Any) -> int:
    """Number of modes of a layout or IntTuple."""
    return x.rank if hasattr(x, "shape") else it.rank(as_int_tuple(x, "rank"))


def depth(x: Any) -> int:
    """Depth of nesting of a layout or IntTuple."""
    return x.depth if hasattr(x, "shape") else it.depth(as_int_tuple(x, "depth"))
