"""Finds equations in a jaxpr: who reads a value, what a vector was before it was copied, and a template's equations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var


class Program:
    """Who makes and who reads each value of a jaxpr.

    Attributes:
      equations: of it.
    """

    def __init__(self, equations: Sequence[JaxprEqn], outvars: Iterable[Any]) -> None:
        """Counts."""
        self.equations = equations
        self.readers: dict[Any, list[int]] = {}
        self.made_by: dict[Any, int] = {}
        for index, equation in enumerate(equations):
            for variable in equation.invars:
                if isinstance(variable, Var):
                    self.readers.setdefault(variable, []).append(index)
            for variable in equation.outvars:
                self.made_by[variable] = index
        for variable in outvars:
            if isinstance(variable, Var):
                self.readers.setdefault(variable, []).append(len(equations))

    def only_reader(self, variable: Any) -> int | None:
        """The equation that alone reads it, once; None if there are more, or if it is a result."""
        readers = self.readers.get(variable, [])
        return readers[0] if len(readers) == 1 and readers[0] < len(self.equations) else None


def as_vector(program: Program, variable: Any, size: int) -> tuple[Any, list[int]]:
    """A variable that is a vector, (1, ..., size), and the equation that copies it; None if it is none."""

    def is_vector(x: Any) -> bool:
        return isinstance(x, Var) and sizes_of(x)[-1:] == (size,) and all(one == 1 for one in sizes_of(x)[:-1])

    if is_vector(variable) and len(sizes_of(variable)) > 0 and size > 1:
        return variable, []
    made_by = program.made_by.get(variable)
    if made_by is None or program.only_reader(variable) is None:
        return None, []
    equation: Any = program.equations[made_by]
    if equation.primitive.name != "broadcast_in_dim" or len(equation.invars) != 1:
        return None, []
    (before,) = equation.invars
    dimensions = equation.params["broadcast_dimensions"]
    if not is_vector(before) or size <= 1 or dimensions[-1:] != (len(sizes_of(variable)) - 1,):
        return None, []
    return before, [made_by]


def sizes_of(variable: Any) -> tuple[Any, ...]:
    return variable.aval.shape


def matched(program: Program, value: Any, readers: Sequence[int], template: Jaxpr) -> tuple[list[int], Any] | None:
    """The equations from the first reader of a value on that are those of a template; None if they are others."""
    first, count = readers[0], len(template.eqns)
    members = list(range(first, first + count))
    if members[-1] >= len(program.equations) or not set(readers) <= set(members):
        return None
    known: dict[Any, Any] = {template.invars[0]: value}
    wanted: Any
    for index, wanted in zip(members, template.eqns, strict=True):
        equation: Any = program.equations[index]
        if equation.primitive is not wanted.primitive or len(equation.outvars) != len(wanted.outvars):
            return None
        if str(equation.params) != str(wanted.params):
            return None
        for x, y in zip(equation.invars, wanted.invars, strict=True):
            if isinstance(x, Literal) or isinstance(y, Literal):
                both = isinstance(x, Literal) and isinstance(y, Literal)
                if not both or x.aval.dtype != y.aval.dtype or not np.array_equal(x.val, y.val):
                    return None
            elif known.get(y) is not x:
                return None
        known |= dict(zip(wanted.outvars, equation.outvars, strict=True))
    (result,) = template.outvars
    inside = [known[x] for equation in template.eqns for x in equation.outvars if x is not result]
    if any(not set(program.readers.get(x, [])) <= set(members) for x in inside):
        return None
    return members, known[result]
