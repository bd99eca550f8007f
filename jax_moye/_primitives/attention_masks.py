"""Which scores masks let through: regions of them, whose booleans may be known while tracing or not.

    Mask      known: a diagonal of indices
    Traced    a boolean of the program, along any of the dimensions
    All       what lets through where all its parts do, or the reverse of that

A region is of an array, whose dimensions are numbers, or of scores, whose dimensions have labels. Each is the same as
another one where it is equal to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_MOST_PARTS = 8  # of a region: more are one boolean of the program


class Mask(NamedTuple):
    """What a mask lets through: where the sum of factors times indices, plus the offset, is not negative.

    Attributes:
      factors: by dimension: its number in an array, or its label.
      offset: an integer.
    """

    factors: frozenset[tuple[Any, int]]
    offset: int

    @property
    def is_causal(self) -> bool:
        """Whether each row of scores has its first keys, at least one, and no more."""
        behind = [factor for dim, factor in self.factors if dim != "k"]
        return ("k", -1) in self.factors and self.offset >= 0 and all(factor > 0 for factor in behind)

    @property
    def reverse(self) -> Mask:
        """What it leaves out."""
        return Mask(frozenset((dim, -factor) for dim, factor in self.factors), -self.offset - 1)


class Traced(NamedTuple):
    """What a boolean of the program lets through, which is not known while tracing.

    Attributes:
      name: of the boolean, as in `Flat`.
      dims: of each of its dimensions the one of the array; None where it has one index, 0.
      is_reverse: it leaves out instead.
    """

    name: Any
    dims: tuple[Any, ...]
    is_reverse: bool = False

    @property
    def reverse(self) -> Traced:
        """What it leaves out."""
        return self._replace(is_reverse=not self.is_reverse)


class All(NamedTuple):
    """Several regions' common one.

    Attributes:
      parts: the regions, two or more, each once.
      is_reverse: it leaves that out instead.
    """

    parts: tuple[Any, ...]
    is_reverse: bool = False

    @property
    def reverse(self) -> All:
        """What it leaves out."""
        return self._replace(is_reverse=not self.is_reverse)


Region = Mask | Traced | All


def parts_of(*regions: Region) -> tuple[Region, ...]:
    """Those that let through where all regions do, each once."""
    several = (one.parts if isinstance(one, All) and not one.is_reverse else (one,) for one in regions)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(several)))


def common(left: Region, right: Region) -> Region | None:
    """What both let through; None where that is too much to say."""
    parts = parts_of(left, right)
    if len(parts) == 1:
        return left
    return All(parts) if len(parts) <= _MOST_PARTS else None


def either(left: Region, right: Region) -> Region | None:
    """What one of them lets through, or both; None likewise."""
    found = common(left.reverse, right.reverse)
    return None if found is None else found.reverse


def moved(region: Region, name: Callable[[Any], Any]) -> Region:
    """The same of an array whose dimensions have other names.

    Args:
      region: of an array.
      name: of a dimension its new name; None where it has one index, 0.
    """
    if isinstance(region, All):
        return region._replace(parts=tuple(moved(part, name) for part in region.parts))
    if isinstance(region, Traced):
        return region._replace(dims=tuple(None if dim is None else name(dim) for dim in region.dims))
    return region._replace(factors=renamed_factors(region.factors, name))


def renamed_factors(factors: frozenset[tuple[Any, int]], name: Callable[[Any], Any]) -> frozenset[tuple[Any, int]]:
    """Those of an array whose dimensions have other names."""
    return frozenset((name(dim), factor) for dim, factor in factors if name(dim) is not None)


def dims_of(region: Region) -> frozenset[Any]:
    """The dimensions along which it may differ."""
    if isinstance(region, All):
        return frozenset().union(*map(dims_of, region.parts))
    if isinstance(region, Traced):
        return frozenset(dim for dim in region.dims if dim is not None)
    return frozenset(dim for dim, _ in region.factors)


def extent(region: Region, sizes: Mapping[Any, int]) -> bool | None:
    """Whether a region is all that there is, or nothing; None where neither is known.

    Args:
      region: of an array.
      sizes: of its dimensions.
    """
    if isinstance(region, Traced):
        return None
    if isinstance(region, All):
        found = {extent(part, sizes) for part in region.parts}
        whole = False if False in found else True if found == {True} else None
        return whole if whole is None else whole is not region.is_reverse
    ends = [factor * (sizes[dim] - 1) for dim, factor in region.factors]
    if region.offset + sum(min(0, end) for end in ends) >= 0:
        return True
    return False if region.offset + sum(max(0, end) for end in ends) < 0 else None


def names_of(region: Region) -> list[Any]:
    """The booleans of the program that it is made of, each once."""
    if isinstance(region, All):
        return list(dict.fromkeys(name for part in region.parts for name in names_of(part)))
    return [region.name] if isinstance(region, Traced) else []
