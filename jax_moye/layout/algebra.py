"""The algebra of layouts: coalesce, composition, complement.

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

CACHE = 4096  # results kept for each operation


# ---- coalesce ------------------------------------------------------------------------------------------------------


def merge(leaves: Any) -> list[tuple[int, int]]:
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


@functools.lru_cache(CACHE)
def coalesced(layout: Layout) -> Layout:
    """`coalesce` of a Layout, without a profile."""
    return from_leaves(merge(layout.leaves))


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
        return coalesced(layout)
    return _by_profile("coalesce", layout, as_int_tuple(profile, "coalesce"), coalesced)


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
        return compose_plain(a, tiler, extend)
    if tiler is _:
        return a
    if isinstance(tiler, tuple):
        check_tiler(op, a, tiler)
        parts = []
        for i, (mode, t) in enumerate(zip(a, tiler, strict=False)):
            try:
                parts.append(_compose_tiler(op, mode, t, extend))
            except LayoutError as error:
                raise error.inside(op, (a, tiler), i) from None
        return make_layout(*parts)
    return compose_plain(a, tile_of(op, tiler), extend)


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


@functools.lru_cache(CACHE)
def compose_plain(a: Layout, b: Layout, extend: bool) -> Layout:
    """`composition` of two Layouts."""
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


@functools.lru_cache(CACHE)
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
    return from_leaves(merge(out))


# ---- the rest -------------------------------------------------------------------------------------------------------


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
    return from_leaves(merge(out))


def functionally_equal(a: Any, b: Any) -> bool:
    """Whether two layouts have the same size and the same index at every position, whatever their shapes.

    >>> functionally_equal("(2,4):(1,2)", "8:1")
    True
    """
    a, b = as_any(a, "functionally_equal"), as_any(b, "functionally_equal")
    if isinstance(a, Layout) and isinstance(b, Layout):
        return coalesced(a) == coalesced(b)  # the coalesced form is canonical
    return a.size == b.size and bool((a.values() == b.values()).all())


def with_shape(layout: Any, *shape: Any) -> Any:
    """The layout read through another shape: composition with the column-major layout of it. MoYe.jl's `withshape`.

    >>> with_shape("16:3", 4, 4)
    Layout('(4,4):(3,12)')
    """
    return composition(layout, Layout(shape[0] if len(shape) == 1 else shape))


compose = composition
