"""Operands read in front of a transpose, and as parts of larger arrays.

A transpose right in front of an operand need not be computed: to a kernel it is the order of the strides, to several
devices the order of the labels in the specification. What a kernel takes `_selection.decide` says. A part of an array
need not be written to memory: to a kernel it is an offset and strides. views.py says which are found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal, Var

from jax_moye import _compat
from jax_moye._primitives.equations import SAME
from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._selection.in_place import is_possible
from jax_moye._selection.problem import parse_spec
from jax_moye._selection.request import Operand, Operands
from jax_moye._selection.view import View

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
    """Lhs and rhs behind their transposes, but for those that a kernel's strides stand for.

    Args:
      values: lhs and rhs as they are in memory.
      permutations: of the transposes behind them.
      left_to_strides: of those that are left; what is written to memory has none, or another one.
    """
    return [
        _written(x, permutation, strides)
        for x, permutation, strides in zip(values, permutations, left_to_strides, strict=True)
    ]


def _written(x: Any, permutation: Permutation, left: Permutation) -> Any:
    """What lies in memory so that its transpose by `left` is x's by `permutation`."""
    if permutation == left:
        return x
    if permutation is not None:
        x = lax.transpose(x, permutation)
    return x if left is None else lax.transpose(x, tuple(map(int, np.argsort(left))))


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


# ----------------------------------------------------------------------------------------------------- parts of arrays

# What may take out a part, or change its shape, or leaves it as it is.
_RESHAPES = ("squeeze", "reshape", "broadcast_in_dim", "expand_dims")
_STEPS = ("slice", "split", "unstack", "dynamic_slice", "transpose", *_RESHAPES, *SAME)


class Part:
    """An operand that is part of an array.

    Attributes:
      variable: the operand.
      source: the array.
      view: which part of it.
      members: indices of the equations that take it out, in their order.
    """

    def __init__(self, variable: Any, source: Any, view: View, members: Sequence[int]) -> None:
        """Keeps them."""
        self.variable, self.source, self.view, self.members = variable, source, view, members


def part_of(program: Program, variable: Any, of: Any = None) -> Part | None:
    """The array that an operand is part of: as far in front as can be; None if it is none, or needs no view.

    Args:
      program: where it stands.
      variable: the operand.
      of: no array in front of this one is looked for.
    """
    members: list[int] = []
    before = variable
    while (index := program.made_by.get(before) if isinstance(before, Var) else None) is not None:
        equation: Any = program.equations[index]
        if before is of or not may_be_step(equation):
            break
        members.insert(0, index)
        before = equation.invars[0]
    if isinstance(before, Literal) or not _is_counted(before):
        return None
    source, start, view = before, 0, View.whole(aval_of(before).shape)
    for i, index in enumerate(members):
        equation, made = program.equations[index], _made(program, members, i, variable)
        after = _after(equation, made, view)
        if after is None:  # elements move: the part is one of what is made here
            source, start, after = made, i + 1, View.whole(aval_of(made).shape)
        view = after
    used = members[start:]
    if not _is_needed([program.equations[index] for index in used], view):
        return None
    return Part(variable, source, view, used)


def takes_parts_alone(body: Jaxpr) -> bool:
    """Whether a program does nothing but take out parts, as that of jax.numpy.unstack does before jax 0.10."""
    return bool(body.eqns) and all(map(may_be_step, body.eqns))


def _made(program: Program, members: Sequence[int], i: int, variable: Any) -> Any:
    """Which of an equation's results the next one reads."""
    return program.equations[members[i + 1]].invars[0] if i + 1 < len(members) else variable


def _is_counted(variable: Any) -> bool:
    """Whether all sizes of an array are numbers, and none is 0."""
    shape = getattr(aval_of(variable), "shape", (0,))
    return all(isinstance(size, int) and size > 0 for size in shape)


def may_be_step(equation: Any) -> bool:
    """Whether an equation takes out a part of its first operand, all others being numbers."""
    return (
        equation.primitive.name in _STEPS
        and not equation.effects
        and isinstance(equation.invars[0], Var)
        and all(isinstance(x, Literal) for x in equation.invars[1:])
        and all(map(_is_counted, equation.outvars))
    )


def starts_of(equation: Any, made: Any) -> list[int]:
    """Where the part begins that a slice, a split, or a dynamic_slice at numbers takes.

    Args:
      equation: one of them, of which `may_be_step` is true.
      made: the result of it that is the part.
    """
    name, params, operand = equation.primitive.name, equation.params, aval_of(equation.invars[0])
    if name == "split":
        before = int(sum(params["sizes"][: equation.outvars.index(made)]))
        return [before if dim == params["axis"] else 0 for dim in range(operand.ndim)]
    if name == "slice":
        return [int(start) for start in params["start_indices"]]
    numbers = [int(np.asarray(x.val)) for x in equation.invars[1:]]
    sizes = zip(numbers, operand.shape, params["slice_sizes"], strict=True)
    return [min(max(0, number), size - part) for number, size, part in sizes]


def _after(equation: Any, made: Any, view: View) -> View | None:
    """What an equation makes of a part; None where elements move."""
    name, params, shape = equation.primitive.name, equation.params, aval_of(made).shape
    if name in SAME:
        return view
    if name == "transpose":
        return view.transposed(params["permutation"])
    if name == "slice":
        return view.sliced(params["start_indices"], params["limit_indices"], params["strides"] or (1,) * len(shape))
    if name in ("split", "dynamic_slice"):
        starts = starts_of(equation, made)
        limits = [start + size for start, size in zip(starts, shape, strict=True)]
        return view.sliced(starts, limits, (1,) * len(starts))
    if name == "unstack":
        at, axis = equation.outvars.index(made), params["axis"]
        dims = [dim for dim in range(len(view.shape)) if dim != axis]
        starts, limits = [0] * len(view.shape), list(view.shape)
        starts[axis], limits[axis] = at, at + 1
        return view.sliced(starts, limits, (1,) * len(starts)).transposed(dims)
    if params.get("dimensions") is not None and name == "reshape":
        return None
    return view.reshaped(shape)


def _is_needed(equations: Sequence[Any], view: View) -> bool:
    """Whether the array is more than the operand, or a transpose stands in front of what lowering does not see through.

    XLA moves nothing for reshapes of dense arrays.
    """
    if math.prod(view.shape) < math.prod(view.source):
        return True
    names = [equation.primitive.name for equation in equations]
    return "transpose" in names[:-1]


def possible(spec: str, avals: Sequence[Any], parts: Sequence[Part | None]) -> list[Part | None]:
    """The parts that a kernel may read in place. Two right-hand operands are read in one way, but for the offset."""
    lhs, *rhs = parts
    left, right, *_ = (Operand(tuple(x.shape), x.dtype) for x in avals)
    strides = {None if part is None else part.view.strides for part in rhs}
    if lhs is not None and not is_possible(spec, (_operand(lhs), right)):
        lhs = None
    if len(strides) > 1 or rhs[0] is None or not is_possible(spec, (left, _operand(rhs[0]))):
        rhs = [None] * len(rhs)
    return [lhs, *rhs]


def _operand(part: Part) -> Operand:
    return Operand(part.view.source, aval_of(part.variable).dtype, view=part.view)
