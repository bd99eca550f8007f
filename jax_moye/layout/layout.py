"""`Layout`: a shape and strides, a function from coordinates to indices. Tilers, and what is accepted as either."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jax_moye.layout import coords
from jax_moye.layout import int_tuple as it
from jax_moye.layout.errors import (
    InvalidShape,
    InvalidType,
    ProfileMismatch,
    RankMismatch,
)
from jax_moye.layout.int_tuple import IntTuple, _, as_int_tuple, show

if TYPE_CHECKING:
    import numpy as np

_set = object.__setattr__


@dataclasses.dataclass(frozen=True, slots=True, init=False, repr=False)
class Layout:
    """A function from coordinates to indices: the inner product of a coordinate with the strides.

    The domain is [0, size) in colexicographic order, or coordinates nested like the shape. Layouts are immutable and
    hashable; `==` compares shape and strides, `functionally_equal` compares functions.

    Args:
      shape: extents, an integer or nested tuples of integers; or the text of a layout, `"(2,(3,4)):(1,(2,6))"`.
      stride: strides, nested like `shape`. None: compact, in the order that follows.
      order: "col" (the first leaf moves fastest; the default), "row", or a tuple of numbers that strides grow with.

    Example:
      >>> L = Layout("(2,(3,4)):(1,(2,6))")
      >>> L(1, 5), L(1, (2, 1)), L(11), L.size, L.cosize
      (11, 11, 11, 24, 24)
      >>> L(None, 3), L[1]
      (Layout('(2):(1)'), Layout('(3,4):(2,6)'))
      >>> Layout((2, 3), order="row")
      Layout('(2,3):(3,1)')

    Raises:
      ParseError: text that is no layout.
      InvalidShape: an extent smaller than 1.
      InvalidType: an element that is no integer.
      ProfileMismatch: shape and strides nested differently.
    """

    shape: IntTuple
    stride: IntTuple

    def __init__(self, shape: Any, stride: Any = None, *, order: Any = None):
        """See the class."""
        given = (shape,) if stride is None else (shape, stride)
        if isinstance(shape, Layout):
            if stride is not None or order is not None:
                raise InvalidType("Layout", given, "a layout already has strides")
            shape, stride = shape.shape, shape.stride
        elif isinstance(shape, str) and stride is None:
            from jax_moye.layout import notation

            shape, stride = notation.parse_shape_stride(shape)
        shape = as_int_tuple(shape, "Layout")
        for s in it.leaves(shape):
            if s < 1:
                raise InvalidShape("Layout", given, f"extent {s} in shape {show(shape)}: extents are at least 1")
        if stride is None:
            if order is None or order == "col":
                stride = coords.compact_col_major(shape)
            elif order == "row":
                stride = coords.compact_row_major(shape)
            elif isinstance(order, str) and not order.startswith("("):
                raise InvalidType("Layout", given, f"order {order!r}", 'order="col", order="row" or a tuple')
            else:
                stride = coords.compact_order(shape, as_int_tuple(order, "Layout"))
        elif order is not None:
            raise InvalidType("Layout", given, "strides and an order")
        else:
            stride = as_int_tuple(stride, "Layout")
            if not it.congruent(shape, stride):
                piece = _first_difference(shape, stride)
                raise ProfileMismatch(
                    "Layout", given, f"shape {show(shape)} and stride {show(stride)} are nested differently, at {piece}"
                )
        _set(self, "shape", shape)
        _set(self, "stride", stride)

    # ---- Text

    def __str__(self) -> str:
        """`shape:stride`."""
        return f"{show(self.shape)}:{show(self.stride)}"

    def __repr__(self) -> str:
        """Evaluates to the layout."""
        return f"Layout('{self}')"

    def to_cpp(self) -> str:
        """The type of the same layout in `cuda/moye`.

        >>> Layout("(8,(2,2)):(4,(1,2))").to_cpp()
        'Layout<Shape<Int<8>,Shape<Int<2>,Int<2>>>,Stride<Int<4>,Stride<Int<1>,Int<2>>>>'
        """
        return f"Layout<{_cpp(self.shape, 'Shape')},{_cpp(self.stride, 'Stride')}>"

    # ---- Numbers

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return it.product(self.shape)

    @property
    def cosize(self) -> int:
        """1 + the sum of (extent-1)*|stride|: the number of indices from the smallest to the largest."""
        return 1 + sum((s - 1) * abs(d) for s, d in self.leaves)

    @property
    def rank(self) -> int:
        """Number of modes; 1 for an integer shape."""
        return it.rank(self.shape)

    @property
    def depth(self) -> int:
        """Depth of nesting; 0 for an integer shape."""
        return it.depth(self.shape)

    @property
    def leaves(self) -> tuple[tuple[int, int], ...]:
        """The (extent, stride) pairs of all leaves."""
        return tuple(zip(it.leaves(self.shape), it.leaves(self.stride), strict=True))

    # ---- As a function

    def __call__(self, *coord: Any) -> Any:
        """The index of a coordinate; with `_` or None in the coordinate, the layout of the modes kept.

        A slice has lost the offset of the other modes: `slice_and_offset` returns both.

        Raises:
          RankMismatch, ProfileMismatch: the coordinate does not fit the shape.
          CoordOutOfRange: it does not lie in the shape. (`crd2idx(..., strict=False)` goes on beyond.)
        """
        c = it.as_coord(join_coord(coord, self), "Layout")
        if it.has_underscore(c):
            from jax_moye.layout import modes

            return modes.slice_and_offset(c, self)[0]
        return coords.crd2idx(c, self.shape, self.stride)

    def values(self) -> np.ndarray:
        """All indices in colexicographic order of the coordinates, as an int64 array of `size` elements."""
        import numpy as np

        out = np.zeros(1, np.int64)
        for s, d in self.leaves:
            out = (np.arange(s, dtype=np.int64)[:, None] * d + out[None, :]).reshape(-1)
        return out

    def to_numpy_view(self, buffer: np.ndarray, offset: int = 0) -> np.ndarray:
        """The elements of a 1-D array where the layout puts them, as a view with one axis for each leaf.

        Raises:
          OutOfDomain: an index lies outside the array.
        """
        import numpy as np

        from jax_moye.layout.errors import OutOfDomain

        low = offset + sum((s - 1) * min(d, 0) for s, d in self.leaves)
        high = offset + sum((s - 1) * max(d, 0) for s, d in self.leaves)
        if buffer.ndim != 1 or low < 0 or high >= buffer.size:
            raise OutOfDomain(
                "to_numpy_view", (self, buffer.shape), f"indices {low} to {high} of an array of shape {buffer.shape}"
            )
        step = buffer.strides[0]
        return np.lib.stride_tricks.as_strided(
            buffer[offset:], tuple(s for s, _d in self.leaves), tuple(d * step for _s, d in self.leaves)
        )

    # ---- Modes

    def __len__(self) -> int:
        """The rank."""
        return self.rank

    def __iter__(self) -> Iterator[Layout]:
        """The modes."""
        return (make(s, d) for s, d in zip(it.modes(self.shape), it.modes(self.stride), strict=True))

    def __getitem__(self, key: Any) -> Layout:
        """Mode `key`; modes `a:b`; or the slice that a tuple with `_`, `:` or `...` in it keeps."""
        from jax_moye.layout import modes

        if isinstance(key, tuple) or key is Ellipsis or it.is_underscore(key):
            coord = it.as_coord(join_coord(key if isinstance(key, tuple) else (key,), self), "Layout")
            if not it.has_underscore(coord):
                raise InvalidType(
                    "Layout", (self, key), "a coordinate in brackets keeps no mode", f"L{show(coord)} for the index"
                )
            return modes.slice_and_offset(coord, self)[0]
        if isinstance(key, slice):
            begin, end, step = key.indices(self.rank)
            if step != 1:
                raise InvalidType("Layout", (self, str(key)), "modes are taken with step 1")
            return modes.take(self, begin, end)
        return modes.get(self, key)

    # ---- Algebra

    def __matmul__(self, other: Any) -> Any:
        """`A @ B`: composition(A, B)."""
        from jax_moye.layout import algebra

        return algebra.composition(self, other)

    def __truediv__(self, tiler: Any) -> Any:
        """`A / T`: logical_divide(A, T)."""
        from jax_moye.layout import divide

        return divide.logical_divide(self, tiler)

    def __mul__(self, other: Any) -> Any:
        """`A * B`: logical_product(A, B)."""
        from jax_moye.layout import divide

        return divide.logical_product(self, other)


def make(shape: IntTuple, stride: IntTuple) -> Layout:
    """A layout of shape and strides that are known to be right."""
    layout = object.__new__(Layout)
    _set(layout, "shape", shape)
    _set(layout, "stride", stride)
    return layout


def from_leaves(leaves: Any) -> Layout:
    """The layout of (extent, stride) pairs: no pair 1:0, one pair an integer shape."""
    if not leaves:
        return ONE
    if len(leaves) == 1:
        return make(*leaves[0])
    return make(tuple(s for s, _d in leaves), tuple(d for _s, d in leaves))


ONE = make(1, 0)


def _cpp(t: Any, name: str) -> str:
    return f"{name}<{','.join(_cpp(x, name) for x in t)}>" if isinstance(t, tuple) else f"Int<{t}>"


def _first_difference(a: Any, b: Any) -> str:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for x, y in zip(a, b, strict=True):
            if not it.congruent(x, y):
                return _first_difference(x, y)
    return f"{show(a)} against {show(b)}"


def join_coord(coord: tuple[Any, ...], layout: Any) -> Any:
    """The arguments of a call as one coordinate: one argument is it, more are a tuple; `...` stands for several `_`."""
    if any(c is Ellipsis for c in coord):
        kept = [c for c in coord if c is not Ellipsis]
        if len(coord) - len(kept) > 1 or len(kept) > layout.rank:
            raise RankMismatch(
                "Layout", (layout, str(coord)), f"{len(kept)} coordinates for a layout of rank {layout.rank}"
            )
        at = next(i for i, c in enumerate(coord) if c is Ellipsis)
        coord = coord[:at] + (_,) * (layout.rank - len(kept)) + coord[at + 1 :]
    return coord[0] if len(coord) == 1 else coord


class Tile(tuple):
    """A tiler that acts by mode: one layout, integer `n` (that is `n:1`), tiler or `_` for each mode.

    >>> Tile(Layout("2:4"), 8, None)
    Tile([2:4;8;_])
    """

    def __new__(cls, *tilers: Any) -> Tile:
        """See the class."""
        return super().__new__(cls, (as_tiler(t, "Tile") for t in tilers))

    def __getnewargs__(self) -> tuple[Any, ...]:
        """For pickle and copy."""
        return tuple(self)

    def __str__(self) -> str:
        """`[t;t;...]`."""
        return f"[{';'.join(show(m) if isinstance(m, tuple) and not isinstance(m, Tile) else str(m) for m in self)}]"

    def __repr__(self) -> str:
        """The text with the class."""
        return f"Tile({self})"


def as_tiler(x: Any, op: str) -> Any:
    """`x` as a tiler: a Layout, an integer, `_`, or a tuple of tilers."""
    if type(x) in (Layout, int, Tile):
        return x
    if it.is_underscore(x):
        return _
    if isinstance(x, str):
        from jax_moye.layout import notation

        return notation.parse_tiler(x)
    if isinstance(x, (tuple, list)):
        return tuple(as_tiler(m, op) for m in x)
    return it.as_int(x, op)


def as_layout(x: Any, op: str) -> Layout:
    """`x` as a Layout: a layout or its text.

    Raises:
      InvalidType: anything else.
    """
    if type(x) is Layout:
        return x
    if isinstance(x, str):
        return Layout(x)
    kind, hint = type(x).__name__, 'Layout(...) or its text, "(8,4):(1,8)"'
    if hasattr(x, "dtype") and hasattr(x, "shape"):  # an array, whose numbers help nobody
        raise InvalidType(
            op, (f"{kind} of shape {tuple(x.shape)}",), f"{kind} is not a layout", f"{hint}; or Tensor(array)"
        )
    raise InvalidType(op, (x,), f"{kind} is not a layout", hint)


def as_any(x: Any, op: str) -> Any:
    """A Layout, or a composed layout as it is; text is parsed."""
    if type(x) is Layout or hasattr(x, "with_layout"):
        return x
    if isinstance(x, str):
        from jax_moye.layout import notation

        x = notation.parse(x)
        if type(x) is Layout or hasattr(x, "with_layout"):
            return x
    return as_layout(x, op)


def on_layout(function: Any) -> Any:
    """Decorates an operation on a layout (its first argument): text is parsed, a composed layout acts on its inner one.

    The function then only ever sees a Layout.
    """
    name = function.__name__

    @functools.wraps(function)
    def wrapper(layout: Any, *args: Any, **kwargs: Any) -> Any:
        if type(layout) is Layout:
            return function(layout, *args, **kwargs)
        layout = as_any(layout, name)
        if type(layout) is Layout:
            return function(layout, *args, **kwargs)
        return layout.with_layout(function(layout.layout, *args, **kwargs))

    return wrapper
