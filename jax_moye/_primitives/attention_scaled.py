"""Factors of queries or keys in front of attention, such as q / sqrt(head_dim), as part of the scale of the scores.

A program that multiplies queries by a number first, as Flax does, rounds them once more, and has XLA write them. A
kernel multiplies the sums by that number, in float32, and reads the queries where they are, perhaps as part of the
array that a product of queries, keys and values makes. Their gradient, which the program multiplies by the number in
the end, is then that of the kernel, which rounds it once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from jax.extend.core import Var

from jax_moye._primitives.attention_formulas import Choice
from jax_moye._primitives.attention_known import KnownValues
from jax_moye._primitives.patterns import Program, as_number, aval_of

_LARGEST = 2.0**20  # the factors that a kernel's scale takes lie between 1 / this and this


class Factors(NamedTuple):
    """What a kernel multiplies the scores by in the place of operands.

    Attributes:
      operands: by name, of q and k: the arrays in front of a factor.
      results: by name, of dq and dk: the arrays behind it.
      factor: the product of all.
      members: the indices of the equations that multiply, which nobody else reads.
    """

    operands: dict[str, Any]
    results: dict[str, Any]
    factor: float
    members: set[int]


def factors_of(
    program: Program,
    known: KnownValues,
    operands: Mapping[str, Any],
    results: Mapping[str, Any],
    members: Collection[int],
) -> Factors:
    """The factors of an attention's queries and keys, which nothing but the attention reads.

    Args:
      program: where it stands.
      known: what is known of its values.
      operands: q and k, by name.
      results: dq and dk, by name, as far as the program has them.
      members: the indices of the attention's equations.
    """
    found = Factors({}, {}, 1.0, set())
    for name, scaled in operands.items():
        index = program.made_by.get(scaled)
        if index is None or index in program.taken or not set(program.readers[scaled]) <= {*members}:
            continue
        x, factor = multiplied(program, known, index)
        if x is None or list(operands.values()).count(scaled) > 1:
            continue
        gone, gradient = {index}, results.get(f"d{name}")
        if gradient is not None:
            behind = program.only_reader(gradient)
            if behind is None or behind in members or multiplied(program, known, behind) != (gradient, factor):
                continue
            gone.add(behind)
            found.results[f"d{name}"] = program.equations[behind].outvars[0]
        found.operands[name] = x
        found.members.update(gone)
        found = found._replace(factor=found.factor * factor)
    return found


def multiplied(program: Program, known: KnownValues, index: int) -> tuple[Any, float]:
    """The array that an equation multiplies by a number, and the number; (None, 1) if it does not, or by none such.

    Args:
      program: where it stands.
      known: of it.
      index: of the equation.
    """
    equation: Any = program.equations[index]
    name, (result,) = equation.primitive.name, equation.outvars[:1]
    if name not in ("mul", "div") or len(equation.invars) != 2:
        return None, 1.0
    for x, other in (equation.invars, equation.invars[::-1])[: 2 if name == "mul" else 1]:
        value = known.of(program.flat.names.get(other, other)) if isinstance(other, Var) else None
        factor = value.number if isinstance(value, Choice) else as_number(program, other)
        is_same = isinstance(x, Var) and (aval_of(x).shape, aval_of(x).dtype) == (
            aval_of(result).shape,
            result.aval.dtype,
        )
        if factor is not None and is_same and 1 / _LARGEST < factor < _LARGEST:
            return x, factor if name == "mul" else 1 / factor
    return None, 1.0
