"""Equations of jaxprs: which compute each element for itself, and calls in whose place their equations may stand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.core.primitives import closed_call_p
from jax.sharding import NamedSharding

from jax_moye import _compat

# Each element of the result is a function of one of each operand, or a copy of one; a bit cast to a wider type takes
# neighbours. reduce_precision and convert_element_type are among them: values are rounded as they were. Products of
# matrices, sums, gathers, transposes and random numbers are not, nor are barriers and what places arrays.
_NAMES = """
abs add add_any and bitcast_convert_type broadcast_in_dim cbrt ceil clamp convert_element_type copy copy_p cos div eq
erf erf_inv erfc exp exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log log1p log2 logistic lt max
min mul name ne neg not one_minus_square or pcast polynomial pow pvary reduce_precision rem reshape round rsqrt
select_n sign sin sqrt square squeeze stop_gradient sub tan tanh xor
"""
_ELEMENTWISE = frozenset(_NAMES.split())
CLOSED_CALL = closed_call_p.name  # "closed_call"; since jax 0.11 "eval_jaxpr"
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    CLOSED_CALL: "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
_JITS = ("jit", "pjit")
SAME = ("name", "pvary", "pcast")  # the value stays the same: checkpoint_name, and what shard_map has inside
IN_PLACE = ("reshape", "squeeze", "expand_dims", *SAME)  # the result lies where the operand does
SUMS = ("add", "add_any", "sub")
# What XLA computes where it is read, as it does what computes each element for itself.
_READS = ("concatenate", "dynamic_slice", "gather", "iota", "pad", "rev", "slice", "transpose")
_REMATS = ("checkpoint", "remat", "remat2")


def is_same(equation: Any) -> bool:
    """Whether the result of an equation is its operand: a rounding to the type that it has is among them.

    That one is what a policy of jax.checkpoint puts behind a value that it saves.
    """
    if equation.primitive.name == "reduce_precision":
        out, params = equation.outvars[0].aval, equation.params
        if not jnp.issubdtype(out.dtype, jnp.floating):
            return False
        of_type = jnp.finfo(out.dtype)
        return (params["exponent_bits"], params["mantissa_bits"]) == (of_type.nexp, of_type.nmant)
    return equation.primitive.name in SAME


def body_of(closed: Any) -> Jaxpr:
    """Of a jaxpr with or without constants."""
    return getattr(closed, "jaxpr", closed)


def operands_of(equation: Any) -> list[Any]:
    """Without numbers."""
    return [x for x in equation.invars if isinstance(x, Var)]


def called_by(equation: Any) -> Any | None:
    """The jaxpr of a call, with or without constants, which computes what the call does; None of other equations."""
    return equation.params.get(_CALLS.get(equation.primitive.name, ""))


def is_elementwise(equation: Any) -> bool:
    """Whether an equation, or all that it calls, computes each element for itself, cheaply, and does nothing else."""
    called = called_by(equation)
    if called is not None:
        return not equation.effects and all(map(is_elementwise, body_of(called).eqns))
    return equation.primitive.name in _ELEMENTWISE and not equation.effects and not reorders(equation)


def reorders(equation: Any) -> bool:
    """Whether an equation is a reshape that reads another order of dimensions, as `jnp.reshape(x, ..., order="F")`."""
    return equation.primitive.name == "reshape" and equation.params.get("dimensions") is not None


def is_fusible(equation: Any) -> bool:
    """Whether XLA computes what an equation makes where that is read, and has no array of it."""
    return is_elementwise(equation) or equation.primitive.name in _READS


def parted(equations: Iterable[JaxprEqn], value: Any) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Equations that a value needs, and the others, both in their order.

    Args:
      equations: of a jaxpr.
      value: that one of them makes.
    """
    needed = {value}
    of_value: list[JaxprEqn] = []
    others: list[JaxprEqn] = []
    for one in reversed(list(equations)):
        is_needed = any(x in needed for x in one.outvars)
        (of_value if is_needed else others).append(one)
        needed.update(operands_of(one) if is_needed else ())
    return of_value[::-1], others[::-1]


def keep_their_place(effects: Iterable[Any]) -> bool:
    """Whether what has effects stays where it is among others that have; names of axes are no reason."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in effects)


def inner_of(equation: Any) -> Jaxpr | None:
    """The jaxpr of a jit that may as well be its equations: it places nothing, and gives nothing away."""
    params = equation.params
    if (
        equation.primitive.name not in _JITS
        or params.get("compiler_options_kvs")
        or any(params.get("donated_invars", ()))
    ):
        return None
    shardings = *params.get("in_shardings", ()), *params.get("out_shardings", ())
    layouts = *params.get("in_layouts", ()), *params.get("out_layouts", ())
    if any(type(x).__name__ != "UnspecifiedValue" for x in shardings) or any(x is not None for x in layouts):
        return None
    inner = body_of(params["jaxpr"])
    return None if inner.constvars or inner.effects else inner


def looked_into(equation: Any) -> Jaxpr | None:
    """Likewise, and of a checkpoint without effects, which is to stay, but for what replaces some of its equations."""
    if equation.primitive.name in _REMATS and "jaxpr" in equation.params and not equation.effects:
        body = body_of(equation.params["jaxpr"])
        return None if body.constvars else body
    return inner_of(equation)


def is_checkpoint(equation: Any) -> bool:
    """Whether an equation is a checkpoint that is looked into."""
    return inner_of(equation) is None and looked_into(equation) is not None


def inlined(jaxpr: Jaxpr, calls: Collection[Any], inner: Callable[[Any], Jaxpr | None] = inner_of) -> Jaxpr:
    """The same program with the equations of some calls, whose names stay, in the place of the calls.

    Args:
      jaxpr: a program.
      calls: equations of it.
      inner: the jaxpr of a call; None of what stays.
    """
    ids = set(map(id, calls))
    new: list[Any] = []
    names: dict[Any, Any] = {}

    def name(x: Any, inside: dict[Any, Any]) -> Any:
        return inside.get(x, x) if isinstance(x, Var) else x

    def renamed(equation: Any, inside: dict[Any, Any], **others: Any) -> Any:
        return equation.replace(invars=[name(x, inside) for x in equation.invars], **others)

    for equation in jaxpr.eqns:
        body = inner(equation) if id(equation) in ids else None
        if body is None:
            new.append(renamed(equation, names) if any(x in names for x in operands_of(equation)) else equation)
            continue
        called = equation.params.get("name")
        stack = equation.source_info.name_stack.extend(f"jit({called})" if called else equation.primitive.name)
        inside = dict(zip(body.invars, (name(x, names) for x in equation.invars), strict=True))
        for one in body.eqns:
            inside |= {x: Var(x.aval) for x in one.outvars}
            source = one.source_info.replace(name_stack=stack + one.source_info.name_stack)
            new.append(renamed(one, inside, outvars=[inside[x] for x in one.outvars], source_info=source))
        names |= {x: name(y, inside) for x, y in zip(equation.outvars, body.outvars, strict=True)}
    return jaxpr.replace(eqns=new, outvars=[name(x, names) for x in jaxpr.outvars])


def opened(jaxpr: Jaxpr) -> Jaxpr:
    """The same program with the equations of jit in the place of its calls, and of theirs."""
    while calls := [one for one in jaxpr.eqns if inner_of(one) is not None]:
        jaxpr = inlined(jaxpr, calls)
    return jaxpr


def names_a_mesh(closed: ClosedJaxpr) -> bool:
    """Whether types of a program's values say something about a mesh, as they do inside shard_map."""
    jaxpr = closed.jaxpr
    variables = (*jaxpr.invars, *jaxpr.outvars, *(x for equation in jaxpr.eqns for x in equation.outvars))
    return any(map(_compat.is_on_mesh, (x.aval for x in variables)))


def of_one_device(closed: ClosedJaxpr, of_others: Callable[[Any], Any]) -> ClosedJaxpr:
    """The same program of arrays whose types say nothing about a mesh: what one device computes inside of shard_map.

    Args:
      closed: the program, whose equations do not exchange anything.
      of_others: of parameters of equations that hold no jaxprs.
    """
    jaxpr = closed.jaxpr
    names: dict[Any, Any] = {x: Var(_compat.without_mesh(x.aval)) for x in (*jaxpr.constvars, *jaxpr.invars)}

    def name(x: Any) -> Any:
        return x if isinstance(x, Literal) else names[x]

    def of(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return of_one_device(value, of_others)
        if isinstance(value, Jaxpr):
            return of_one_device(ClosedJaxpr(value, []), of_others).jaxpr
        if isinstance(value, NamedSharding):
            return None
        if hasattr(value, "_make"):  # a NamedTuple
            return value._make(map(of, value))
        return tuple(map(of, value)) if type(value) is tuple else of_others(value)

    equations: list[JaxprEqn] = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in SAME and len(equation.invars) == 1:
            names[equation.outvars[0]] = name(equation.invars[0])
            continue
        names |= {x: Var(_compat.without_mesh(x.aval)) for x in equation.outvars}
        params = {key: of(value) for key, value in equation.params.items()}
        invars, outvars = list(map(name, equation.invars)), list(map(name, equation.outvars))
        equations.append(equation.replace(invars=invars, outvars=outvars, params=params))
    inputs = [names[x] for x in jaxpr.invars]
    made = list(map(name, jaxpr.outvars))
    constants = [names[x] for x in jaxpr.constvars]
    return ClosedJaxpr(Jaxpr(constants, inputs, made, equations, debug_info=_compat.UNNAMED), closed.consts)
