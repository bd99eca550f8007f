"""Inverses of layouts, and what follows from them: the vector two layouts share, alignment, the null space."""

from __future__ import annotations

import functools
import math
from typing import Any

from jax_moye.layout.algebra import CACHE, coalesced, compose_plain, composition, merge, tile_of
from jax_moye.layout.errors import LayoutError, LeftInverseDivisibility, NonInjective
from jax_moye.layout.layout import ONE, Layout, as_any, from_leaves

# ---- inverses ------------------------------------------------------------------------------------------------------


def _chain(layout: Layout) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """The modes that count indices 0, 1, 2, ... in order, as (extent, stride, position of its step); and the others."""
    found, others, before = [], [], 1
    table = []
    for s, d in coalesced(layout).leaves:
        table.append((d, s, before))
        before *= s
    reach = 1
    for d, s, at in sorted(table, key=lambda m: m[0]):
        if d == reach and s > 1:
            found.append((s, d, at))
            reach *= s
        elif s > 1:
            others.append((s, d))
    return found, others


def right_inverse(layout: Any) -> Any:
    """The largest layout R with `L(R(i)) == i`; 1:0 if L has no stride 1.

    >>> right_inverse("(8,4):(4,1)")
    Layout('(4,8):(8,1)')
    """
    layout = as_any(layout, "right_inverse")
    if not isinstance(layout, Layout):
        return layout.right_inverse()
    return _right_inverse(layout)


@functools.lru_cache(CACHE)
def _right_inverse(layout: Layout) -> Layout:
    return from_leaves(merge((s, at) for s, _d, at in _chain(layout)[0]))


def left_inverse(layout: Any) -> Any:
    """The layout R with `R(L(i)) == i` if L is injective, and always `L(R(L(i))) == L(i)`.

    Where L is not injective, a position `R(L(i))` may lie beyond L's size; coalesce(L) then goes on.

    >>> left_inverse("(4,2):(1,16)")
    Layout('(16,2):(1,4)')

    Raises:
      LeftInverseDivisibility: a stride is not a multiple of the next smaller one.
      NonInjective: modes overlap so that no layout finds a position for every index.
    """
    layout = as_any(layout, "left_inverse")
    if not isinstance(layout, Layout):
        return layout.left_inverse()
    return _left_inverse(layout)


@functools.lru_cache(CACHE)
def _left_inverse(layout: Layout) -> Layout:
    flat = coalesced(layout)
    table, before = [], 1
    for s, d in flat.leaves:
        if d:
            table.append((d, s, before))
        before *= s
    if not table:
        return flat
    final = max(at for _d, _s, at in table)  # the mode that goes on beyond the size
    table.sort(key=lambda m: m[0])
    out, reach, position, below = [], 1, 0, 0
    for i, (d, s, at) in enumerate(table):
        if d < 0 or d % reach:
            raise LeftInverseDivisibility(
                "left_inverse",
                (layout,),
                f"stride {d} of mode {s}:{d} is not a multiple of {reach}, the stride before it",
                f"a stride of {max(d, below + 1) + -max(d, below + 1) % reach} would be" if d > 0 else None,
            )
        whole = i + 1 == len(table) or table[i + 1][0] > s * d
        if below >= d and whole and (at != final or at * s != layout.size):
            raise NonInjective(
                "left_inverse",
                (layout,),
                f"the modes of smaller stride reach index {below}, beyond the stride of mode {s}:{d}",
            )
        below += (s - 1) * d
        out.append((d // reach, position))
        reach, position, last = d, at, s
    out.append((last, position))
    return from_leaves(merge(out))


# ---- what two layouts share ----------------------------------------------------------------------------------------


def max_common_layout(a: Any, b: Any) -> Layout:
    """The layout R of the largest n elements that lie contiguously, and equally, in both: `A(R(i)) == B(R(i)) == i`.

    >>> max_common_layout("(8,4):(4,1)", "(8,4):(4,1)")
    Layout('(4,8):(8,1)')
    """
    plain, limit = _operands(a, b, "max_common_layout")
    n, inverse = _common(*plain, limit)
    return ONE if n == 1 else composition(inverse, n)


def max_common_vector(a: Any, b: Any) -> int:
    """Number of elements that one access can move from a tensor of layout A to one of layout B.

    The largest n found with `A(B^-1(i)) == i` for i < n; never too large. Of a swizzled layout at most the 2^M elements
    that Sw<B,M,S> leaves next to each other, and as many as divide the offset in front of it. Equal swizzles do not
    cancel: beyond 2^M elements the order in a vector depends on the vector's index, which the two layouts share in the
    first vector only; and a vector's first element is not at its lowest address.

    >>> max_common_vector("Sw<1,0,3> o 0 o (8,8):(1,8)", "Sw<1,0,3> o 0 o (8,8):(1,16)")
    1
    """
    plain, limit = _operands(a, b, "max_common_vector")
    n, _inverse = _common(*plain, None)
    return n if limit is None else min(n, limit)


def _operands(a: Any, b: Any, op: str) -> tuple[tuple[Layout, Layout], int | None]:
    """The layouts behind the swizzles, and the most elements that these leave contiguous and in place."""
    a, b = as_any(a, op), as_any(b, op)
    limits = []
    for x in (a, b):
        if not isinstance(x, Layout):
            limits += [2**x.swizzle.base] if x.swizzle.bits else []
            limits += [x.offset] if x.offset else []
    plain_a, plain_b = (x if isinstance(x, Layout) else x.layout for x in (a, b))
    return (plain_a, plain_b), math.gcd(*limits) if limits else None


@functools.lru_cache(CACHE)
def _common(a: Layout, b: Layout, limit: int | None) -> tuple[int, Layout]:
    inverse = _right_inverse(b)
    n = min(inverse.size, a.size)
    if limit is not None:
        n = min(n, limit)
    while n > 1:
        try:
            both = coalesced(compose_plain(a, compose_plain(inverse, tile_of("max_common_vector", n), False), False))
        except LayoutError:
            n //= next((p for p in range(2, math.isqrt(n) + 1) if n % p == 0), n)  # the next smaller divisor
            continue
        first, stride = both.leaves[0]
        return (first if stride == 1 else 1), inverse
    return 1, inverse


def max_alignment(layout: Any) -> int:
    """The largest n for which the layout's indices are whole vectors of n, each beginning at a multiple of n.

    That bounds the width of an access, in elements.

    >>> max_alignment("(8,3):(1,12)")
    4
    """
    layout = as_any(layout, "max_alignment")
    if not isinstance(layout, Layout):
        n = math.gcd(max_alignment(layout.layout), layout.offset)
        return math.gcd(n, 2**layout.swizzle.base) if layout.swizzle.bits else n
    found, others = _chain(layout)
    return functools.reduce(math.gcd, (d for _s, d in others), math.prod(s for s, _d, _at in found))


def nullspace(layout: Any) -> Layout:
    """The layout of the positions that all have index 0: `L(R(i)) == 0`. Its size is how often each index is repeated.

    >>> nullspace("(5,16):(1,0)")
    Layout('16:5')
    """
    layout = as_any(layout, "nullspace")
    layout = layout if isinstance(layout, Layout) else layout.layout  # a swizzle is a bijection
    out, before = [], 1
    for s, d in layout.leaves:
        if d == 0 and s > 1:
            out.append((s, before))
        before *= s
    return from_leaves(out)
