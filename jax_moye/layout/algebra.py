"""The algebra of layouts: coalesce, composition, complement, inverses, and what follows from them.

Laws are stated with `L(c)` for the index of a coordinate or of a position in [0, size). Results that extend beyond a
layout's size are only given where the caller asks for them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from jax_moye.layout import int_tuple as it
from jax_moye.layout.errors import (
    Carry,
    InvalidShape,
    LayoutError,
    LeftInverseDivisibility,
    NonInjective,
    OutOfDomain,
    ProfileMismatch,
    ProfileTooLong,
    ShapeDivisibility,
    StrideDivisibility,
    TilerTooLong,
)
from jax_moye.layout.int_tuple import _, as_int_tuple, show
from jax_moye.layout.layout import (
    ONE,
    Layout,
    as_any,
    as_layout,
    as_tiler,
    from_leaves,
    make,
    on_layout,
)
from jax_moye.layout.modes import make_layout

_CACHE = 4096  # results kept for each operation
Leaves = tuple[tuple[int, int], ...]


# ---- coalesce ------------------------------------------------------------------------------------------------------


def _merge(leaves: Any) -> list[tuple[int, int]]:
    """The (extent, stride) pairs without extents 1 and with neighbours joined where one goes on as the other ends."""
    out: list[tuple[int, int]] = []
    for s, d in leaves:
        if s == 1:
            continue
        if out and d == out[-1][0] * out[-1][1]:
            out[-1] = (out[-1][0] * s, out[-1][1])
        else:
            out.append((s, d))
    return out


@functools.lru_cache(_CACHE)
def _coalesced(layout: Layout) -> Layout:
    return from_leaves(_merge(layout.leaves))


@on_layout
def coalesce(layout: Any, profile: Any = None) -> Layout:
    """The same function with as few leaves as possible; with a profile, mode by mode.

    Law: `R.size == L.size`, `R(i) == L(i)` for every i < size, `R.depth <= 1`, no two neighbours could be joined. Two
    layouts are the same function exactly if their coalesced forms are equal.

    Args:
      layout: any layout.
      profile: an IntTuple; the part of the layout below each of its leaves is coalesced for itself. Modes beyond the
        profile's stay.

    >>> coalesce("(2,(1,6)):(1,(6,2))")
    Layout('12:1')

    Raises:
      ProfileTooLong: the profile has more modes than the layout.
    """
    if profile is None:
        return _coalesced(layout)
    return _by_profile("coalesce", layout, as_int_tuple(profile, "coalesce"), _coalesced)


def _by_profile(op: str, layout: Layout, profile: Any, function: Any) -> Layout:
    if not isinstance(profile, tuple):
        return function(layout)
    if len(profile) > layout.rank:
        raise ProfileTooLong(op, (layout, profile), f"the profile has {len(profile)} modes, the layout {layout.rank}")
    modes = list(layout)
    for i, p in enumerate(profile):
        if isinstance(p, tuple) and not isinstance(modes[i].shape, tuple) and len(p) > 1:
            raise ProfileTooLong(op, (layout, profile), f"the profile has {len(p)} modes at the leaf {modes[i]}")
        modes[i] = _by_profile(op, modes[i], p, function) if isinstance(modes[i].shape, tuple) else function(modes[i])
    return make_layout(*modes)


@on_layout
def filter_zeros(layout: Any, profile: Any = None) -> Layout:
    """The layout with the extents of stride-0 leaves set to 1 (with a profile: of the parts where it is 0)."""
    if profile is not None:
        profile = as_int_tuple(profile, "filter_zeros")
        if not it.weakly_congruent(profile, layout.shape):
            raise ProfileMismatch(
                "filter_zeros", (layout, profile), f"{show(profile)} does not fit {show(layout.shape)}"
            )
        return make(_ones_where_zero(layout.shape, profile), layout.stride)
    return make(_ones_where_zero(layout.shape, layout.stride), layout.stride)


def _ones_where_zero(shape: Any, guide: Any) -> Any:
    if isinstance(guide, tuple):
        return tuple(map(_ones_where_zero, shape, guide))
    return it.repeat_like(shape, 1) if guide == 0 else shape


@on_layout
def filter(layout: Any, profile: Any = None) -> Layout:
    """The layout without what repeats indices: coalesced, with no stride 0.

    Law: the image is that of the layout, and `filter(L).size * nullspace(L).size == L.size`.

    >>> filter("(4,2):(0,1)")
    Layout('2:1')
    """
    return coalesce(filter_zeros(layout), profile)


# ---- composition ---------------------------------------------------------------------------------------------------


def composition(a: Any, b: Any, *, extend: bool = False) -> Any:
    """`A o B`: the layout R with `R(c) == A(B(c))` for every coordinate c of B; its shape refines B's.

    CuTe checks less than this law needs, and returns wrong layouts for some operands; here each of them raises.

    Args:
      a: a layout, composed layout, or swizzle.
      b: a layout (or its text), or an integer n (that is n:1); or a tiler, which acts mode by mode: a tuple or `Tile`
        of layouts, integers, tilers and `_` (the mode stays). Modes of A beyond the tiler's are dropped, as in CuTe.
      extend: let B's image leave A's domain: A's last mode then goes on with its stride, as in CuTe.

    Example:
      >>> composition("20:2", "(5,4):(4,1)")
      Layout('(5,4):(8,2)')
      >>> composition("(12,(4,8)):(59,(13,1))", "[3:4;8:2]")
      Layout('(3,(2,4)):(236,(26,1))')

    Raises:
      StrideDivisibility: a stride of B neither divides nor is divided by an extent of A that it steps over.
      ShapeDivisibility: an extent of B is not a multiple of what is left of an extent of A.
      Carry: modes of B add up past the end of a mode of A.
      OutOfDomain: B's image leaves A's domain (unless `extend`).
      TilerTooLong: the tiler has more modes than A.
    """
    if hasattr(a, "compose_left"):  # a swizzle, or a composed layout
        return a.compose_left(b, extend=extend)
    if isinstance(b, str):
        b = as_tiler(b, "composition")
    a = as_any(a, "composition")
    if not isinstance(a, Layout):
        return a.compose_left(b, extend=extend)
    if hasattr(b, "compose_left"):
        return b.compose_right(a)
    return _compose_tiler("composition", a, as_tiler(b, "composition"), extend)


def _compose_tiler(op: str, a: Layout, tiler: Any, extend: bool) -> Layout:
    if type(tiler) is Layout:
        return _compose(a, tiler, extend)
    if tiler is _:
        return a
    if isinstance(tiler, tuple):
        check_tiler(op, a, tiler)
        return make_layout(*(_compose_tiler(op, m, t, extend) for m, t in zip(a, tiler, strict=False)))
    return _compose(a, tile_of(op, tiler), extend)


def tile_of(op: str, n: int) -> Layout:
    """The tiler n:1 that an integer stands for."""
    if n < 1:
        raise InvalidShape(op, (n,), f"a tile of {n} elements")
    return make(n, 0 if n == 1 else 1)


def check_tiler(op: str, layout: Layout, tiler: tuple[Any, ...]) -> None:
    """Raises if a tiler has more modes than the layout."""
    if len(tiler) > layout.rank:
        raise TilerTooLong(op, (layout, tiler), f"the tiler has {len(tiler)} modes, the layout {layout.rank}")


def _extendable(layout: Layout) -> list[tuple[int, int]]:
    """Coalesced leaves of the same function, also beyond the size: a last extent 1 still says how it goes on."""
    leaves = layout.leaves
    s, d = leaves[-1]
    out = [(2 if s == 1 else s, d)]
    for s, d in reversed(leaves[:-1]):
        if s == 1:
            continue
        if s * d == out[0][1]:
            out[0] = (s * out[0][0], d)
        else:
            out.insert(0, (s, d))
    return out


@functools.lru_cache(_CACHE)
def _compose(a: Layout, b: Layout, extend: bool) -> Layout:
    if not a.leaves:
        a = ONE
    flat = _extendable(a)
    last = len(flat) - 1
    reach = [0] * len(flat)  # the largest digit of each mode of A that B asks for
    parts = []
    for k, (s, d) in enumerate(b.leaves):
        parts.append(_compose_leaf(a, b, flat, k, s, d, reach))
    for i in range(last):
        if reach[i] > flat[i][0] - 1:
            raise Carry(
                "composition",
                (a, b),
                f"the modes of {b} add up to {reach[i]} in mode {i} of the coalesced left operand, {flat[i][0]}:"
                f"{flat[i][1]}, whose largest coordinate is {flat[i][0] - 1}",
            )
    if not extend:
        low = sum((s - 1) * min(d, 0) for s, d in b.leaves)
        high = sum((s - 1) * max(d, 0) for s, d in b.leaves)
        if high >= a.size or low < 0:
            raise OutOfDomain(
                "composition",
                (a, b),
                f"indices {low} to {high} of the right operand do not lie in [0,{a.size}), the domain of the left",
                "extend=True goes on with the stride of the last mode" if low == 0 else None,
            )
    rest = iter(parts)
    nested = it.transform_leaf(lambda _: next(rest), b.shape)
    return make(it.transform_leaf(lambda p: p.shape, nested), it.transform_leaf(lambda p: p.stride, nested))


def _compose_leaf(
    a: Layout, b: Layout, flat: list[tuple[int, int]], k: int, s: int, d: int, reach: list[int]
) -> Layout:
    """A after one leaf s:d of B; adds to `reach`."""
    last = len(flat) - 1
    if d == 0 or last == 0:
        return make(s, d * flat[0][1] if d else 0)
    if d < 0:
        raise OutOfDomain("composition", (a, b), f"mode {k} of the right operand, {s}:{d}, runs below index 0")
    rest, step, out = s, d, []

    def where(i: int) -> str:
        return f"mode {i} of the coalesced left operand, {flat[i][0]}:{flat[i][1]}"

    for i in range(last):
        extent, stride = flat[i]
        if step % extent == 0:
            step //= extent
            continue
        if step > extent:
            raise StrideDivisibility(
                "composition",
                (a, b),
                f"stride {d} of mode {k} of the right operand, {s}:{d}, comes to {step} at {where(i)}, and"
                f" {step} % {extent} = {step % extent}",
                _near_tile(a, s, d),
            )
        here = -(-extent // step)  # elements of this mode of A that the steps meet
        take = min(here, rest)
        if rest % take:
            raise ShapeDivisibility(
                "composition",
                (a, b),
                f"extent {s} of mode {k} of the right operand, {s}:{d}, leaves {rest} elements at {where(i)}, of which"
                f" stride {step} meets {here}, and {rest} % {take} = {rest % take}",
                _near_tile(a, s, d),
            )
        if rest > take and extent % step:
            raise StrideDivisibility(
                "composition",
                (a, b),
                f"stride {d} of mode {k} of the right operand, {s}:{d}, comes to {step} at {where(i)}, and"
                f" {extent} % {step} = {extent % step}: the steps do not end where the mode does",
                _near_tile(a, s, d),
            )
        reach[i] += (take - 1) * step
        if take > 1:
            out.append((take, step * stride))
        rest //= take
        step = -(-step // extent)
        if rest == 1:
            break
    if rest > 1 or not out:
        if rest == 1 and s > 1:
            return from_leaves(out)
        reach[last] += (rest - 1) * step
        out.append((rest, step * flat[last][1]))
    return from_leaves(out)


def _near_tile(a: Layout, s: int, d: int) -> str | None:
    """The admissible tile nearest to s:d: another extent first, else another stride too."""
    found = []
    for extent in range(max(1, s // 2, s - 64), min(2 * s, s + 64, a.size) + 1):
        for stride in {d, d + 1, d - 1, 2 * d, d // 2, 1} - {0}:
            if stride < 0 or (extent, stride) == (s, d) or extent * stride > 2 * a.size or extent == 1:
                continue
            found.append((stride != d, abs(extent - s), abs(stride - d), extent, stride))
    for _changed, _ds, _dd, extent, stride in sorted(found)[:40]:
        if _admissible(a, extent, stride):
            return f"{extent}:{stride} is admissible in place of {s}:{d}"
    return None


def _admissible(a: Layout, s: int, d: int) -> bool:
    """Whether A o s:d exists, by the rule of `_compose_leaf` with nothing raised."""
    if (s - 1) * d >= a.size:
        return False
    flat = _extendable(a)
    rest, step = s, d
    for extent, _stride in flat[:-1]:
        if rest == 1:
            return True
        if step % extent == 0:
            step //= extent
            continue
        take = min(-(-extent // step), rest)
        if step > extent or rest % take or (rest > take and extent % step):
            return False
        rest //= take
        step = 1
    return True


# ---- complement ----------------------------------------------------------------------------------------------------


def complement(layout: Any, cotarget: Any = None) -> Layout:
    """The layout R that repeats L to fill `cotarget`: the sums `L(a) + R(b)` are all different.

    Law: R strictly increases, `R(i)` is no index of L for i >= 1. Where each stride of L, in order, is a multiple of
    what the smaller ones cover, the sums fill the range [0, cotarget) without holes.

    Args:
      layout: a layout; its stride-0 modes do not count.
      cotarget: the number of indices to be filled, an integer or a shape. None: the layout's own cosize.

    >>> complement("(2,4):(1,6)", 24)
    Layout('3:2')
    >>> complement("4:2", 24)
    Layout('(2,3):(1,8)')

    Raises:
      NonInjective: two modes overlap: sorted by stride, one begins before the one before it ends.
    """
    layout = as_layout(layout, "complement")
    if cotarget is not None:
        cotarget = cotarget.shape if isinstance(cotarget, Layout) else as_int_tuple(cotarget, "complement")
        for s in it.leaves(cotarget):
            if s < 1:
                raise InvalidShape("complement", (layout, cotarget), f"a target of {s}")
    return _complement(layout, cotarget)


@functools.lru_cache(_CACHE)
def _complement(layout: Layout, cotarget: Any) -> Layout:
    leaves = sorted((d, s) for s, d in filter(layout).leaves if d != 0)
    if cotarget is None:
        cotarget = 1 + sum((s - 1) * abs(d) for d, s in leaves)
    out, covered = [], 1
    for d, s in leaves:
        if d < covered:
            raise NonInjective(
                "complement",
                (layout, cotarget),
                f"mode {s}:{d} begins at {d}, before index {covered}, up to which the modes of smaller stride reach",
                f"{s}:{covered} in place of {s}:{d}" if d > 0 else None,
            )
        out.append((d // covered, covered))
        covered = s * d
    out.append((it.product(it.ceil_div(cotarget, covered)), covered))
    return from_leaves(_merge(out))


# ---- inverses ------------------------------------------------------------------------------------------------------


def _chain(layout: Layout) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """The modes that count indices 0, 1, 2, ... in order, as (extent, stride, position of its step); and the others."""
    found, others, before = [], [], 1
    table = []
    for s, d in _coalesced(layout).leaves:
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


@functools.lru_cache(_CACHE)
def _right_inverse(layout: Layout) -> Layout:
    return from_leaves(_merge((s, at) for s, _d, at in _chain(layout)[0]))


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


@functools.lru_cache(_CACHE)
def _left_inverse(layout: Layout) -> Layout:
    flat = _coalesced(layout)
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
                f"a stride of {d + -d % reach} would be" if d > 0 else None,
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
    return from_leaves(_merge(out))


# ---- what two layouts share ----------------------------------------------------------------------------------------


def max_common_layout(a: Any, b: Any) -> Layout:
    """The layout R of the largest n elements that lie contiguously, and equally, in both: `A(R(i)) == B(R(i)) == i`.

    >>> max_common_layout("(8,4):(4,1)", "(8,4):(4,1)")
    Layout('(4,8):(8,1)')
    """
    n, inverse = _common(a, b, "max_common_layout")
    return ONE if n == 1 else composition(inverse, n)


def max_common_vector(a: Any, b: Any) -> int:
    """Number of elements that one access can move from a tensor of layout A to one of layout B.

    The largest n found with `A(B^-1(i)) == i` for i < n; never too large. With a swizzle Sw<B,M,S> at most 2^M.
    """
    return _common(a, b, "max_common_vector")[0]


def _common(a: Any, b: Any, op: str) -> tuple[int, Layout]:
    a, b = as_any(a, op), as_any(b, op)
    limit = None
    swizzles = [getattr(x, "swizzle", None) for x in (a, b)]
    inner = [x if isinstance(x, Layout) else x.layout for x in (a, b)]
    if any(s is not None and s.bits for s in swizzles):
        offsets = [getattr(x, "offset", 0) for x in (a, b)]
        if swizzles[0] != swizzles[1] or offsets[0] != offsets[1]:
            limit = min(2**s.base for s in swizzles if s is not None and s.bits)
            for offset in offsets:  # an offset inside the swizzle must leave the vector where it is
                limit = math.gcd(limit, offset) if offset else limit
    n, inverse = _common_plain(*inner)
    return (n if limit is None else min(n, limit)), inverse


@functools.lru_cache(_CACHE)
def _common_plain(a: Layout, b: Layout) -> tuple[int, Layout]:
    inverse = _right_inverse(b)
    n = min(inverse.size, a.size)
    while n > 1:
        try:
            both = _coalesced(_compose(a, _compose(inverse, tile_of("max_common_vector", n), False), False))
        except LayoutError:
            n = max(k for k in range(1, n) if n % k == 0)
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


def domain_distribute(shape: Any, parts: int) -> Layout:
    """An increasing layout into the positions of the shape, of as many elements as `parts` and the extents share.

    Law: its size divides `parts`.

    >>> domain_distribute((15, 14), 6)
    Layout('(3,2):(1,15)')
    """
    shape, out, before = as_int_tuple(shape, "domain_distribute"), [], 1
    rest = it.as_int(parts, "domain_distribute")
    if rest < 1:
        raise InvalidShape("domain_distribute", (shape, parts), f"{parts} parts")
    for s in it.leaves(shape):
        n = math.gcd(s, rest)
        out.append((n, before))
        rest //= n
        before *= s
    return from_leaves(_merge(out))


def functionally_equal(a: Any, b: Any) -> bool:
    """Whether two layouts have the same size and the same index at every position, whatever their shapes.

    >>> functionally_equal("(2,4):(1,2)", "8:1")
    True
    """
    a, b = as_any(a, "functionally_equal"), as_any(b, "functionally_equal")
    if isinstance(a, Layout) and isinstance(b, Layout):
        return _coalesced(a) == _coalesced(b)  # the coalesced form is canonical
    return a.size == b.size and bool((a.values() == b.values()).all())


def with_shape(layout: Any, *shape: Any) -> Any:
    """The layout read through another shape: composition with the column-major layout of it. MoYe.jl's `withshape`.

    >>> with_shape("16:3", 4, 4)
    Layout('(4,4):(3,12)')
    """
    return composition(layout, Layout(shape[0] if len(shape) == 1 else shape))


compose = composition
