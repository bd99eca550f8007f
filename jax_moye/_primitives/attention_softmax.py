"""What elementwise equations make of scores, and of what is made of them, as formulas of attention_formulas.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_moye._primitives.attention_formulas import Choice, Finite, Formula, Logs, Mask, Opaque, is_same

COPIES = ("convert_element_type", "stop_gradient", "copy", "copy_p")
_LARGEST_FILL = -1e9  # what a mask leaves out has no weight at all, whatever the other scores of its row


class NotAttentionError(Exception):
    """A search ends: what reads the scores is no attention, or one of another form."""


@dataclasses.dataclass
class Softmax:
    """What is known of a softmax while its equations are gone through.

    Attributes:
      largest_of: the factor and the mask of the scores of which the largest is taken.
      scores: that are exponentiated.
    """

    largest_of: tuple[float, Mask | None] | None = None
    scores: Logs | None = None

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
        if name in COPIES:
            keeps = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize > 1
            return operands[0] if keeps or isinstance(operands[0], Finite) else Opaque()
        if name in ("exp", "log", "is_finite", "neg", "integer_pow", "square", "abs", "sign"):
            return self._of_one(name, operands[0], params)
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

    def _of_one(self, name: str, x: Any, params: Mapping[str, Any]) -> Any:
        if name == "neg":
            return self._product(x, Choice.of(-1.0))
        if name == "exp" and isinstance(x, Logs):
            return self._exponential(x)
        if name == "log" and isinstance(x, Formula):
            return Logs(sums=1.0) if x.is_like(Formula.of(z=1)) else Opaque()
        if name == "is_finite" and isinstance(x, Logs):
            return Finite() if x == Logs(largest=x.largest) else Opaque()
        if name in ("abs", "sign") and isinstance(x, Formula) and x.is_positive:
            return x if name == "abs" else Formula.of()
        if name in ("integer_pow", "square") and isinstance(x, Formula):
            return x.power(params.get("y", 2))
        return Opaque()

    def _exponential(self, x: Logs) -> Any:
        if not x.scores or not float(x.sums).is_integer():
            only_sums = not x.scores and not x.largest and float(x.sums).is_integer()
            return Formula.of(z=int(x.sums)) if only_sums else Opaque()
        if self.largest_of is None or x.scores <= 0:
            return Opaque()
        factor, mask = self.largest_of
        if mask != x.mask or not is_same(x.largest, -x.scores / factor):
            return Opaque()
        scores = Logs(scores=x.scores, mask=x.mask)
        if self.scores is not None and self.scores != scores:
            raise NotAttentionError
        self.scores = scores
        return Formula.of(e=1, z=int(x.sums))

    def _sum(self, left: Any, right: Any, sign: int, dtype: Any) -> Any:
        for one, other, factor in ((left, right, sign), (right, left, 1)):
            if isinstance(one, Logs) and isinstance(other, Choice) and other.mask is not None:
                if (factor, sign) == (1, -1):  # what scores are taken from
                    return Opaque()
                kept, filled, mask = other.inside, other.outside, other.mask
                if filled == 0:
                    kept, filled, mask = filled, kept, mask.reverse
                return self._masked(one, mask, factor * float(filled), dtype) if kept == 0 else Opaque()
        if isinstance(left, Logs) and isinstance(right, Logs):
            return left.plus(right, sign)
        left, right = _as_formula(left), _as_formula(right)
        if isinstance(left, Formula) and isinstance(right, Formula):
            return left.plus(right, sign)
        if isinstance(right, Formula) and not right.terms:
            return left
        is_nothing = isinstance(left, Formula) and not left.terms and sign > 0
        return right if is_nothing else Opaque()

    def _product(self, left: Any, right: Any) -> Any:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Formula) and not one.terms:
                return one
            if isinstance(other, Choice) and isinstance(one, (Formula, Logs)):
                number = other.number
                if number is not None:
                    return one.times(number) if isinstance(one, Logs) else one.times(Formula.of(number))
                both = sorted((other.inside, other.outside)) == [0, 1]
                mask = other.mask if both and other.inside == 1 else other.mask and other.mask.reverse
                return one if both and self._is_left_out(one, mask) else Opaque()
        is_formula = isinstance(left, Formula) and isinstance(right, Formula)
        return left.times(right) if is_formula else Opaque()

    def _is_left_out(self, what: Any, mask: Mask | None) -> bool:
        """Whether a formula is 0 already where a mask makes it 0."""
        scores = self.scores
        return isinstance(what, Formula) and what.is_left_out and scores is not None and scores.mask == mask

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
                return self._masked(one, holds, number, dtype)
            if isinstance(one, Formula) and (is_zero and (self._is_left_out(one, holds) or not one.terms)):
                return one
        return Opaque()

    def _masked(self, scores: Logs, mask: Mask | None, fill: float, dtype: Any) -> Any:
        least = 0.7 * float(jnp.finfo(dtype).min) if jnp.issubdtype(dtype, jnp.floating) else -math.inf
        is_alone = scores.scores > 0 and not scores.largest and not scores.sums
        if not is_alone or scores.mask not in (None, mask) or not (fill <= _LARGEST_FILL or fill <= 0.99 * least):
            return Opaque()
        return dataclasses.replace(scores, mask=mask, fill=min(float(fill), scores.fill))


def _larger(x: Any, number: float | None) -> Any:
    """A row's largest score, of which no number below is the larger one."""
    is_largest = isinstance(x, Logs) and x == Logs(largest=1.0)
    return x if is_largest and number is not None and number <= -3e38 else None


def _as_formula(x: Any) -> Any:
    """A number as a formula; all else as it is."""
    number = x.number if isinstance(x, Choice) else None
    return x if number is None else Formula.of(number)
