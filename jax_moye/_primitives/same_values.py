"""Which values of a program, and of the bodies of its calls, are the same: the same equations made them of the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jax_moye._primitives.equations import inner_of, is_same

Numbers = dict[Any, Any]  # by value: an object that all values have that are the same


class _Number(NamedTuple):
    """The number of a literal."""

    shape: tuple[int, ...]
    dtype: Any
    data: bytes

    @property
    def value(self) -> Any:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


def _number(value: Any) -> _Number:
    return _Number(value.shape, value.dtype, value.tobytes())


class SameValues:
    """The equations that it has seen, and what they made.

    Attributes:
      numbers: by value of the program.
    """

    def __init__(self) -> None:
        """Has seen none."""
        self.numbers: Numbers = {}
        self._made: dict[Any, list[tuple[Mapping[str, Any], list[Any]]]] = {}

    def of(self, x: Any, numbers: Numbers) -> Any:
        """The number of a value: its own, if nothing is known of it.

        Args:
          x: a value, or a literal.
          numbers: of the values beside it.
        """
        if isinstance(x, Literal):
            aval: Any = x.aval
            return _number(np.asarray(x.val, aval.dtype))
        return numbers.setdefault(x, object())

    def look_at(self, equations: Iterable[JaxprEqn], numbers: Numbers) -> None:
        """Gives numbers to what equations make; calls of jit are what is in them.

        Args:
          equations: of a program, or of a body.
          numbers: of the values beside them, to which those are added.
        """
        for one in equations:
            given = [self.of(x, numbers) for x in one.invars]
            body = inner_of(one)
            if body is not None:
                inside = dict(zip(body.invars, given, strict=True))
                self.look_at(body.eqns, inside)
                made = [self.of(x, inside) for x in body.outvars]
            elif is_same(one) and len(given) == 1 and one.outvars[0].aval == one.invars[0].aval:
                made = given
            elif one.primitive.name == "convert_element_type" and _converts_a_number(given[0], one.params["new_dtype"]):
                made = [_number(given[0].value.astype(one.params["new_dtype"]))]
            else:
                made = self._made_by(one, given)
            numbers.update(zip(one.outvars, made, strict=True))

    def _made_by(self, equation: JaxprEqn, given: list[Any]) -> list[Any]:
        made = [object() for _ in equation.outvars]
        draws = equation.primitive.name == "rng_uniform"  # without a key
        if draws or equation.effects or any(_has_jaxpr(value) for value in equation.params.values()):
            return made
        known = self._made.setdefault((equation.primitive, *given, *(str(x.aval) for x in equation.outvars)), [])
        for params, before in known:
            if _are_equal(params, equation.params):
                return before
        known.append((equation.params, made))
        return made


def _converts_a_number(given: Any, dtype: Any) -> bool:
    """Whether NumPy makes of it what XLA does: an integer of a float that is too large is each one's own."""
    if not isinstance(given, _Number):
        return False
    return not (jnp.issubdtype(given.dtype, jnp.inexact) and jnp.issubdtype(dtype, jnp.integer))


def _has_jaxpr(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_jaxpr, value))
    return isinstance(value, (Jaxpr, ClosedJaxpr)) or (callable(value) and not isinstance(value, type))


def _are_equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    if first.keys() != second.keys():
        return False
    try:
        return all(first[name] is x or bool(first[name] == x) for name, x in second.items())
    except Exception:  # of what cannot be compared
        return False
