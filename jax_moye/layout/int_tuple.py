"""Integers and nested tuples of integers: the shapes, strides and coordinates of layouts.

An IntTuple is an integer or a tuple of IntTuples. Its *leaves* are its integers from left to right, its *profile* is
the way they are nested, its *modes* are the elements of the outermost tuple. An integer has one mode: itself. The first
leaf always moves fastest (colexicographic order).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

from jax_moye.layout.errors import (
    BadRange,
    EmptyRange,
    InvalidType,
    ModeOutOfRange,
    ProfileMismatch,
    RankMismatch,
    RankTooSmall,
    ShapeDivDivisibility,
)

IntTuple = int | tuple["IntTuple", ...]


class Underscore:
    """`_`: the coordinate that keeps a mode, the tiler that leaves a mode alone. There is one, and None means it."""

    _only: Underscore | None = None

    def __new__(cls) -> Underscore:
        """The only one."""
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        """`_`."""
        return "_"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies are the same object."""
        return Underscore, ()


_: Final = Underscore()


def is_underscore(x: Any) -> bool:
    """Whether `x` stands for "the whole mode": `_`, None or a bare slice."""
    return x is None or x is _ or (isinstance(x, slice) and x == slice(None))


# ---- Construction --------------------------------------------------------------------------------------------------


def as_int(x: Any, op: str, operands: tuple[Any, ...] | None = None) -> int:
    """`x` as an `int`; bool, float and everything that is no integer raise InvalidType."""
    if type(x) is int:
        return x
    if not isinstance(x, bool):
        try:
            return operator.index(x)
        except TypeError:
            pass
    operands = (x,) if operands is None else operands
    raise InvalidType(op, operands, f"{x!r} of type {type(x).__name__} is not an integer")


def as_int_tuple(x: Any, op: str = "int_tuple") -> IntTuple:
    """`x` as integers in nested tuples: lists become tuples, NumPy integers `int`, text is parsed."""
    if type(x) is int:
        return x
    if isinstance(x, (tuple, list)):
        return tuple(as_int_tuple(y, op) for y in x)
    if isinstance(x, str):
        from jax_moye.layout import notation

        return notation.parse_int_tuple(x, op)
    return as_int(x, op)


def as_coord(x: Any, op: str = "coord") -> Any:
    """`x` as a coordinate: like an IntTuple, with `_` (also None or `:`) for the modes that are kept."""
    if type(x) is int or x is _:
        return x
    if is_underscore(x):
        return _
    if isinstance(x, (tuple, list)):
        return tuple(as_coord(y, op) for y in x)
    if isinstance(x, str):
        from jax_moye.layout import notation

        return notation.parse_coord(x, op)
    return as_int(x, op)


def has_underscore(coord: Any) -> bool:
    """Whether any leaf of the coordinate is `_`."""
    if isinstance(coord, tuple):
        return any(map(has_underscore, coord))
    return coord is _


def show(t: Any) -> str:
    """The text of an IntTuple or coordinate, without spaces; a tuple of one element is `(4)`."""
    return f"({','.join(map(show, t))})" if isinstance(t, tuple) else str(t)


# ---- Structure -----------------------------------------------------------------------------------------------------


def rank(t: IntTuple) -> int:
    """Number of modes; 1 for an integer."""
    return len(t) if isinstance(t, tuple) else 1


def depth(t: IntTuple) -> int:
    """Depth of nesting; 0 for an integer."""
    return 1 + max(map(depth, t), default=0) if isinstance(t, tuple) else 0


def modes(t: IntTuple) -> tuple[IntTuple, ...]:
    """The modes as a tuple; an integer is its own only mode."""
    return t if isinstance(t, tuple) else (t,)


def leaves(t: Any) -> tuple[Any, ...]:
    """The leaves from left to right, as a tuple.

    >>> leaves(((2, (3,)), 4))
    (2, 3, 4)
    """
    if not isinstance(t, tuple):
        return (t,)
    out: list[Any] = []
    for x in t:
        if isinstance(x, tuple):
            out.extend(leaves(x))
        else:
            out.append(x)
    return tuple(out)


def flatten(t: IntTuple) -> IntTuple:
    """The leaves as a tuple of depth 1; an integer stays an integer."""
    return leaves(t) if isinstance(t, tuple) else t


def unflatten(t: Any, profile: Any) -> Any:
    """The leaves of `t` nested like `profile`.

    >>> unflatten((1, 2, 3), ((0, 0), 0))
    ((1, 2), 3)

    Raises:
      RankMismatch: `t` has another number of leaves than `profile`.
    """
    flat = leaves(t)
    if len(flat) != len(leaves(profile)):
        raise RankMismatch("unflatten", (t, profile), f"{len(flat)} leaves cannot fill {len(leaves(profile))} places")
    rest = iter(flat)
    return transform_leaf(lambda _: next(rest), profile)


def transform_leaf(function: Callable[..., Any], t: Any, *others: Any) -> Any:
    """`function` of each leaf of `t` (and of the same leaf of the others), nested like `t`. MoYe.jl's `fmap`."""
    if not isinstance(t, tuple):
        return function(t, *others)
    if not others:
        return tuple(transform_leaf(function, x) for x in t)
    for other in others:
        if not isinstance(other, tuple) or len(other) != len(t):
            raise ProfileMismatch("transform_leaf", (t, *others), f"{show(t)} and {show(other)} are nested differently")
    return tuple(transform_leaf(function, *xs) for xs in zip(t, *others, strict=True))


def foldl(function: Callable[[Any, Any], Any], t: Any, init: Any) -> Any:
    """`function(...function(function(init, t_0), t_1)..., t_n)` over the modes."""
    for x in modes(t):
        init = function(init, x)
    return init


def front(t: IntTuple) -> int:
    """The first leaf."""
    return leaves(t)[0]


def back(t: IntTuple) -> int:
    """The last leaf."""
    return leaves(t)[-1]


def unwrap(t: Any) -> Any:
    """`t` without the tuples of one element around it."""
    while isinstance(t, tuple) and len(t) == 1:
        t = t[0]
    return t


def wrap(t: Any) -> tuple[Any, ...]:
    """`t` as a tuple: an integer becomes a tuple of one."""
    return t if isinstance(t, tuple) else (t,)


def _position(op: str, t: Any, i: int, count: int, operands: tuple[Any, ...]) -> int:
    if not 0 <= i < count:
        raise ModeOutOfRange(op, operands, f"mode {i} of a tuple of {rank(t)}", f"modes 0 to {count - 1}")
    return i


def insert(t: tuple[Any, ...], x: Any, i: int) -> tuple[Any, ...]:
    """`t` with `x` put before mode `i` (0-based)."""
    i = _position("insert", t, i, len(t) + 1, (t, x, i))
    return t[:i] + (x,) + t[i:]


def remove(t: tuple[Any, ...], i: int) -> tuple[Any, ...]:
    """`t` without mode `i`."""
    i = _position("remove", t, i, len(t), (t, i))
    return t[:i] + t[i + 1 :]


def replace(t: tuple[Any, ...], x: Any, i: int) -> tuple[Any, ...]:
    """`t` with `x` in place of mode `i`."""
    i = _position("replace", t, i, len(t), (t, x, i))
    return t[:i] + (x,) + t[i + 1 :]


def replace_front(t: Any, x: Any) -> Any:
    """`t` with `x` in place of its first mode."""
    return replace(t, x, 0) if isinstance(t, tuple) else x


def replace_back(t: Any, x: Any) -> Any:
    """`t` with `x` in place of its last mode."""
    return replace(t, x, len(t) - 1) if isinstance(t, tuple) else x


def append(t: Any, x: Any) -> tuple[Any, ...]:
    """`t` with the mode `x` behind it."""
    return (*wrap(t), x)


def prepend(t: Any, x: Any) -> tuple[Any, ...]:
    """`t` with the mode `x` before it."""
    return (x, *wrap(t))


def _missing(op: str, t: Any, n: int) -> int:
    if n < rank(t):
        raise RankTooSmall(op, (t, n), f"rank {n} is smaller than the rank {rank(t)} there is")
    return n - rank(t)


def append_to_rank(t: Any, n: int, x: Any = 1) -> Any:
    """`t` with copies of `x` behind it, up to `n` modes; RankTooSmall if it has more."""
    count = _missing("append_to_rank", t, n)
    return (*wrap(t), *(x,) * count) if count else t


def prepend_to_rank(t: Any, n: int, x: Any = 1) -> Any:
    """`t` with copies of `x` before it, up to `n` modes; RankTooSmall if it has more."""
    count = _missing("prepend_to_rank", t, n)
    return (*(x,) * count, *wrap(t)) if count else t


def tuple_cat(*ts: Any) -> tuple[Any, ...]:
    """The modes of all arguments in one tuple."""
    return tuple(x for t in ts for x in wrap(t))


def check_range(op: str, what: Any, count: int, begin: int, end: int) -> None:
    """Raises unless modes [begin, end) lie in `count` modes and are at least one."""
    operands = (what, begin, end)
    begin, end = as_int(begin, op, operands), as_int(end, op, operands)
    if not 0 <= begin <= end <= count:
        raise BadRange(op, operands, f"modes [{begin},{end}) do not lie in the modes [0,{count})")
    if begin == end:
        raise EmptyRange(op, operands, f"the range [{begin},{end}) is empty")


def take(t: Any, begin: int, end: int) -> tuple[Any, ...]:
    """Modes [begin, end)."""
    check_range("take", t, rank(t), begin, end)
    return wrap(t)[begin:end]


def group(t: Any, begin: int, end: int) -> tuple[Any, ...]:
    """`t` with modes [begin, end) made one mode.

    >>> group((1, 2, 3, 4), 1, 3)
    (1, (2, 3), 4)
    """
    check_range("group", t, rank(t), begin, end)
    t = wrap(t)
    return t[:begin] + (t[begin:end],) + t[end:]


def zip_tuples(*ts: Any) -> tuple[Any, ...]:
    """Modes `i` of all arguments side by side: ((a0,b0), (a1,b1), ...). CuTe's `zip`.

    An integer in front counts as one mode, and then the other arguments do too.

    Raises:
      ProfileMismatch: the arguments have different numbers of modes.
    """
    if not isinstance(ts[0], tuple):
        return (tuple(ts),)
    for t in ts[1:]:
        if not isinstance(t, tuple) or len(t) != len(ts[0]):
            raise ProfileMismatch("zip", ts, f"{show(ts[0])} and {show(t)} have different modes")
    return tuple(zip(*ts, strict=True))


def zip2_by(t: Any, guide: Any) -> tuple[Any, Any]:
    """Splits pairs: where `guide` has a leaf, `t` has a pair; firsts and seconds are collected, nested like `guide`.

    Modes of `t` beyond the guide's go behind the seconds. It is how `zipped_divide` gathers tiles and rests.

    Raises:
      ProfileMismatch: `t` has no pair, or too few modes, at a leaf of `guide`.
    """
    if not isinstance(guide, tuple):
        if not isinstance(t, tuple) or len(t) != 2:
            raise ProfileMismatch("zip2_by", (t, guide), f"{show(t)} is not a pair (tile, rest)")
        return t
    if not isinstance(t, tuple) or len(t) < len(guide):
        raise ProfileMismatch("zip2_by", (t, guide), f"{show(t)} has fewer modes than {show(guide)}")
    pairs = [zip2_by(x, g) for x, g in zip(t, guide, strict=False)]
    return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs) + t[len(guide) :]


def exclusive_scan(t: Any, init: Any, function: Callable[[Any, Any], Any] = operator.mul) -> tuple[Any, ...]:
    """(init, f(init,t0), f(f(init,t0),t1), ...) without the last: MoYe.jl's `escan`."""
    out = []
    for x in wrap(t):
        out.append(init)
        init = function(init, x)
    return tuple(out)


def repeat(x: Any, n: int) -> tuple[Any, ...]:
    """`n` copies of `x`."""
    return (x,) * n


def repeat_like(t: Any, x: Any) -> Any:
    """`x` at every leaf of `t`."""
    return transform_leaf(lambda _: x, t)


# ---- Arithmetic ----------------------------------------------------------------------------------------------------


def product(t: IntTuple) -> int:
    """Product of the leaves: the size of a shape."""
    return t if type(t) is int else math.prod(leaves(t))


size = product
capacity = product  # MoYe.jl's name


def product_each(t: IntTuple) -> tuple[int, ...]:
    """Size of each mode."""
    return tuple(map(product, wrap(t)))


def product_like(t: IntTuple, guide: IntTuple) -> IntTuple:
    """Sizes of the parts of `t` that stand where `guide` has leaves."""
    if not isinstance(guide, tuple):
        return product(t)
    if not isinstance(t, tuple) or len(t) != len(guide):
        raise ProfileMismatch("product_like", (t, guide), f"{show(t)} is not nested like {show(guide)}")
    return tuple(product_like(x, g) for x, g in zip(t, guide, strict=True))


def flatsum(t: IntTuple) -> int:
    """Sum of the leaves."""
    return sum(leaves(t))


def inner_product(a: IntTuple, b: IntTuple) -> int:
    """Sum over the leaves of a*b."""
    return sum(leaves(transform_leaf(operator.mul, a, b)))


def elem_scale(a: IntTuple, b: IntTuple) -> IntTuple:
    """`a` times `b` mode by mode; where `a` is an integer, the size of that part of `b` counts."""
    if not isinstance(a, tuple):
        return a * product(b)
    if not isinstance(b, tuple) or len(b) != len(a):
        raise ProfileMismatch("elem_scale", (a, b), f"{show(a)} and {show(b)} are nested differently")
    return tuple(map(elem_scale, a, b))


def shape_div(a: IntTuple, b: IntTuple) -> IntTuple:
    """`a` divided by `b`, mode by mode, or by an integer that is used up from left to right.

    >>> shape_div((6, (3, 4)), 3)
    (2, (3, 4))
    >>> shape_div((3, 4), 2)
    Traceback (most recent call last):
    ...
    jax_moye.layout.errors.ShapeDivDivisibility: shape_div(3, 2): ...

    Raises:
      ShapeDivDivisibility: two integers meet neither of which divides the other.
      ProfileMismatch: tuples of different ranks.
    """
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(a) != len(b):
                raise ProfileMismatch("shape_div", (a, b), f"{len(a)} modes and {len(b)} modes")
            return tuple(map(shape_div, a, b))
        out = []
        for x in a:
            out.append(shape_div(x, b))
            b = shape_div(b, product(x))
        return tuple(out)
    b = product(b)
    if b == 0:
        raise ShapeDivDivisibility("shape_div", (a, b), "division by 0")
    if a % b and b % a:
        above, below = a + -a % b, a - a % b
        raise ShapeDivDivisibility(
            "shape_div", (a, b), f"neither divides the other: {a} % {b} = {a % b}", f"{below} or {above} for {a}"
        )
    return a // b if a % b == 0 else 1


def ceil_div(a: IntTuple, b: IntTuple) -> IntTuple:
    """`a` divided by `b` and rounded up, mode by mode, or by an integer that is used up from left to right.

    Modes of `a` beyond those of a shorter `b` stay. MoYe.jl's `cld`.
    """
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(b) > len(a):
                raise RankMismatch("ceil_div", (a, b), f"{len(b)} divisors for {len(a)} modes")
            return tuple(map(ceil_div, a, b)) + a[len(b) :]
        out = []
        for x in a:
            out.append(ceil_div(x, b))
            b = -(-b // product(x))
        return tuple(out)
    if isinstance(b, tuple):
        raise ProfileMismatch("ceil_div", (a, b), f"{show(b)} has modes where {a} has none")
    return -(-a // b)


# ---- Comparison ----------------------------------------------------------------------------------------------------


def congruent(a: Any, b: Any) -> bool:
    """Whether two tuples are nested alike."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(b, tuple)


def weakly_congruent(a: Any, b: Any) -> bool:
    """Whether `b` is nested like `a` or deeper."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(weakly_congruent, a, b))
    return True


def compatible(a: IntTuple, b: IntTuple) -> bool:
    """Whether every coordinate of shape `a` is one of shape `b`: `b` splits the extents of `a`.

    >>> compatible((4, 6), ((2, 2), 6)), compatible((4, 6), (6, 4)), compatible(24, (4, 6))
    (True, False, True)
    """
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(compatible, a, b))
    return a == product(b)


def evenly_divides(a: IntTuple, b: IntTuple) -> bool:
    """Whether the tile `b` divides the shape `a` with no rest, mode by mode. An integer has one mode: itself.

    >>> evenly_divides(16, (16,)), evenly_divides((16, 8), 32), evenly_divides(16, (4, 4))
    (True, True, False)
    """
    if isinstance(b, tuple):
        parts = wrap(a)
        return len(b) <= len(parts) and all(map(evenly_divides, parts, b))
    return product(a) % b == 0


def elem_less(a: Any, b: Any) -> bool:
    """Whether every leaf of `a` is less than the same leaf of `b`: "the coordinate lies in the shape".

    (MoYe.jl's function of this name lets all but the last element be equal; it is no predicate for residues.)
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) != len(b):
            raise RankMismatch("elem_less", (a, b), f"{len(a)} modes and {len(b)} modes")
        return all(map(elem_less, a, b))
    if isinstance(a, tuple) or isinstance(b, tuple):
        if isinstance(b, tuple):
            return a < product(b)
        raise ProfileMismatch("elem_less", (a, b), f"{show(a)} has modes where {b} has none")
    return a < b


def elem_gtr(a: Any, b: Any) -> bool:
    """elem_less(b, a)."""
    return elem_less(b, a)


def elem_leq(a: Any, b: Any) -> bool:
    """Whether every leaf of `a` is at most the same leaf of `b`."""
    return all(leaves(transform_leaf(operator.le, a, b)))


def elem_geq(a: Any, b: Any) -> bool:
    """elem_leq(b, a)."""
    return elem_leq(b, a)


def lex_less(a: IntTuple, b: IntTuple) -> bool:
    """Lexicographic order: the first mode counts most; a tuple that ends first is less."""
    return _ordered(a, b, False) < 0


def colex_less(a: IntTuple, b: IntTuple) -> bool:
    """Colexicographic order, that of layouts: the last mode counts most; a tuple that ends first is less."""
    return _ordered(a, b, True) < 0


def _ordered(a: Any, b: Any, last_first: bool) -> int:
    if isinstance(a, tuple) != isinstance(b, tuple):
        raise ProfileMismatch("colex_less" if last_first else "lex_less", (a, b), f"{show(a)} against {show(b)}")
    if not isinstance(a, tuple):
        return (a > b) - (a < b)
    pairs = zip(reversed(a), reversed(b), strict=False) if last_first else zip(a, b, strict=False)
    for x, y in pairs:
        if order := _ordered(x, y, last_first):
            return order
    return len(a) - len(b)
