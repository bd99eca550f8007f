"""Layouts in units of larger or smaller elements: upcast, downcast, recast."""

from __future__ import annotations

import math
from typing import Any

from jax_moye.layout import int_tuple as it
from jax_moye.layout.errors import DowncastNoUnitStride, InvalidShape, LayoutError, NonInjective, UpcastDivisibility
from jax_moye.layout.layout import Layout, as_any, make


def _factor(op: str, layout: Any, n: int) -> int:
    n = it.as_int(n, op, (layout, n))
    if n < 1:
        raise InvalidShape(op, (layout, n), f"a factor of {n}")
    return n


def upcast(layout: Any, n: int) -> Any:
    """The layout of the same memory in elements `n` times as large.

    A mode of stride d becomes stride d/n; where d divides n it becomes the n/d times shorter mode of stride 1.

    >>> upcast("(32,4):(1,32)", 4)
    Layout('(8,4):(1,8)')

    Raises:
      UpcastDivisibility: a stride neither divides n nor is a multiple of it.
    """
    layout = as_any(layout, "upcast")
    n = _factor("upcast", layout, n)
    if not isinstance(layout, Layout):
        return layout.upcast(n)

    def check(s: int, d: int) -> None:
        if d and abs(d) % n and n % abs(d):
            legal = [k for k in range(2, n) if all(e % k == 0 or k % abs(e) == 0 for _s, e in layout.leaves if e)]
            raise UpcastDivisibility(
                "upcast",
                (layout, n),
                f"stride {d} of mode {s}:{d} neither divides {n} nor is a multiple of it",
                f"upcast by {' or '.join(map(str, legal))}" if legal else None,
            )

    def extent(s: int, d: int) -> int:
        check(s, d)
        return s if d == 0 else -(-s // -(-n // abs(d)))

    def stride(s: int, d: int) -> int:
        return -(-abs(d) // n) * (1 if d > 0 else -1) if d else 0

    return make(
        it.transform_leaf(extent, layout.shape, layout.stride), it.transform_leaf(stride, layout.shape, layout.stride)
    )


def downcast(layout: Any, n: int) -> Any:
    """The layout of the same memory in elements `n` times as small.

    The mode of stride 1 becomes n times as long, other strides n times as large.

    Law: `downcast(L, n)(j + n*i) == n*L(i) + j` for j < n, where the mode of stride 1 comes first; wherever it stands,
    the n parts of each element follow each other along it.

    >>> downcast("(8,4):(1,8)", 4)
    Layout('(32,4):(1,32)')

    Raises:
      DowncastNoUnitStride: no mode has stride 1.
      NonInjective: two modes have, so it is open which of them the parts lie along. (Modes of extent 1 do not count.)
    """
    layout = as_any(layout, "downcast")
    n = _factor("downcast", layout, n)
    if not isinstance(layout, Layout):
        return layout.downcast(n)
    if n == 1:
        return layout
    parts = _unit_mode(layout, n)
    position = iter(range(len(layout.leaves)))
    place = it.transform_leaf(lambda _s: next(position), layout.shape)
    return make(
        it.transform_leaf(lambda i, s: s * n if i == parts else s, place, layout.shape),
        it.transform_leaf(lambda i, d: 1 if i == parts else d * n, place, layout.stride),
    )


def _unit_mode(layout: Layout, n: int) -> int:
    """The leaf along which the parts of an element lie: the one of stride 1, if need be one of extent 1."""
    unit = [i for i, (_s, d) in enumerate(layout.leaves) if d == 1]
    long = [i for i in unit if layout.leaves[i][0] > 1]
    if len(long) > 1:
        modes = " and ".join(f"{s}:{d}" for s, d in (layout.leaves[i] for i in long))
        raise NonInjective(
            "downcast", (layout, n), f"modes {modes} both have stride 1: the {n} parts of an element lie along one"
        )
    if unit:
        return (long or unit)[0]
    backwards = any(d == -1 for _s, d in layout.leaves)
    raise DowncastNoUnitStride(
        "downcast",
        (layout, n),
        f"no mode of {layout} has stride 1, so the {n} parts of an element have no mode"
        + (" (along stride -1 they would run backwards)" if backwards else ""),
        "give the layout a mode 1:1",
    )


def recast_layout(layout: Any, old_bits: int, new_bits: int) -> Any:
    """The layout of the same memory read as elements of `new_bits` bits instead of `old_bits`.

    >>> recast_layout("(8,4):(1,8)", 32, 8)
    Layout('(32,4):(1,32)')

    Raises:
      UpcastDivisibility, DowncastNoUnitStride, NonInjective: the elements do not go into each other.
    """
    layout = as_any(layout, "recast_layout")
    old_bits, new_bits = _factor("recast_layout", layout, old_bits), _factor("recast_layout", layout, new_bits)
    common = math.gcd(old_bits, new_bits)
    try:
        wider = upcast(layout, new_bits // common) if new_bits != common else layout
        return downcast(wider, old_bits // common) if old_bits != common else wider
    except LayoutError as error:
        raise error.inside("recast_layout", (layout, old_bits, new_bits)) from None


recast = recast_layout
