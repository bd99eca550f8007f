"""Finds operands of products that are parts of larger arrays, and the equations of viewed_p that their products become.

In front of an operand, any number of these, of an array that may have other readers, too:

    slice, split, unstack
                    with steps or without; dynamic_slice at numbers
    squeeze, reshape, broadcast_in_dim that copies nothing
                    as far as they split dimensions, merge what lies side by side, and add and drop those of size 1
    transpose
    name            of a checkpoint policy
    pvary, pcast    inside shard_map
    jit             of these alone

The array is in memory anyway: an input, a product, or what another product reads whole. Of what is computed element by
element XLA computes the part alone.

XLA would write the part to memory for a kernel of ours. To a kernel it is an offset and strides. A transpose alone, or
behind reshapes, is no part: lowering leaves that out itself (transposes.py). So is what would be more than one matrix
multiplication, or one with other sizes, if it were read in place. An attention stays what it is, and has the parts as a
parameter: those whose rows are contiguous and aligned, and whose heads are as far apart as one stride says. Its
gradients read parts of what the program makes where they read all of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.attention import attention_grad_p, attention_p, read_in_place
from jax_moye._primitives.contraction import contract_p
from jax_moye._primitives.dequantizing import without_unread
from jax_moye._primitives.equations import body_of, called_by, inlined, inner_of
from jax_moye._primitives.halves import taken_from
from jax_moye._primitives.patterns import PRODUCTS, Program
from jax_moye._primitives.rewritten import Original, rewritten_p, viewed_p
from jax_moye._primitives.transposes import Part, part_of, possible, source_in_jaxpr, takes_parts_alone

# What writes its results to memory.
_WRITES = (*PRODUCTS, "scan", "jax_moye_scan", "while", "cond", "ffi_call", "pallas_call", "optimization_barrier")
_ATTENTIONS = {attention_p: 3, attention_grad_p: 4}  # how many operands may be parts


def with_views(jaxpr: Jaxpr, given: Collection[Any]) -> Jaxpr:
    """The same program, whose products read parts of arrays in place.

    Args:
      jaxpr: of it.
      given: which of its inputs are in memory.
    """
    calls = [x for x in jaxpr.eqns if (body := inner_of(x)) is not None and takes_parts_alone(body)]
    opened = inlined(jaxpr, calls) if calls else jaxpr
    program = Program(opened.eqns, opened.outvars)
    new = [
        (_attention if equation.primitive in _ATTENTIONS else _viewed)(program, equation, given)
        for equation in opened.eqns
    ]
    if all(one is other for one, other in zip(new, opened.eqns, strict=True)):
        return jaxpr
    return opened.replace(eqns=without_unread(new, opened.outvars, program))


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
    found = _found(program, equation.invars[:count], given)
    parts = possible(params["spec"], avals[:count], found)
    halved = taken_from(program, equation.invars[1]) if is_rewritten and params["epilogue"].halves else None
    if halved is not None and parts[1] is None:  # all of that array is read, whoever makes it
        here = (part_of(program, x, halved.array) for x in equation.invars[1:count])
        parts = possible(params["spec"], avals[:count], [found[0], *here])
    if not any(parts):
        return equation
    views = tuple(None if part is None else part.view for part in parts)
    variables = [x if part is None else part.source for x, part in zip(equation.invars, parts, strict=False)]
    variables += equation.invars[count:]
    inner: Original | None = params.get("original")
    in_parts = None
    if halved is not None and inner is not None and (part := parts[1]) is not None:
        whole = Part(halved.array, part.source, part.view, part.members[: -halved.steps])
        inputs, body, operands = _taken_out(program, equation, variables, [parts[0], whole])
        original = _of_arrays(inner.in_two[1], inputs, body, operands[:2])
        in_parts = _in_place(original, inputs)
    else:
        inputs, body, operands = _taken_out(program, equation, variables, parts)
        outvars = [Var(x.aval) for x in equation.outvars]
        original = _closed(inputs, [*body, equation.replace(invars=operands, outvars=outvars)], outvars)
        if inner is not None:
            inputs, body, operands = _taken_out(program, equation, variables, parts)
            in_parts = _in_place(_of_arrays(inner, inputs, body, operands), inputs)
    key = None if is_rewritten else (views, tuple(x.aval for x in variables), tuple(sorted(params.items(), key=_name)))
    of_views = {"original": Original(original, key), "views": views, "inner": inner, "parts": in_parts}
    return equation.replace(invars=variables, primitive=viewed_p, params={**params, **of_views})


def _attention(program: Program, equation: JaxprEqn, given: Collection[Any]) -> JaxprEqn:
    """An equation of an attention, or of its gradients, of the arrays that its operands are parts of."""
    params: Any = equation.params
    count = _ATTENTIONS[equation.primitive]
    if any(_compat.has_explicit_axes(x.aval) for x in equation.invars):
        return equation
    found = _found(program, equation.invars[:count], given)
    made_by = {x: program.equations[i] for x, i in program.made_by.items()}
    operands = [source_in_jaxpr(x, made_by) for x in equation.invars[:count]]
    are_read = read_in_place(params["attention"], operands, [None if part is None else part.view for part in found])
    parts = [part if is_read else None for part, is_read in zip(found, are_read, strict=True)]
    if equation.primitive is attention_grad_p:
        kept = {part.source for part in parts[:3] if part is not None and _is_read_whole(part.source, parts[:3])}
        parts = [x if i == 3 or x is None or x.source in kept | {*given} else None for i, x in enumerate(parts)]
    if not any(parts):
        return equation
    views = tuple(None if part is None else part.view for part in parts)
    variables = [x if part is None else part.source for x, part in zip(equation.invars, parts, strict=False)]
    variables += equation.invars[count:]
    inputs, body, operands = _taken_out(program, equation, variables, parts)
    original = _in_place(_of_arrays(params["original"], inputs, body, operands), inputs)
    return equation.replace(invars=variables, params={**params, "original": original, "views": views})


def _is_read_whole(source: Any, parts: Sequence[Part | None]) -> bool:
    """Whether parts of an array are all of it: else it would be kept from the forward pass on for the rest, too."""
    count = sum(math.prod(part.view.shape) for part in parts if part is not None and part.source is source)
    return count >= math.prod(source.aval.shape)


def _found(program: Program, operands: Sequence[Any], given: Collection[Any]) -> list[Part | None]:
    """The parts of arrays in memory that operands are; None of others."""
    found = (part_of(program, x) for x in operands)
    return [x if x is not None and is_in_memory(program, x.source, given) else None for x in found]


def _of_arrays(inner: Original, inputs: list[Any], body: list[JaxprEqn], operands: list[Any]) -> ClosedJaxpr:
    """Equations of the arrays that operands are parts of; see `_taken_out`."""
    whole = inner.jaxpr.jaxpr
    renamed = dict(zip(whole.invars, operands, strict=True))
    equations = [
        one.replace(invars=[renamed.get(x, x) if isinstance(x, Var) else x for x in one.invars]) for one in whole.eqns
    ]
    made = [renamed.get(x, x) if isinstance(x, Var) else x for x in whole.outvars]
    return _closed(inputs, [*body, *equations], made)


def _in_place(closed: ClosedJaxpr, inputs: list[Any]) -> Original:
    """The same equations, whose products read parts of arrays in place."""
    return Original(ClosedJaxpr(with_views(closed.jaxpr, inputs), []))


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _closed(invars: list[Any], equations: list[JaxprEqn], outvars: list[Any]) -> ClosedJaxpr:
    return ClosedJaxpr(Jaxpr([], invars, outvars, equations, debug_info=_compat.UNNAMED), [])


def _taken_out(
    program: Program, equation: JaxprEqn, variables: Sequence[Any], parts: Sequence[Part | None]
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
    body = body_of(called)
    made = body.outvars[equation.outvars.index(result)]
    return any(_is_written(one, made) for one in body.eqns if any(x is made for x in one.outvars))
