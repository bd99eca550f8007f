"""Operands read in front of a transpose.

A transpose right in front of an operand need not be computed: to a kernel it is the order of the strides, to several
devices the order of the labels in the specification. What a kernel takes `_selection.decide` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax import lax

from jax_moye import _compat
from jax_moye._selection.problem import parse_spec
from jax_moye._selection.request import Operand, Operands

Permutation = tuple[int, ...] | None
Permutations = tuple[Permutation, Permutation]


class Source(NamedTuple):
    """A value of a program that is being lowered.

    Attributes:
      value: in front of the transpose.
      aval: its type.
      permutation: of the transpose behind it; None where there is none.
    """

    value: Any
    aval: Any
    permutation: Permutation


def source(value: Any, aval: Any, typed: bool = False) -> Source:
    """What an operand is read from while lowering.

    Args:
      value: of the program.
      aval: its type.
      typed: that has a sharding.
    """
    before, permutation = _compat.transposed_source(value, typed)
    if permutation is None:
        return Source(value, aval, None)
    return Source(before, _compat.source_aval(aval, permutation), permutation)


def source_in_jaxpr(variable: Any, made_by: Mapping[Any, Any]) -> Operand:
    """The same of a jaxpr, which has the types alone.

    Args:
      variable: of the jaxpr, or a literal.
      made_by: the equation of each variable that has one.
    """
    equation = made_by.get(variable) if not hasattr(variable, "val") else None  # a literal is not hashable
    if equation is None or equation.primitive.name != "transpose":
        return Operand(tuple(variable.aval.shape), variable.aval.dtype)
    before = equation.invars[0].aval
    return Operand(tuple(before.shape), before.dtype, tuple(equation.params["permutation"]))


def operands_of(avals: Sequence[Any], permutations: Permutations) -> Operands:
    """What a decision is about: lhs and rhs as they are in memory, and the transposes behind them."""
    left, right = (Operand(tuple(x.shape), x.dtype, p) for x, p in zip(avals[:2], permutations, strict=True))
    return left, right


def transposed(values: Sequence[Any], permutations: Permutations, left_to_strides: Permutations = (None, None)) -> Any:
    """Lhs and rhs behind their transposes, but for those that a kernel's strides stand for."""
    return [
        x if permutation is None or strides is not None else lax.transpose(x, permutation)
        for x, permutation, strides in zip(values, permutations, left_to_strides, strict=True)
    ]


def absorbed(spec: str, permutations: Permutations) -> str:
    """The specification of the same contraction, of the arrays in front of the transposes."""
    parsed = parse_spec(spec)
    operands = [
        labels
        if permutation is None
        else "".join(labels[dim] for dim in sorted(range(len(labels)), key=lambda dim: permutation[dim]))
        for labels, permutation in zip(parsed[:2], permutations, strict=True)
    ]
    return f"{','.join(operands)}->{parsed.out}"
