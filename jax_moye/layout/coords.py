"""Coordinates and indices of a shape: `crd2idx` and its inverses, compact strides, coordinates in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax_moye.layout.errors import CoordOutOfRange, NonInjective, OutOfDomain, ProfileMismatch, RankMismatch
from jax_moye.layout.int_tuple import (
    IntTuple,
    congruent,
    inner_product,
    leaves,
    modes,
    product,
    product_like,
    rank,
    show,
    transform_leaf,
    unflatten,
    weakly_congruent,
)


def crd2idx(coord: Any, shape: IntTuple, stride: IntTuple, strict: bool = True) -> int:
    """The index of a coordinate: its inner product with the strides.

    Where the coordinate has an integer and the shape a tuple, the integer is split colexicographically.

    Args:
      coord: IntTuple, weakly congruent to `shape`.
      shape: extents.
      stride: strides, congruent to `shape`.
      strict: False lets the coordinate leave the shape: the last leaf then goes on (CuTe never checks).

    Raises:
      RankMismatch: the coordinate has another number of modes than the shape, at the outermost level.
      ProfileMismatch: ... at a deeper one.
      CoordOutOfRange: the coordinate does not lie in the shape (strict).
    """
    if isinstance(coord, tuple) and not (isinstance(shape, tuple) and len(shape) == len(coord)):
        raise RankMismatch("crd2idx", (coord, shape), f"{len(coord)} coordinates for a shape of rank {rank(shape)}")
    return _crd2idx(coord, shape, stride, strict, coord, shape)


def _crd2idx(c: Any, shape: Any, stride: Any, strict: bool, coord: Any, whole: Any) -> int:
    if isinstance(c, tuple):
        if not isinstance(shape, tuple) or len(shape) != len(c):
            raise ProfileMismatch("crd2idx", (coord, whole), f"{show(c)} is no coordinate of the mode {show(shape)}")
        total = 0
        for x, s, d in zip(c, shape, stride, strict=True):
            total += _crd2idx(x, s, d, strict, coord, whole)
        return total
    if strict:
        n = product(shape)
        if not 0 <= c < n:
            of = f"the shape {show(shape)}" if shape == whole else f"a mode of shape {show(shape)}"
            raise CoordOutOfRange(
                "crd2idx", (coord, whole), f"coordinate {c} does not lie in [0,{n}), the range of {of}"
            )
    if not isinstance(shape, tuple):
        return c * stride
    total = 0
    flat_shape, flat_stride = leaves(shape), leaves(stride)
    if not flat_shape:
        return 0
    for s, d in zip(flat_shape[:-1], flat_stride[:-1], strict=True):
        total += c % s * d
        c //= s
    return total + c * flat_stride[-1]


def compact_col_major(shape: IntTuple, start: int = 1) -> IntTuple:
    """Strides of the shape with no holes, first leaf fastest; a leaf of extent 1 has stride 0.

    >>> compact_col_major(((2, 3), 4))
    ((1, 2), 6)
    """
    strides = []
    for s in leaves(shape):
        strides.append(0 if s == 1 else start)
        start *= s
    return unflatten(tuple(strides), shape)


def compact_row_major(shape: IntTuple, start: int = 1) -> IntTuple:
    """Strides of the shape with no holes, last leaf fastest; a leaf of extent 1 has stride 0."""
    strides = []
    for s in reversed(leaves(shape)):
        strides.append(0 if s == 1 else start)
        start *= s
    return unflatten(tuple(reversed(strides)), shape)


def compact_order(shape: IntTuple, order: IntTuple) -> IntTuple:
    """Strides of the shape with no holes that grow with `order`.

    Args:
      shape: extents.
      order: numbers, nested like `shape` or less deep; parts of the shape below a leaf of `order` are column-major.
        Equal numbers count from left to right.

    >>> compact_order((3, 5), (10, 2))
    (5, 1)

    Raises:
      ProfileMismatch: `order` is not weakly congruent to `shape`.
    """
    if not weakly_congruent(order, shape):
        raise ProfileMismatch("compact_order", (shape, order), f"the order {show(order)} does not fit {show(shape)}")
    keys = leaves(order)
    extents = leaves(product_like(shape, order))
    start, starts = 1, [1] * len(keys)
    for i in sorted(range(len(keys)), key=lambda i: (keys[i], i)):
        starts[i] = start
        start *= extents[i]
    return _fill(shape, unflatten(tuple(starts), order))


def _fill(shape: IntTuple, starts: Any) -> Any:
    if isinstance(starts, tuple):
        return tuple(map(_fill, modes(shape), starts))
    return compact_col_major(shape, starts)


def idx2crd(index: int, shape: IntTuple, stride: IntTuple | None = None, strict: bool = True) -> IntTuple:
    """The coordinate of an index, nested like the shape: the inverse of `crd2idx` for compact strides.

    Args:
      index: an index of the codomain.
      shape: extents.
      stride: strides; None means column-major.
      strict: check that the coordinate found has this index.

    >>> idx2crd(7, (3, 4))
    (1, 2)

    Raises:
      CoordOutOfRange: `index` does not lie in the shape (no strides given).
      NonInjective: a stride is 0: many coordinates have the index.
      OutOfDomain: no coordinate has the index (strict).
    """
    if stride is None:
        if strict and not 0 <= index < product(shape):
            raise CoordOutOfRange("idx2crd", (index, shape), f"index {index} does not lie in [0,{product(shape)})")
        stride = compact_col_major(shape)
    if not congruent(shape, stride):
        raise ProfileMismatch(
            "idx2crd", (index, shape, stride), f"{show(shape)} and {show(stride)} are nested differently"
        )
    for s, d in zip(leaves(shape), leaves(stride), strict=True):
        if d == 0 and s > 1:
            raise NonInjective("idx2crd", (index, shape, stride), f"the mode {s}:0 has one index for all coordinates")
    coord = transform_leaf(lambda s, d: 0 if s == 1 else index // d % s, shape, stride)
    if strict and inner_product(coord, stride) != index:
        raise OutOfDomain(
            "idx2crd", (index, shape, stride), f"no coordinate has index {index}; {show(coord)} is not one"
        )
    return coord


def crd2crd(coord: IntTuple, source: IntTuple, target: IntTuple) -> IntTuple:
    """The coordinate of shape `target` at the same colexicographic position as `coord` in shape `source`.

    Raises:
      CoordOutOfRange: it does not lie in `source` or in `target`.
    """
    return idx2crd(crd2idx(coord, source, compact_col_major(source)), target)


def coordinates(shape: IntTuple) -> Iterator[IntTuple]:
    """All coordinates of the shape in colexicographic order, nested like it."""
    return (idx2crd(i, shape) for i in range(product(shape)))


def increment(coord: IntTuple, shape: IntTuple) -> IntTuple:
    """The next coordinate in colexicographic order; the last is followed by the first."""
    n = product(shape)
    return idx2crd((crd2idx(coord, shape, compact_col_major(shape)) + 1) % n, shape)
