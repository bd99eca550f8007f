"""What the equations of attention compute, as formulas: rounding aside, exactly.

Equations are recognized by what they mean, not by how they are written: whatever JAX's rules make of a softmax, and of
its derivative, is one of these. Of a row of scores s, over its columns:

    m        the largest one
    E        exp(s - m), 0 where the mask leaves one out
    Z        the sum of E
    G        a second matrix like the scores: the derivative by the shares
    T        of scores that have a soft cap what that multiplies: tanh of a multiple of the product
    K        of weights that have dropout, 1 where one is kept, 0 where it is dropped
    R[..]    a row's sum of a product of E, G and K

`Logs` are sums of multiples of s, m and log Z; `Formula` is a sum of products of E, Z, G, T, K and R. What a derivative
adds only to take it away again, as that of the largest score, cancels out. `Opaque` is what is no such formula.

Beside them stand values that are known while tracing: `Choice`, a number where a mask holds and another one elsewhere,
and `Affine`, indices.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jax_moye._primitives.attention_masks import Mask, Region, common, either, extent, moved, parts_of, renamed_factors

_MOST_TERMS = 16  # of a formula: more are made by nothing that is attention
_SAME = 1e-5  # relative: numbers that the program's types round differently


def is_same(x: float, y: float) -> bool:
    """Whether two factors are one, but for rounding."""
    return abs(x - y) <= _SAME * max(abs(x), abs(y))


# ------------------------------------------------------------------------------------------------ of the softmax


class Term(NamedTuple):
    """A product: E^e Z^z G^g T^t K^kept, and of each of `sums` a row's sum of E^e G^g K^kept."""

    e: int = 0
    z: int = 0
    g: int = 0
    sums: tuple[tuple[int, int, int], ...] = ()
    t: int = 0
    kept: int = 0

    def times(self, other: Term) -> Term:
        """The product of two."""
        sums = tuple(sorted((*self.sums, *other.sums)))
        kept = self.kept | other.kept  # K is its square
        return Term(self.e + other.e, self.z + other.z, self.g + other.g, sums, self.t + other.t, kept)

    @property
    def is_of_row(self) -> bool:
        """Whether it is the same in all columns."""
        return self.e == self.g == self.t == self.kept == 0

    @property
    def summed(self) -> Term:
        """Over the columns of one that is not."""
        if (self.e, self.g, self.kept) == (1, 0, 0):
            return Term(0, self.z + 1, 0, self.sums)
        return Term(0, self.z, 0, tuple(sorted((*self.sums, (self.e, self.g, self.kept)))))


@dataclasses.dataclass(frozen=True)
class Formula:
    """A sum of products.

    Attributes:
      terms: their factors.
    """

    terms: Mapping[Term, float]

    @classmethod
    def of(cls, factor: float = 1.0, e: int = 0, z: int = 0, g: int = 0, t: int = 0, kept: int = 0) -> Formula:
        """One product, or a number."""
        return cls({Term(e, z, g, t=t, kept=kept): factor} if factor else {})

    def plus(self, other: Formula, sign: int = 1) -> Formula | Opaque:
        """The sum of two, or their difference."""
        terms = dict(self.terms)
        for term, factor in other.terms.items():
            before, factor = terms.pop(term, 0.0), sign * factor
            if not is_same(before, -factor):
                terms[term] = before + factor
        return _bounded(terms)

    def times(self, other: Formula) -> Formula | Opaque:
        """The product of two."""
        total: Any = Formula({})
        for one, factor in self.terms.items():
            for two, another in other.terms.items():
                total = total.plus(Formula({one.times(two): factor * another}))
                if isinstance(total, Opaque):
                    return total
        return _bounded(total.terms)

    def inverse(self) -> Formula | Opaque:
        """1 / it, of a row's sums alone."""
        if len(self.terms) != 1:
            return Opaque()
        ((term, factor),) = self.terms.items()
        return Formula({Term(z=-term.z): 1 / factor}) if term == Term(z=term.z) else Opaque()

    def power(self, exponent: int) -> Formula | Opaque:
        """Of one product."""
        base: Any = self if exponent >= 0 else self.inverse()
        result: Any = Formula.of()
        for _ in range(abs(exponent)):
            result = base if isinstance(base, Opaque) else result.times(base)
            if isinstance(result, Opaque):
                break
        return result

    def summed(self, columns: int) -> Formula | Opaque:
        """Over a row's columns."""
        total: Any = Formula({})
        if any(term.t for term in self.terms):
            return Opaque()
        for term, factor in self.terms.items():
            one = Formula({term: factor * columns} if term.is_of_row else {term.summed: factor})
            total = total.plus(one)
            if isinstance(total, Opaque):
                break
        return total

    @property
    def is_positive(self) -> bool:
        """Whether it is a multiple of a power of Z, and so above 0."""
        return len(self.terms) == 1 and all(term == Term(z=term.z) and x > 0 for term, x in self.terms.items())

    @property
    def is_left_out(self) -> bool:
        """Whether it is 0 wherever E is."""
        return all(term.e > 0 for term in self.terms)

    def is_like(self, other: Formula) -> bool:
        """Whether two are the same, but for how their factors are rounded."""
        same = self.terms.keys() == other.terms.keys()
        return same and all(is_same(factor, other.terms[term]) for term, factor in self.terms.items())


def _bounded(terms: Mapping[Term, float]) -> Formula | Opaque:
    fits = len(terms) <= _MOST_TERMS and all(term.g + sum(g for _, g, _ in term.sums) <= 1 for term in terms)
    return Formula(terms) if fits else Opaque()


SHARES = Formula.of(e=1, z=-1)


def shares(dropout: float | None) -> Formula:
    """What multiplies the values: E / Z, or, with dropout, that times K and a factor.

    Args:
      dropout: the factor; None: there is none.
    """
    return SHARES if dropout is None else Formula.of(dropout, e=1, z=-1, kept=1)


def derivative_of_scores(factor: float, is_capped: bool = False, dropout: float | None = None) -> Formula:
    """The derivative by what is multiplied with `factor` to be scores: E / Z (G - R[E G] / Z), times the factor.

    Args:
      factor: likewise, where there is a cap in front of that and behind it together.
      is_capped: they are a multiple of tanh, whose derivative is 1 - T^2.
      dropout: K times this is in front of each G; None: G alone.
    """
    kept, of_weights = int(dropout is not None), factor if dropout is None else factor * dropout
    terms = {Term(1, -1, 1, kept=kept): of_weights, Term(1, -2, 0, ((1, 1, kept),)): -of_weights}
    behind = {term._replace(t=2): -x for term, x in terms.items()} if is_capped else {}
    return Formula(terms | behind)


@dataclasses.dataclass(frozen=True)
class Cleared:
    """A formula, and 0 where masks leave a score out.

    Attributes:
      formula: elsewhere.
      parts: the masks.
    """

    formula: Formula
    parts: frozenset[Region]

    def plus(self, other: Cleared, sign: int = 1) -> Cleared | Opaque:
        """The sum of two behind the same masks, or their difference."""
        return self.of(self.formula.plus(other.formula, sign)) if self.parts == other.parts else Opaque()

    def times(self, factor: Formula) -> Cleared | Opaque:
        """A product, which is 0 where this is."""
        return self.of(self.formula.times(factor))

    def of(self, found: Formula | Opaque) -> Cleared | Opaque:
        """Another formula behind the same masks."""
        return Cleared(found, self.parts) if isinstance(found, Formula) else found


@dataclasses.dataclass(frozen=True)
class Partial:
    """A formula where E is not 0, and something else elsewhere: nothing, until it is multiplied with E.

    Attributes:
      formula: of which no sum over columns is known.
    """

    formula: Formula

    def plus(self, other: Formula | Partial, sign: int = 1) -> Partial | Opaque:
        """The sum of two, or their difference."""
        return self.of(self.formula.plus(other.formula if isinstance(other, Partial) else other, sign))

    def times(self, other: Formula | Partial) -> Formula | Partial | Opaque:
        """The product of two."""
        factor = other.formula if isinstance(other, Partial) else other
        found = self.formula.times(factor)
        return found if isinstance(other, Formula) and other.is_left_out else self.of(found)

    @staticmethod
    def of(found: Formula | Opaque) -> Partial | Opaque:
        """Likewise, of a formula."""
        return Partial(found) if isinstance(found, Formula) else found


class Bias(NamedTuple):
    """An array of the program that is added to scores, and is no mask.

    Attributes:
      variable: of the program.
      labels: of its dimensions.
      factor: of it.
      sum_dtype: the type of its sum with the scores; None where it is not added yet.
    """

    variable: Any
    labels: tuple[str, ...]
    factor: float = 1.0
    sum_dtype: Any = None

    def is_like(self, other: Bias) -> bool:
        """Whether two are the same, but for how their factors are rounded."""
        return self._replace(factor=0) == other._replace(factor=0) and is_same(self.factor, other.factor)


class Added(NamedTuple):
    """What is added to scores: a bias, and masks that are part of the same sum.

    Attributes:
      bias: the array.
      masks: each a choice of two numbers, by the labels of the scores.
    """

    bias: Bias
    masks: tuple[Choice, ...] = ()


class Layer(NamedTuple):
    """A mask of scores.

    Attributes:
      mask: what it lets through.
      fill: the scores that it leaves out.
      is_added: the fill is added to them, else it is in their place.
      hides: nothing is left of a score that it leaves out.
    """

    mask: Region
    fill: float
    is_added: bool = False
    hides: bool = True


@dataclasses.dataclass(frozen=True)
class Logs:
    """A sum of multiples of the scores, of a row's largest one, and of log Z.

    Attributes:
      scores: how often the product is in it, before it was scaled.
      largest: likewise m, of whichever scores that is.
      sums: likewise log Z.
      layers: the masks of the scores, in the order in which they were applied.
      biases: the arrays that are added to the scores, in that order.
      in_tanh: the product is in it as tanh of so many times the product; None: as it is.
    """

    scores: float = 0.0
    largest: float = 0.0
    sums: float = 0.0
    layers: tuple[Layer, ...] = ()
    biases: tuple[Bias, ...] = ()
    in_tanh: float | None = None

    @property
    def is_alone(self) -> bool:
        """Whether it is scores, and nothing is added to them."""
        return self.scores > 0 and not self.largest and not self.sums

    @property
    def scale(self) -> float:
        """Of the scores: what is in front of tanh and behind it together."""
        return self.scores * (1 if self.in_tanh is None else self.in_tanh)

    @property
    def is_product(self) -> bool:
        """Whether it is a multiple of the product, or of its tanh, and nothing is done to that yet."""
        return not (self.largest or self.sums or self.layers or self.biases)

    @property
    def parts(self) -> frozenset[Region]:
        """What the masks together let through, in parts."""
        return frozenset(parts_of(*(layer.mask for layer in self.layers)))

    def plus(self, other: Logs, sign: int = 1) -> Logs | Opaque:
        """The sum of two, or their difference."""
        if other.layers or other.biases or other.in_tanh or (self.in_tanh and other.scores):  # nobody subtracts scores
            return Opaque()
        scores, largest, sums = (
            getattr(self, name) + sign * getattr(other, name) for name in ("scores", "largest", "sums")
        )
        return dataclasses.replace(self, scores=scores, largest=largest, sums=sums)

    def times(self, factor: float) -> Logs | Opaque:
        """A multiple."""
        if factor <= 0 and (self.layers or self.biases):
            return Opaque()
        layers = tuple(layer._replace(fill=factor * layer.fill) for layer in self.layers)
        biases = tuple(bias._replace(factor=factor * bias.factor) for bias in self.biases)
        of = factor * self.scores, factor * self.largest, factor * self.sums
        return Logs(*of, layers, biases, self.in_tanh)

    def rounded(self, dtype: Any) -> Logs:
        """With the masks as a type has them: what is too low for it is -inf."""
        with np.errstate(over="ignore"):
            fills = [float(np.asarray(layer.fill).astype(dtype)) for layer in self.layers]
        layers = tuple(layer._replace(fill=fill) for layer, fill in zip(self.layers, fills, strict=True))
        return dataclasses.replace(self, layers=layers)


@dataclasses.dataclass(frozen=True)
class Finite:
    """Whether a row's largest score is a number, as it always is where a row has a column."""


@dataclasses.dataclass(frozen=True)
class Opaque:
    """Something else that is made of them. Nothing but what is multiplied with zero comes of it."""


# -------------------------------------------------------------------------------------------- known while tracing


class Choice(NamedTuple):
    """A number where a mask lets through, and another one elsewhere; one number where the mask is None."""

    mask: Region | None
    inside: Any
    outside: Any

    @classmethod
    def of(cls, number: Any) -> Choice:
        """One number."""
        return cls(None, number, number)

    @property
    def number(self) -> float | None:
        """The one that it is everywhere; None where it is none."""
        return float(self.inside) if self.mask is None else None


class Affine(NamedTuple):
    """Integers: the sum of factors times indices, plus an offset; as in `Mask`."""

    factors: frozenset[tuple[Any, int]]
    offset: int


Known = Choice | Affine


def renamed(known: Known, name: Callable[[Any], Any]) -> Known:
    """The same of an array whose dimensions have other names.

    Args:
      known: of an array.
      name: of a dimension its new name; None where it has one index, 0.
    """
    if isinstance(known, Affine):
        return Affine(renamed_factors(known.factors, name), known.offset)
    return known if known.mask is None else known._replace(mask=moved(known.mask, name))


def simplified(known: Known, sizes: Mapping[Any, int]) -> Known:
    """One number, where a mask lets all through, or nothing.

    Args:
      known: of an array.
      sizes: of its dimensions.
    """
    whole = None if isinstance(known, Affine) or known.mask is None else extent(known.mask, sizes)
    if whole is None or isinstance(known, Affine):
        return known
    return Choice.of(known.inside if whole else known.outside)


_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "not": np.logical_not,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "and": np.logical_and,
    "or": np.logical_or,
    "eq": operator.eq,
    "ne": operator.ne,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}


def computed(name: str, operands: list[Known], params: Mapping[str, Any], dtype: Any) -> Known | None:
    """What an elementwise equation makes of known operands; None where that is nothing known.

    Args:
      name: of its primitive.
      operands: in the dimensions of the result.
      params: of it.
      dtype: of the result.
    """
    is_integer = np.issubdtype(dtype, np.integer)
    if name == "convert_element_type" and isinstance(operands[0], Affine):
        return operands[0] if is_integer else None
    if name == "select_n" and len(operands) == 3:
        return _selected(*operands)
    if any(isinstance(x, Affine) for x in operands):
        return _of_indices(name, *map(_as_indices, operands)) if len(operands) == 2 else None
    if name in ("and", "or", "not") and dtype != np.bool_:  # of bits
        return None
    fun: Any = _UNARY.get(name) if len(operands) == 1 else _BINARY.get(name) if len(operands) == 2 else None
    if name == "convert_element_type":
        fun = lambda x: x  # noqa: E731
    elif name == "integer_pow":
        fun = lambda x: np.float64(x) ** params["y"]  # noqa: E731
    if fun is None or (name == "div" and is_integer):
        return None
    return _chosen(fun, operands, dtype) or _of_several(name, operands, dtype)


def _chosen(fun: Callable[..., Any], operands: list[Any], dtype: Any) -> Choice | None:
    masks = [x.mask for x in operands if x.mask is not None]
    mask = masks[0] if masks else None
    if mask is not None and any(other not in (mask, mask.reverse) for other in masks):
        return None

    def at(is_inside: bool) -> Any:
        values = (x.inside if (x.mask in (None, mask)) is is_inside else x.outside for x in operands)
        with np.errstate(all="ignore"):
            return np.asarray(fun(*values)).astype(dtype)[()]

    inside, outside = at(True), at(False)
    return Choice.of(inside) if mask is None or inside == outside else Choice(mask, inside, outside)


def _ones(choice: Any) -> Region | None:
    """Where one is 1, of a choice that is 0 elsewhere; None where it is none."""
    if not isinstance(choice, Choice) or choice.mask is None or sorted((choice.inside, choice.outside)) != [0, 1]:
        return None
    return choice.mask if choice.inside == 1 else choice.mask.reverse


def _of_several(name: str, operands: list[Known], dtype: Any) -> Choice | None:
    """What two masks make: 1 where both are, or one of them; None where they make nothing of that kind.

    Of two that are added it is 0 where both are, and -inf elsewhere.
    """
    if name == "add":
        masks: list[Any] = [
            x.mask if x.inside == 0 else x.mask.reverse
            for x in operands
            if isinstance(x, Choice) and x.mask is not None and {x.inside, x.outside} == {0, -np.inf}
        ]
        both_added = common(*masks) if len(masks) == 2 else None
        return None if both_added is None else Choice(both_added, *np.asarray([0, -np.inf]).astype(dtype))
    left, right = map(_ones, operands) if len(operands) == 2 else (None, None)
    both = {"mul": common, "min": common, "and": common, "max": either, "or": either}.get(name)
    mask = None if left is None or right is None or both is None else both(left, right)
    one, zero = np.asarray([1, 0]).astype(dtype)
    return None if mask is None else Choice(mask, one, zero)


def _selected(which: Any, first: Any, second: Any) -> Known | None:
    """The first where `which` is false."""
    if isinstance(which, Affine):
        return None
    if which.mask is None:
        return second if which.inside else first
    if isinstance(first, Affine) or isinstance(second, Affine):
        return None
    found = _chosen(lambda w, x, y: y if w else x, [which, first, second], np.asarray(first.inside).dtype)
    if found is not None:
        return found
    holds = which.mask if which.inside else which.mask.reverse
    for number, other, at in ((first.number, second, holds), (second.number, first, holds.reverse)):
        if number is None or other.mask is None or number not in (other.inside, other.outside):
            continue
        mask, kept, filled = other if number == other.outside else (other.mask.reverse, other.outside, other.inside)
        both = common(at, mask)
        return None if both is None else Choice(both, kept, filled)
    return None


def _as_indices(known: Known) -> Affine | None:
    if isinstance(known, Affine):
        return known
    is_integer = known.mask is None and float(known.inside).is_integer()
    return Affine(frozenset(), int(known.inside)) if is_integer else None


def _of_indices(name: str, left: Affine | None, right: Affine | None) -> Known | None:
    if left is None or right is None:
        return None
    if name == "mul" and (not left.factors or not right.factors):
        factor, other = (left.offset, right) if not left.factors else (right.offset, left)
        scaled = frozenset((dim, factor * of) for dim, of in other.factors if factor)
        return Affine(scaled, factor * other.offset)
    if name in ("add", "sub"):
        return _sum(left, right, 1 if name == "add" else -1)
    difference = {"ge": (left, right, 0), "gt": (left, right, 1), "le": (right, left, 0), "lt": (right, left, 1)}
    if name not in difference:
        return None
    more, less, strict = difference[name]
    total = _sum(more, less, -1)
    mask = Mask(total.factors, total.offset - strict)
    return Choice(mask, np.True_, np.False_)


def _sum(left: Affine, right: Affine, sign: int) -> Affine:
    factors = dict(left.factors)
    for dim, factor in right.factors:
        factors[dim] = factors.get(dim, 0) + sign * factor
    kept = frozenset((dim, factor) for dim, factor in factors.items() if factor)
    return Affine(kept, left.offset + sign * right.offset)
