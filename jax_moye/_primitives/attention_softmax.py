"""What elementwise equations make of scores, and of what is made of them, as formulas of attention_formulas.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_moye._primitives.attention_formulas import (
    Added,
    Bias,
    Choice,
    Cleared,
    Finite,
    Formula,
    Layer,
    Logs,
    Opaque,
    Partial,
    is_same,
)
from jax_moye._primitives.attention_masks import Mask, Region, parts_of

COPIES = ("convert_element_type", "stop_gradient", "copy", "copy_p")
_OF_ONE = (
    "exp", "log", "is_finite", "neg", "integer_pow", "square", "abs", "sign", "tanh", "logistic", "one_minus_square",
)  # fmt: skip
# What a mask leaves out has no weight at all, whatever the other scores of its row: -1e9, or what 16 bits have of it.
_LARGEST_FILL = -0.99e9
_LARGEST_SCORE = 32  # what is taken for one where a low number is added to it, and rounding is to leave nothing of it


class NotAttentionError(Exception):
    """A search ends: what reads the scores is no attention, or one of another form, for a reason if it is that."""


@dataclasses.dataclass
class Softmax:
    """What is known of a softmax while its equations are gone through.

    Attributes:
      largest_of: the scores of which the largest is taken.
      scores: that are exponentiated.
      in_tanh: what the product is multiplied with in front of tanh; None where there is none.
      is_wide: their exponentials have more than 16 bits.
      kept: which weights dropout keeps; None where there is none.
    """

    largest_of: Logs | None = None
    scores: Logs | None = None
    in_tanh: float | None = None
    is_wide: bool = False
    kept: Region | None = None

    def computed(self, name: str, operands: list[Any], params: Mapping[str, Any], dtype: Any) -> Any:
        """What an elementwise equation makes.

        Args:
          name: of its primitive.
          operands: formulas, or what is known of them.
          params: of it.
          dtype: of the result.

        Raises:
          NotAttentionError: other scores are exponentiated, too.
        """
        found = self._computed(name, operands, params, dtype)
        return found.rounded(dtype) if isinstance(found, Logs) and found.layers else found

    def _computed(self, name: str, operands: list[Any], params: Mapping[str, Any], dtype: Any) -> Any:
        if name in COPIES:
            keeps = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize > 1
            return operands[0] if keeps or isinstance(operands[0], Finite) else Opaque()
        if name in _OF_ONE:
            return self._of_one(name, operands[0], params, dtype)
        if name == "select_n" and len(operands) == 3:
            which, *cases = operands
            found = self._selected(which, cases[0], cases[1], dtype)
            return _as_formula(found) if jnp.issubdtype(dtype, jnp.floating) else found
        numbers = [x.number if isinstance(x, Choice) else None for x in operands]
        if len(operands) != 2:
            return Opaque()
        (left, right), (first, second) = operands, numbers
        if name in ("ge", "gt") and isinstance(left, Formula) and left.is_positive and second == 0:
            return Choice.of(np.True_)
        if name == "max":
            return _larger(left, second) or _larger(right, first) or Opaque()
        if name in ("add", "add_any", "sub"):
            return self._sum(left, right, -1 if name == "sub" else 1, dtype)
        if name == "mul":
            return self._product(left, right)
        if name != "div":
            return Opaque()
        if second:
            return self._product(left, Choice.of(1 / second))
        if isinstance(left, Formula) and not left.terms:
            return left
        return self._product(left, right.inverse()) if isinstance(right, Formula) else Opaque()

    def _of_one(self, name: str, x: Any, params: Mapping[str, Any], dtype: Any) -> Any:
        if name == "neg":
            return self._product(x, Choice.of(-1.0))
        if name == "exp" and isinstance(x, Logs):
            return self._exponential(x, dtype)
        if name == "log" and isinstance(x, Formula):
            return Logs(sums=1.0) if x.is_like(Formula.of(z=1)) else Opaque()
        if name == "is_finite" and isinstance(x, Logs):
            return Finite() if x == Logs(largest=x.largest) else Opaque()
        if name in ("abs", "sign") and isinstance(x, Formula) and x.is_positive:
            return x if name == "abs" else Formula.of()
        if name in ("tanh", "logistic") and isinstance(x, Logs):
            return self._capped(name, x)
        factor = _as_factor(x)
        if name in ("integer_pow", "square", "one_minus_square") and isinstance(factor, Formula):
            power = factor.power(params.get("y", 2))
            return power if name != "one_minus_square" else self._sum(Formula.of(), power, -1, dtype)
        return Opaque()

    def _capped(self, name: str, x: Logs) -> Any:
        """A tanh of scores, or what its derivative is made of: logistic(2 x) is (1 + tanh(x)) / 2."""
        factor = x.scores / (1 if name == "tanh" else 2)
        if not x.is_product or x.in_tanh or not factor:
            return Opaque()
        self.in_tanh = abs(factor) if self.in_tanh is None else self.in_tanh
        if not is_same(abs(factor), self.in_tanh):
            return Opaque()
        sign = math.copysign(1.0, factor)
        if name == "tanh":
            return Logs(scores=sign, in_tanh=self.in_tanh)
        return Formula.of(0.5).plus(Formula.of(0.5 * sign, t=1))

    def largest(self, scores: Logs) -> Logs:
        """A row's largest one of scores, which may be those less the largest already.

        Raises:
          NotAttentionError: the largest is taken of other scores, too.
        """
        if scores.scores <= 0 or scores.sums:
            raise NotAttentionError
        if not scores.largest and self.largest_of in (None, scores):
            self.largest_of = scores
            return Logs(largest=1.0)
        if self.largest_of is None or not scores.largest:
            raise NotAttentionError
        ratio = scores.scores / self.largest_of.scores
        before = self.largest_of.times(ratio)
        if not isinstance(before, Logs) or not _are_same(before, scores):
            raise NotAttentionError
        return Logs(largest=0.0 if is_same(ratio, -scores.largest) else ratio + scores.largest)

    def _exponential(self, x: Logs, dtype: Any) -> Any:
        if not x.scores or not float(x.sums).is_integer():
            only_sums = not x.scores and not x.largest and float(x.sums).is_integer()
            return Formula.of(z=int(x.sums)) if only_sums else Opaque()
        if self.largest_of is None or x.scores <= 0:
            return Opaque()
        ratio = x.scores / self.largest_of.scores
        largest = self.largest_of.times(ratio)
        if any(layer == _zeros(layer.mask) for layer in x.layers):
            return Opaque()
        if not isinstance(largest, Logs) or not _are_same(largest, x) or not is_same(x.largest, -ratio):
            return Opaque()
        scores = Logs(scores=x.scores, layers=x.layers, biases=x.biases, in_tanh=x.in_tanh)
        if self.scores is not None and self.scores != scores:
            raise NotAttentionError
        self.scores, self.is_wide = scores, self.is_wide or jnp.dtype(dtype).itemsize > 2
        return Formula.of(e=1, z=int(x.sums))

    def _sum(self, left: Any, right: Any, sign: int, dtype: Any) -> Any:
        for one, other, factor in ((left, right, sign), (right, left, 1)):
            if isinstance(one, Logs) and isinstance(other, Added):
                is_subtracted_from = (factor, sign) == (1, -1)
                found: Any = Opaque() if is_subtracted_from else _biased(one, other.bias, factor, dtype)
                for choice in other.masks:
                    found = found if isinstance(found, Opaque) else self._sum(found, choice, factor, dtype)
                return found
            if isinstance(one, Logs) and isinstance(other, Choice) and other.mask is not None:
                if (factor, sign) == (1, -1):  # what scores are taken from
                    return Opaque()
                kept, filled, mask = other.inside, other.outside, other.mask
                if filled == 0:
                    kept, filled, mask = filled, kept, mask.reverse
                fill = factor * float(filled)
                if kept != 0:
                    return Opaque()
                if one.layers and one.layers[-1] == _zeros(mask):  # 0 in the place of a score, plus the number
                    return _masked(dataclasses.replace(one, layers=one.layers[:-1]), mask, fill, dtype, is_added=False)
                return _masked(one, mask, fill, dtype, is_added=True)
        if isinstance(left, Logs) and isinstance(right, Logs):
            return left.plus(right, sign)
        left, right = _as_factor(left), _as_factor(right)
        if isinstance(left, Formula) and isinstance(right, Formula):
            return left.plus(right, sign)
        if isinstance(left, Cleared) and isinstance(right, Cleared):
            return left.plus(right, sign)
        if isinstance(right, Formula) and not right.terms:
            return left
        if isinstance(left, Partial) and isinstance(right, (Formula, Partial)):
            return left.plus(right, sign)
        if isinstance(left, Formula) and isinstance(right, Partial):
            return Partial.of(left.plus(right.formula, sign))
        is_nothing = isinstance(left, Formula) and not left.terms and sign > 0
        return right if is_nothing else Opaque()

    def _product(self, left: Any, right: Any) -> Any:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Formula) and not one.terms:
                return one
            if isinstance(one, Partial) and isinstance(other, (Formula, Partial)):
                return one.times(other)
            if isinstance(other, Choice) and isinstance(one, (Formula, Cleared, Partial, Logs)):
                number = other.number
                if number is not None:
                    return one.times(number) if isinstance(one, Logs) else _multiple(one, number)
                zero, factor = sorted((other.inside, other.outside))
                is_mask = zero == 0 and 0 < factor < math.inf
                mask = other.mask if is_mask and other.inside == factor else other.mask and other.mask.reverse
                if is_mask and factor == 1 and mask is not None and isinstance(one, Logs) and one.is_alone:
                    return dataclasses.replace(one, layers=(*one.layers, _zeros(mask)))
                cleared = self._cleared(one, mask) if is_mask else Opaque()
                return cleared if isinstance(cleared, Opaque) else _multiple(cleared, float(factor))
        left, right = _as_factor(left), _as_factor(right)
        if isinstance(right, (Cleared, Partial)):
            left, right = right, left
        is_product = isinstance(left, (Formula, Cleared, Partial)) and isinstance(right, Formula)
        return left.times(right) if is_product else Opaque()

    def _cleared(self, what: Any, mask: Region | None) -> Any:
        """A formula where a mask lets through, and 0 elsewhere.

        That is the formula, if each row is known to have a score that counts: E is 0 there. Else it may be above 0 in
        all of a row. Of a mask that is none of the scores it is the formula times K: the mask drops weights.
        """
        formula = what.formula if isinstance(what, (Cleared, Partial)) else what
        if not isinstance(formula, Formula) or self.scores is None or mask is None:
            return Opaque()
        parts, of_scores = frozenset(parts_of(mask)), self.scores.parts
        if not parts <= of_scores:
            self.kept = mask if self.kept is None else self.kept
            return self._product(what, Formula.of(kept=1)) if mask == self.kept else Opaque()
        if all(isinstance(part, Mask) and part.is_causal for part in of_scores):
            return what if formula.is_left_out or isinstance(what, Partial) else Partial(formula)
        if not formula.is_left_out or isinstance(what, Partial):
            return Opaque()
        return Cleared(formula, parts | (what.parts if isinstance(what, Cleared) else frozenset()))

    def _selected(self, which: Any, first: Any, second: Any, dtype: Any) -> Any:
        """The second one where `which` is true."""
        if isinstance(which, Finite):
            return second
        if not isinstance(which, Choice):
            return first if isinstance(first, Formula) and first == second and not first.terms else Opaque()
        if which.mask is None:
            return second if which.inside else first
        mask = which.mask if which.inside else which.mask.reverse
        for one, other, holds in ((second, first, mask), (first, second, mask.reverse)):
            number = other.number if isinstance(other, Choice) else None
            is_zero = number == 0 or (isinstance(other, Formula) and not other.terms)
            if isinstance(one, Logs) and number is not None:
                return _masked(one, holds, number, dtype, is_added=False)
            if isinstance(one, (Formula, Cleared, Partial)) and is_zero:
                return one if isinstance(one, Formula) and not one.terms else self._cleared(one, holds)
        return Opaque()


def _biased(scores: Logs, bias: Bias, sign: int, dtype: Any) -> Any:
    """Scores plus an array, or less it, of which nothing is left where they were masked before."""
    if not scores.is_alone or scores.in_tanh is not None:
        return Opaque()
    hides = all(not math.isfinite(x.fill) or _half_spacing(x.fill, dtype) >= _LARGEST_SCORE for x in scores.layers)
    bias = bias._replace(factor=sign * bias.factor, sum_dtype=jnp.dtype(dtype))
    return dataclasses.replace(scores, biases=(*scores.biases, bias)) if hides else Opaque()


def _masked(scores: Logs, mask: Region, fill: float, dtype: Any, is_added: bool) -> Any:
    """Scores behind another mask, which leaves out what is so low that it has no weight."""
    if not scores.is_alone or not _leaves_out(fill, dtype):
        return Opaque()
    hides = not is_added or not math.isfinite(fill) or _half_spacing(fill, dtype) >= _LARGEST_SCORE
    return dataclasses.replace(scores, layers=(*scores.layers, Layer(mask, float(fill), is_added, hides)))


def _leaves_out(fill: float, dtype: Any) -> bool:
    """Whether a score of a type has no weight where it is so low."""
    least = 0.7 * float(jnp.finfo(dtype).min) if jnp.issubdtype(dtype, jnp.floating) else -math.inf
    return fill <= _LARGEST_FILL or fill <= 0.99 * least


def is_mild(known: Any, dtype: Any) -> bool:
    """Whether it is two numbers by a mask, neither of which leaves out the score of a type that it is added to."""
    numbers = (known.inside, known.outside) if isinstance(known, Choice) and known.mask is not None else ()
    return bool(numbers) and not any(_leaves_out(float(x), dtype) for x in numbers)


def _zeros(mask: Region) -> Layer:
    """What a product with a mask makes of scores: no mask of a softmax, before a low number is added where it is 0."""
    return Layer(mask, 0.0, hides=False)


def _half_spacing(x: float, dtype: Any) -> float:
    """Half of the distance from a number of a type to the next one away from 0."""
    return math.ldexp(float(jnp.finfo(dtype).eps), math.frexp(x)[1] - 2)


def _are_same(left: Logs, right: Logs) -> bool:
    """Whether masks are the same, but for how their numbers are rounded, and what is added."""
    if left.in_tanh != right.in_tanh or len(left.biases) != len(right.biases):
        return False
    if not all(one.is_like(other) for one, other in zip(left.biases, right.biases, strict=True)):
        return False
    return len(left.layers) == len(right.layers) and all(
        x._replace(fill=0) == y._replace(fill=0) and (x.fill == y.fill or is_same(x.fill, y.fill))
        for x, y in zip(left.layers, right.layers, strict=True)
    )


def _multiple(what: Formula | Cleared | Partial, number: float) -> Any:
    """A formula times a number."""
    if isinstance(what, Formula):
        return what.times(Formula.of(number))
    found = what.formula.times(Formula.of(number))
    return dataclasses.replace(what, formula=found) if isinstance(found, Formula) else found


def _larger(x: Any, number: float | None) -> Any:
    """A row's largest score, of which no number below is the larger one."""
    is_largest = isinstance(x, Logs) and x == Logs(largest=x.largest)
    return x if is_largest and number is not None and number <= -3e38 else None


def _as_factor(x: Any) -> Any:
    """A number, or a multiple of tanh, as a formula; all else as it is."""
    if isinstance(x, Logs) and x.is_product and x.in_tanh is not None:
        return Formula.of(x.scores, t=1)
    return _as_formula(x)


def _as_formula(x: Any) -> Any:
    """A number as a formula; all else as it is."""
    number = x.number if isinstance(x, Choice) else None
    return x if number is None else Formula.of(number)


def apart(what: Any) -> tuple[Formula, frozenset[Region]]:
    """A formula and the masks that cleared it.

    Args:
      what: a search knows of a value.

    Raises:
      NotAttentionError: it is none.
    """
    if isinstance(what, Formula):
        return what, frozenset()
    if not isinstance(what, Cleared):
        raise NotAttentionError
    return what.formula, what.parts
