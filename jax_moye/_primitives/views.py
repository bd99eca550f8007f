"""Finds operands of products that are parts of larger arrays, and the equations of viewed_p that their products become.

In front of an operand, any number of these, of an array that may have other readers, too:

    slice, split    with steps or without; dynamic_slice at numbers
    squeeze, reshape, broadcast_in_dim that copies nothing
                    as far as they split dimensions, merge what lies side by side, and add and drop those of size 1
    transpose
    name            of a checkpoint policy
    pvary, pcast    inside shard_map

The array is in memory anyway: an input, a product, or what another product reads whole. Of what is computed element by
element XLA computes the part alone.

XLA would write the part to memory for a kernel of ours. To a kernel it is an offset and strides. A transpose alone, or
behind reshapes, is no part: lowering leaves that out itself (transposes.py). So is what would be more than one matrix
multiplication, or one with other sizes, if it were read in place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jax_moye import _compat
from jax_moye._primitives.contraction import contract_p
from jax_moye._primitives.dequantizing import without_unread
from jax_moye._primitives.equations import called_by
from jax_moye._primitives.patterns import PRODUCTS, SAME, Program, aval_of
from jax_moye._primitives.rewritten import Original, rewritten_p
from jax_moye._primitives.viewed import viewed_p
from jax_moye._selection.in_place import is_possible
from jax_moye._selection.request import Operand
from jax_moye._selection.view import View

# What writes its results to memory.
_WRITES = (*PRODUCTS, "scan", "while", "cond", "ffi_call", "pallas_call", "optimization_barrier")
# What may take out a part, or change its shape.
_RESHAPES = ("squeeze", "reshape", "broadcast_in_dim", "expand_dims")
_COPIES = ("name", *SAME)
_STEPS = ("slice", "split", "dynamic_slice", "transpose", *_RESHAPES, *_COPIES)


def with_views(jaxpr: Jaxpr, given: Collection[Any]) -> Jaxpr:
    """The same program, whose products read parts of arrays in place.

    Args:
      jaxpr: of it.
      given: which of its inputs are in memory.
    """
    program = Program(jaxpr.eqns, jaxpr.outvars)
    new = [_viewed(program, equation, given) for equation in jaxpr.eqns]
    if all(one is other for one, other in zip(new, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=without_unread(new, jaxpr.outvars, program))


class _Part:
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


def _viewed(program: Program, equation: JaxprEqn, given: Collection[Any]) -> JaxprEqn:
    """An equation that is a product, as one of viewed_p where operands are parts of arrays; else itself."""
    params: Any = equation.params
    is_rewritten = equation.primitive is rewritten_p
    if not is_rewritten and equation.primitive is not contract_p:
        return equation
    if params["implementation"] == "xla" or params["config"] is not None:
        return equation
    avals: list[Any] = [x.aval for x in equation.invars]
    if any(map(_compat.has_explicit_axes, avals)) or _compat.asks_for_axes(params.get("out_sharding")):
        return equation
    count = 3 if is_rewritten and params["epilogue"].is_of_pair else 2
    parts = [part_of(program, x, given) for x in equation.invars[:count]]
    parts = _possible(params["spec"], [Operand(tuple(x.shape), x.dtype) for x in avals[:count]], parts)
    if not any(parts):
        return equation
    views = tuple(None if part is None else part.view for part in parts)
    variables = [x if part is None else part.source for x, part in zip(equation.invars, parts, strict=False)]
    variables += equation.invars[count:]
    inner: Original | None = params.get("original")
    inputs, body, operands = _taken_out(program, equation, variables, parts)
    outvars = [Var(x.aval) for x in equation.outvars]
    original = _closed(inputs, [*body, equation.replace(invars=operands, outvars=outvars)], outvars)
    in_parts = None
    if inner is not None:
        inputs, body, operands = _taken_out(program, equation, variables, parts)
        renamed = dict(zip(inner.jaxpr.jaxpr.invars, operands, strict=True))
        body += [
            one.replace(invars=[renamed.get(x, x) if isinstance(x, Var) else x for x in one.invars])
            for one in inner.jaxpr.jaxpr.eqns
        ]
        made = [renamed.get(x, x) if isinstance(x, Var) else x for x in inner.jaxpr.jaxpr.outvars]
        closed = _closed(inputs, body, made)
        in_parts = Original(ClosedJaxpr(with_views(closed.jaxpr, inputs), []))
    of_views = {"original": Original(original), "views": views, "inner": inner, "parts": in_parts}
    return equation.replace(invars=variables, primitive=viewed_p, params={**params, **of_views})


def _closed(invars: list[Any], equations: list[JaxprEqn], outvars: list[Any]) -> ClosedJaxpr:
    return ClosedJaxpr(Jaxpr([], invars, outvars, equations, debug_info=_compat.UNNAMED), [])


def _taken_out(
    program: Program, equation: JaxprEqn, variables: Sequence[Any], parts: Sequence[_Part | None]
) -> tuple[list[Any], list[JaxprEqn], list[Any]]:
    """Inputs, one for each variable, the equations that take the parts out of them, and the product's operands."""
    inputs: list[Any] = [Var(x.aval) for x in variables]
    operands, body = [*inputs], []
    for i, part in enumerate(parts):
        if part is None:
            continue
        names: dict[Any, Any] = {part.source: inputs[i]}
        for index in part.members:
            one = program.equations[index]
            outvars: list[Any] = [Var(x.aval) for x in one.outvars]
            body.append(one.replace(invars=[names[one.invars[0]], *one.invars[1:]], outvars=outvars))
            names |= dict(zip(one.outvars, outvars, strict=True))
        operands[i] = names[part.variable]
    return inputs, body, operands


def _possible(spec: str, operands: Sequence[Operand], parts: Sequence[_Part | None]) -> list[_Part | None]:
    """The parts that a kernel may read in place. Two right-hand operands are read in one way, but for the offset."""
    lhs, *rhs = parts
    left, right, *_ = operands
    strides = {None if part is None else part.view.strides for part in rhs}
    if lhs is not None and not is_possible(spec, (_operand(lhs), right)):
        lhs = None
    if len(strides) > 1 or rhs[0] is None or not is_possible(spec, (left, _operand(rhs[0]))):
        rhs = [None] * len(rhs)
    return [lhs, *rhs]


def _operand(part: _Part) -> Operand:
    return Operand(part.view.source, aval_of(part.variable).dtype, view=part.view)


def is_in_memory(program: Program, variable: Any, given: Collection[Any]) -> bool:
    """Whether an array is written to memory whole, whoever reads it: XLA computes of others what is read alone.

    Args:
      program: where it stands.
      variable: the array.
      given: which of the program's inputs are.
    """
    if not isinstance(variable, Var):
        return False
    index, equations = program.made_by.get(variable), program.equations
    if variable in given or (index is not None and _is_written(equations[index], variable)):
        return True
    readers = (equations[i].primitive.name for i in program.readers.get(variable, ()) if i < len(equations))
    return any(name in PRODUCTS for name in readers)


def _is_written(equation: Any, result: Any) -> bool:
    """Whether an equation writes a result to memory whole, or what it calls does."""
    called = called_by(equation)
    if called is None:
        return equation.primitive.name in _WRITES
    made = called.outvars[equation.outvars.index(result)]
    return any(_is_written(one, made) for one in called.eqns if any(x is made for x in one.outvars))


def part_of(program: Program, variable: Any, given: Collection[Any]) -> _Part | None:
    """The array that an operand is part of: as far in front as can be; None if it is none, or needs no view.

    Args:
      program: where it stands.
      variable: the operand.
      given: which of the program's inputs are in memory.
    """
    members: list[int] = []
    before = variable
    while (index := program.made_by.get(before) if isinstance(before, Var) else None) is not None:
        equation: Any = program.equations[index]
        if not _may_be_step(equation):
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
    if not is_in_memory(program, source, given) or not _is_needed([program.equations[index] for index in used], view):
        return None
    return _Part(variable, source, view, used)


def _made(program: Program, members: Sequence[int], i: int, variable: Any) -> Any:
    """Which of an equation's results the next one reads."""
    return program.equations[members[i + 1]].invars[0] if i + 1 < len(members) else variable


def _is_counted(variable: Any) -> bool:
    """Whether all sizes of an array are numbers, and none is 0."""
    shape = getattr(aval_of(variable), "shape", (0,))
    return all(isinstance(size, int) and size > 0 for size in shape)


def _may_be_step(equation: Any) -> bool:
    """Whether an equation takes out a part of its first operand, all others being numbers."""
    return (
        equation.primitive.name in _STEPS
        and not equation.effects
        and isinstance(equation.invars[0], Var)
        and all(isinstance(x, Literal) for x in equation.invars[1:])
        and all(map(_is_counted, equation.outvars))
    )


def _after(equation: Any, made: Any, view: View) -> View | None:
    """What an equation makes of a part; None where elements move."""
    name, params, shape = equation.primitive.name, equation.params, aval_of(made).shape
    if name in _COPIES:
        return view
    if name == "transpose":
        return view.transposed(params["permutation"])
    if name == "slice":
        return view.sliced(params["start_indices"], params["limit_indices"], params["strides"] or (1,) * len(shape))
    if name == "split":
        at, axis = equation.outvars.index(made), params["axis"]
        starts = [0] * len(shape)
        starts[axis] = int(sum(params["sizes"][:at]))
        return _cut(view, starts, shape)
    if name == "dynamic_slice":
        numbers = [int(np.asarray(x.val)) for x in equation.invars[1:]]
        limits = [size - part for size, part in zip(view.shape, shape, strict=True)]
        return _cut(view, [min(max(0, i), last) for i, last in zip(numbers, limits, strict=True)], shape)
    if params.get("dimensions") is not None and name == "reshape":
        return None
    return view.reshaped(shape)


def _cut(view: View, starts: Sequence[int], sizes: Sequence[int]) -> View:
    limits = [start + size for start, size in zip(starts, sizes, strict=True)]
    return view.sliced(starts, limits, (1,) * len(starts))


def _is_needed(equations: Sequence[Any], view: View) -> bool:
    """Whether the array is more than the operand, or a transpose stands in front of what lowering does not see through.

    XLA moves nothing for reshapes of dense arrays.
    """
    if math.prod(view.shape) < math.prod(view.source):
        return True
    names = [equation.primitive.name for equation in equations]
    return "transpose" in names[:-1]
