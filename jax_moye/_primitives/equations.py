"""Equations of jaxprs: which compute each element for itself, and calls in whose place their equations may stand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jax.extend.core import Jaxpr, Var

# Each element of the result is a function of one of each operand, or a copy of one. reduce_precision and
# convert_element_type are among them: values are rounded as they were. Products of matrices, sums, gathers, transposes
# and random numbers are not, nor are barriers and what places arrays.
_NAMES = """
abs add add_any and broadcast_in_dim cbrt ceil clamp convert_element_type copy copy_p cos div eq erf erf_inv erfc exp
exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log log1p logistic lt max min mul name ne neg not or
pcast pow pvary reduce_precision rem reshape round rsqrt select_n sign sin sqrt square squeeze stop_gradient sub tan
tanh xor
"""
_ELEMENTWISE = frozenset(_NAMES.split())
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
_JITS = ("jit", "pjit")


def body_of(closed: Any) -> Jaxpr:
    """Of a jaxpr with or without constants."""
    return getattr(closed, "jaxpr", closed)


def operands_of(equation: Any) -> list[Any]:
    """Without numbers."""
    return [x for x in equation.invars if isinstance(x, Var)]


def is_elementwise(equation: Any) -> bool:
    """Whether an equation, or all that it calls, computes each element for itself, cheaply, and does nothing else."""
    name = equation.primitive.name
    if (called := called_by(equation)) is not None:
        return not equation.effects and all(map(is_elementwise, body_of(called).eqns))
    return name in _ELEMENTWISE and not equation.effects


def called_by(equation: Any) -> Any | None:
    """The jaxpr, with or without constants, that an equation is a call of; None of others."""
    return equation.params.get(_CALLS.get(equation.primitive.name, ""))


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


def inlined(jaxpr: Jaxpr, calls: Collection[Any]) -> Jaxpr:
    """The same program with the equations of some calls of jit, whose names stay, in the place of the calls."""
    ids = set(map(id, calls))
    new: list[Any] = []
    names: dict[Any, Any] = {}

    def name(x: Any, inside: dict[Any, Any]) -> Any:
        return inside.get(x, x) if isinstance(x, Var) else x

    def renamed(equation: Any, inside: dict[Any, Any], **others: Any) -> Any:
        return equation.replace(invars=[name(x, inside) for x in equation.invars], **others)

    for equation in jaxpr.eqns:
        inner = inner_of(equation) if id(equation) in ids else None
        if inner is None:
            new.append(renamed(equation, names) if any(x in names for x in operands_of(equation)) else equation)
            continue
        stack = equation.source_info.name_stack.extend(f"jit({equation.params['name']})")
        inside = dict(zip(inner.invars, (name(x, names) for x in equation.invars), strict=True))
        for one in inner.eqns:
            inside |= {x: Var(x.aval) for x in one.outvars}
            source = one.source_info.replace(name_stack=stack + one.source_info.name_stack)
            new.append(renamed(one, inside, outvars=[inside[x] for x in one.outvars], source_info=source))
        names |= {x: name(y, inside) for x, y in zip(equation.outvars, inner.outvars, strict=True)}
    return jaxpr.replace(eqns=new, outvars=[name(x, names) for x in jaxpr.outvars])
