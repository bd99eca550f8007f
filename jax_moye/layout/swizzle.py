"""Swizzles, and layouts behind a swizzle.

A swizzle exchanges index bits so that rows of a tile begin in different banks of shared memory. It is no layout (no
strides describe it), but `Sw o offset o L` behaves as one in every operation that only looks at L.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jax_moye.layout import coords
from jax_moye.layout import int_tuple as it
from jax_moye.layout.errors import BadSwizzle, InvalidType, NoStride, UpcastDivisibility
from jax_moye.layout.int_tuple import _
from jax_moye.layout.layout import Layout, as_layout, join_coord, make
from jax_moye.layout.modes import get, slice_and_offset, take

if TYPE_CHECKING:
    import numpy as np

_set = object.__setattr__


@dataclasses.dataclass(frozen=True, slots=True, init=False, repr=False)
class Swizzle:
    """Sw<bits, base, shift>: XORs `bits` index bits onto lower ones.

    Bits [base+shift, base+shift+bits) of an index (the Y mask) are XORed onto bits [base, base+bits) (the Z mask); the
    lowest `base` bits stay, so 2^base elements stay together. With shift < 0 the masks change places.

    Law: its own inverse, and a bijection on every aligned range of 2^(base+bits+|shift|) indices.

    Args:
      bits: number of bits, or the text `"Sw<3,4,3>"`.
      base: number of low bits that stay.
      shift: distance of the masks, |shift| >= bits.

    Example:
      >>> Swizzle(3, 3, 3)(72), Swizzle("Sw<2,4,3>").yyy_mask
      (64, 384)
      >>> Swizzle(3, 3, 3) @ Layout("(8,64):(64,1)")
      ComposedLayout('Sw<3,3,3> o 0 o (8,64):(64,1)')

    Raises:
      BadSwizzle: bits or base negative, or |shift| < bits.
    """

    bits: int
    base: int
    shift: int

    def __init__(self, bits: Any, base: Any = None, shift: Any = None):
        """See the class."""
        if isinstance(bits, str) and base is None and shift is None:
            from jax_moye.layout import notation

            parsed = notation.parse(bits)
            if not isinstance(parsed, Swizzle):
                raise InvalidType("Swizzle", (bits,), "the text of a layout", '"Sw<3,4,3>"')
            bits, base, shift = parsed.bits, parsed.base, parsed.shift
        base = 0 if base is None else base
        shift = bits if shift is None else shift
        given = (bits, base, shift)
        bits, base, shift = (it.as_int(x, "Swizzle", given) for x in given)
        if bits < 0 or base < 0:
            hint = str(f"Sw<{max(bits, 0)},{max(base, 0)},{shift}>") if abs(shift) >= bits else None
            raise BadSwizzle("Swizzle", given, f"bits {bits} and base {base} must not be negative", hint)
        if abs(shift) < bits:
            raise BadSwizzle(
                "Swizzle",
                given,
                f"|shift| {abs(shift)} is smaller than bits {bits}: the masks overlap",
                f"Sw<{bits},{base},{bits if shift >= 0 else -bits}> or Sw<{abs(shift)},{base},{shift}>",
            )
        if max(bits, base, abs(shift)) > 64:
            raise BadSwizzle("Swizzle", given, "more than 64 bits")
        _set(self, "bits", bits)
        _set(self, "base", base)
        _set(self, "shift", shift)

    @property
    def zzz_mask(self) -> int:
        """The bits that are changed."""
        return ((1 << self.bits) - 1) << (self.base - min(self.shift, 0))

    @property
    def yyy_mask(self) -> int:
        """The bits that change them."""
        return ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))

    @property
    def period(self) -> int:
        """2^(base+bits+|shift|): the swizzle permutes every aligned range of so many indices in the same way."""
        return 1 << (self.base + self.bits + abs(self.shift))

    def __call__(self, index: Any) -> Any:
        """The swizzled index. NumPy arrays of integers are swizzled element by element."""
        y = index & self.yyy_mask
        return index ^ (y >> self.shift if self.shift >= 0 else y << -self.shift)

    def __str__(self) -> str:
        """The text."""
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    def __repr__(self) -> str:
        """The text with the class."""
        return f"Swizzle('{self}')"

    def to_cpp(self) -> str:
        """The type of the same swizzle in `cuda/moye`."""
        return f"Swizzle<{self.bits},{self.base},{self.shift}>"

    def compose_left(self, other: Any, *, extend: bool = False) -> Any:
        """`self o other`, where `other` is a layout, composed layout or swizzle."""
        if isinstance(other, str):
            from jax_moye.layout import notation

            other = notation.parse(other)
        if isinstance(other, Swizzle):
            return _compose_swizzles(self, other)
        if isinstance(other, ComposedLayout):
            return ComposedLayout(_compose_swizzles(self, other.swizzle), other.offset, other.layout)
        return ComposedLayout(self, 0, as_layout(other, "composition"))

    def compose_right(self, left: Layout) -> Any:
        """`left o self`: no layout. Raises InvalidType."""
        raise InvalidType("composition", (left, self), "a layout after a swizzle is no layout", f"{self} o {left}")

    def __matmul__(self, other: Any) -> Any:
        """`Sw @ L`: composition(Sw, L)."""
        return self.compose_left(other)

    def upcast(self, n: int) -> Swizzle:
        """The same swizzle on elements n times as large."""
        e = _log2("upcast", self, n)
        base = self.base - e
        bits = self.bits
        if base < 0:
            # The lowest bits of the masks vanish inside an element.
            bits, base = max(bits + base, 0), 0
        return Swizzle(bits, base, self.shift)

    def downcast(self, n: int) -> Swizzle:
        """The same swizzle on elements n times as small."""
        return Swizzle(self.bits, self.base + _log2("downcast", self, n), self.shift)


def _log2(op: str, swizzle: Any, n: int) -> int:
    n = it.as_int(n, op, (swizzle, n))
    if n < 1 or n & (n - 1):
        raise UpcastDivisibility(op, (swizzle, n), f"a swizzle moves bits: {n} is not a power of two")
    return n.bit_length() - 1


def _compose_swizzles(a: Swizzle, b: Swizzle) -> Swizzle:
    if a.shift != b.shift:
        if not a.bits or not b.bits:
            return a if a.bits else b
        hint = f"{a} o Sw<{b.bits},{b.base},{a.shift}>" if abs(a.shift) >= b.bits else None
        raise BadSwizzle("composition", (a, b), f"shifts {a.shift} and {b.shift} differ", hint)
    y, z = a.yyy_mask ^ b.yyy_mask, a.zzz_mask ^ b.zzz_mask
    if y == 0:
        return Swizzle(0, a.base, a.shift)
    if a.yyy_mask & b.zzz_mask:
        raise BadSwizzle("composition", (a, b), f"{b} changes bits that {a} reads")
    try:
        return make_swizzle(y, z)
    except BadSwizzle as error:
        raise error.inside("composition", (a, b)) from None


def make_swizzle(y: int, z: int) -> Swizzle:
    """The swizzle that XORs the bits of mask `y` onto those of mask `z`.

    >>> make_swizzle(0b1110000000, 0b0001110000)
    Swizzle('Sw<3,4,3>')

    Raises:
      BadSwizzle: the masks have different numbers of bits, have gaps, or overlap.
    """
    y, z = it.as_int(y, "make_swizzle"), it.as_int(z, "make_swizzle")
    given = (y, z)
    if y < 0 or z < 0:
        raise BadSwizzle("make_swizzle", given, "a negative mask")
    bits = y.bit_count()
    if bits != z.bit_count():
        raise BadSwizzle("make_swizzle", given, f"{y:#b} has {bits} bits, {z:#b} has {z.bit_count()}")
    if bits == 0:
        return Swizzle(0, 0, 0)
    low_y, low_z = (y & -y).bit_length() - 1, (z & -z).bit_length() - 1
    for mask, low in ((y, low_y), (z, low_z)):
        if mask >> low != (1 << bits) - 1:
            raise BadSwizzle("make_swizzle", given, f"the bits of {mask:#b} are not next to each other")
    return Swizzle(bits, min(low_y, low_z), low_y - low_z)


@dataclasses.dataclass(frozen=True, slots=True, init=False, repr=False)
class ComposedLayout:
    """`Sw o offset o L`: the function `c -> Sw(offset + L(c))`.

    Shape, size, and every operation that rearranges coordinates (divide, product, coalesce, tile_to_shape, group, take,
    by-mode composition) are those of L. It has no strides. Slicing keeps the swizzle only where it is still needed:
    see `slice_and_offset`.

    Args:
      swizzle: Swizzle or its text; or the text of the whole.
      offset: an integer added before the swizzle.
      layout: Layout or its text.

    Example:
      >>> S = ComposedLayout("Sw<3,3,3> o 0 o (8,64):(64,1)")
      >>> S(3, 0), S.size
      (216, 512)
      >>> slice_and_offset((3, None), S)
      (Layout('((8,4,2)):((1,-8,32))'), 216)

    Raises:
      NoStride: on access of `stride`. (It is an AttributeError too.)
    """

    swizzle: Swizzle
    offset: int
    layout: Layout

    def __init__(self, swizzle: Any, offset: Any = 0, layout: Any = None):
        """See the class."""
        if isinstance(swizzle, str) and layout is None:
            from jax_moye.layout import notation

            parsed = notation.parse(swizzle)
            if not isinstance(parsed, ComposedLayout):
                raise InvalidType("ComposedLayout", (swizzle,), "no swizzled layout", '"Sw<3,3,3> o 0 o (8,64):(64,1)"')
            swizzle, offset, layout = parsed.swizzle, parsed.offset, parsed.layout
        if isinstance(swizzle, str):
            swizzle = Swizzle(swizzle)
        if not isinstance(swizzle, Swizzle):
            raise InvalidType("ComposedLayout", (swizzle, offset, layout), f"{swizzle!r} is no swizzle")
        _set(self, "swizzle", swizzle)
        _set(self, "offset", it.as_int(offset, "ComposedLayout"))
        _set(self, "layout", as_layout(layout, "ComposedLayout"))

    def with_layout(self, layout: Layout) -> ComposedLayout:
        """The same swizzle and offset on another layout."""
        return ComposedLayout(self.swizzle, self.offset, layout)

    # ---- Text

    def __str__(self) -> str:
        """The text."""
        return f"{self.swizzle} o {self.offset} o {self.layout}"

    def __repr__(self) -> str:
        """The text with the class."""
        return f"ComposedLayout('{self}')"

    def to_cpp(self) -> str:
        """The type of the same layout in `cuda/moye`."""
        return f"ComposedLayout<{self.swizzle.to_cpp()},Int<{self.offset}>,{self.layout.to_cpp()}>"

    # ---- Numbers

    @property
    def shape(self) -> it.IntTuple:
        """The shape of the inner layout."""
        return self.layout.shape

    @property
    def stride(self) -> Any:
        """There is none: raises NoStride."""
        raise NoStride(
            "stride", (self,), "a swizzled layout has no strides", "slice it, or .layout.stride before the swizzle"
        )

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.layout.size

    @property
    def cosize(self) -> int:
        """The cosize of the inner layout; indices may reach further, up to a multiple of the swizzle's period."""
        return self.layout.cosize

    @property
    def rank(self) -> int:
        """Number of modes."""
        return self.layout.rank

    @property
    def depth(self) -> int:
        """Depth of nesting."""
        return self.layout.depth

    # ---- As a function

    def __call__(self, *coord: Any) -> Any:
        """The index of a coordinate; with `_` or None in it, the layout kept, as `slice_and_offset` gives it."""
        c = it.as_coord(join_coord(coord, self), "ComposedLayout")
        if it.has_underscore(c):
            return self.slice_and_offset(c)[0]
        return self.swizzle(self.offset + coords.crd2idx(c, self.layout.shape, self.layout.stride))

    def values(self) -> np.ndarray:
        """All indices in colexicographic order of the coordinates."""
        return self.swizzle(self.layout.values() + self.offset)

    def slice_and_offset(self, coord: Any) -> tuple[Any, int]:
        """The layout of the modes kept and an offset: `self(c) == offset + sliced(the part kept)`.

        The fixed part of the coordinate fixes index bits. Where each bit that the swizzle still changes depends on one
        kept bit only, the result is a plain layout: a flipped bit has its stride negated. Otherwise it stays composed,
        with the fixed bits that the swizzle looks at inside, and the others in the offset.
        """
        if coord is _ or (isinstance(coord, tuple) and all(c is _ for c in it.leaves(coord))):
            slice_and_offset(coord, self.layout)  # checks
            kept = slice_and_offset(coord, self.layout)[0]
            return self.with_layout(kept), 0
        kept, at = slice_and_offset(coord, self.layout)
        return _settle(self.swizzle, self.offset + at, kept)

    # ---- Modes and algebra

    def __len__(self) -> int:
        """The rank."""
        return self.rank

    def __iter__(self) -> Iterator[ComposedLayout]:
        """The modes."""
        return (self.with_layout(m) for m in self.layout)

    def __getitem__(self, key: Any) -> Any:
        """Mode `key`, modes `a:b`, or the slice that a tuple with `_` in it keeps."""
        if isinstance(key, tuple) or key is Ellipsis or it.is_underscore(key):
            coord = it.as_coord(join_coord(key if isinstance(key, tuple) else (key,), self), "ComposedLayout")
            if not it.has_underscore(coord):
                raise InvalidType("ComposedLayout", (self, key), "a coordinate in brackets keeps no mode")
            return self.slice_and_offset(coord)[0]
        if isinstance(key, slice):
            begin, end, _step = key.indices(self.rank)
            return take(self, begin, end)
        return get(self, key)

    def compose_left(self, other: Any, *, extend: bool = False) -> ComposedLayout:
        """`self o other`: composition of the inner layout with a layout or tiler."""
        from jax_moye.layout import algebra

        return self.with_layout(algebra.composition(self.layout, other, extend=extend))

    def compose_right(self, left: Layout) -> Any:
        """`left o self`: not a layout, unless left changes nothing."""
        raise InvalidType("composition", (left, self), "a layout after a swizzled layout has no layout")

    def right_inverse(self) -> SwizzledInverse:
        """`right_inverse(L) o Sw`: a function, not a layout."""
        from jax_moye.layout import inverse

        return SwizzledInverse(inverse.right_inverse(self.layout), self.offset, self.swizzle)

    def left_inverse(self) -> SwizzledInverse:
        """`left_inverse(L) o Sw`: a function, not a layout."""
        from jax_moye.layout import inverse

        return SwizzledInverse(inverse.left_inverse(self.layout), self.offset, self.swizzle)

    def __matmul__(self, other: Any) -> Any:
        """`S @ L`: composition(S, L)."""
        return self.compose_left(other)

    def __truediv__(self, tiler: Any) -> Any:
        """`S / T`: logical_divide(S, T)."""
        from jax_moye.layout import divide

        return divide.logical_divide(self, tiler)

    def __mul__(self, other: Any) -> Any:
        """`S * B`: logical_product(S, B)."""
        from jax_moye.layout import divide

        return divide.logical_product(self, other)

    def upcast(self, n: int) -> ComposedLayout:
        """The same memory in elements n times as large."""
        from jax_moye.layout import cast

        if self.offset % n:
            raise UpcastDivisibility("upcast", (self, n), f"the offset {self.offset} is not a multiple of {n}")
        return ComposedLayout(self.swizzle.upcast(n), self.offset // n, cast.upcast(self.layout, n))

    def downcast(self, n: int) -> ComposedLayout:
        """The same memory in elements n times as small."""
        from jax_moye.layout import cast

        return ComposedLayout(self.swizzle.downcast(n), self.offset * n, cast.downcast(self.layout, n))


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class SwizzledInverse:
    """`L o -offset o Sw`: the inverse of a swizzled layout, from indices to positions."""

    layout: Layout
    offset: int
    swizzle: Swizzle

    @property
    def size(self) -> int:
        """Number of indices it is defined for, from `offset` on."""
        return self.layout.size

    def __call__(self, index: int) -> int:
        """The position of an index."""
        return self.layout(self.swizzle(index) - self.offset)

    def __str__(self) -> str:
        """The text."""
        return f"{self.layout} o {-self.offset} o {self.swizzle}"

    def __repr__(self) -> str:
        """The text with the class."""
        return f"SwizzledInverse({self})"


# ---- Slicing -------------------------------------------------------------------------------------------------------


def _settle(swizzle: Swizzle, offset: int, kept: Layout) -> tuple[Any, int]:
    """`c -> Sw(offset + kept(c))` as a layout, plain if possible, and an offset outside."""
    y_mask, z_mask = swizzle.yyy_mask, swizzle.zzz_mask
    special = y_mask | z_mask
    active, clash = 0, offset < 0
    for s, d in kept.leaves:
        if s > 1 and d:
            # Bits that the mode may set: from the lowest bit of its stride to the highest of its last index.
            bits = (1 << ((s - 1) * abs(d)).bit_length()) - (abs(d) & -abs(d))
            clash |= d < 0 or bool(active & bits)
            active |= bits
    if clash or offset & active:
        low = active & -active
        reach = (1 << (offset + kept.cosize).bit_length()) - low
        if active and not special & reach and offset >= 0 and all(d >= 0 for _s, d in kept.leaves):
            return kept, swizzle(offset)
        return ComposedLayout(swizzle, offset, kept), 0
    composed = ComposedLayout(swizzle, offset & special, kept), offset & ~special
    if (swizzle(active & y_mask) ^ (active & y_mask)) & active:
        return composed  # a bit that depends on two kept bits
    if not active & special:
        return kept, swizzle(offset)
    parts = []
    for s, d in kept.leaves:
        split = _split(swizzle, offset, s, d)
        if split is None:
            return composed
        parts.append(split)
    rest = iter(parts)
    nested = it.transform_leaf(lambda _: next(rest), kept.shape)
    plain = make(
        it.transform_leaf(lambda p: p.shape, nested),
        it.transform_leaf(lambda p: p.stride, nested),
    )
    return plain, swizzle(offset)


def _split(swizzle: Swizzle, offset: int, s: int, d: int) -> Layout | None:
    """The mode s:d behind the swizzle when all other bits are those of `offset`; None if no strides describe it."""
    from jax_moye.layout import algebra

    special = swizzle.yyy_mask | swizzle.zzz_mask
    if s == 1 or d == 0 or not ((1 << ((s - 1) * d).bit_length()) - (d & -d)) & special:
        return make(s, d)
    if s > 2 and d & (d - 1):
        return None
    start = swizzle(offset)
    modes, extent, unit = [], s, d
    while extent % 2 == 0:
        modes.append((2, swizzle(offset + unit) - start))
        extent //= 2
        unit *= 2
    if extent > 1:
        if ((1 << ((extent - 1) * unit).bit_length()) - unit) & special:
            return None
        modes.append((extent, unit))
    return algebra.coalesce(make(tuple(m[0] for m in modes), tuple(m[1] for m in modes)))
