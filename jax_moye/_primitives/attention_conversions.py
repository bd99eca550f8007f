"""Moves conversions of queries, keys and gradients next to the products that they are for.

    product(reshape(convert(x)), ...)       product(convert(reshape(x)), ...)    x of 16 bits, converted to f32
    convert(reshape(product(...)))          reshape(convert(product(...)))       to 16 bits

A reshape, or a transpose, changes no number, so that both are the same, bit by bit. attention_finding.py looks for
conversions beside products.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye._primitives.attention_products import is_widening
from jax_moye._primitives.patterns import Program, aval_of

_MOVES = ("reshape", "transpose", "squeeze", "expand_dims")
_BITS_16 = (jnp.bfloat16, jnp.float16)


def with_conversions_at_products(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, whose conversions are beside products where they may be; the same object if all are.

    Args:
      jaxpr: a program, without what its calls and loops contain.
    """
    replaced = _narrowed_results(jaxpr)
    new: list[JaxprEqn] = []
    wide = _for_products(jaxpr)
    made_of: dict[Any, tuple[Any, JaxprEqn]] = {}  # by what is converted to f32: what it was, and the conversion
    for index, equation in enumerate(jaxpr.eqns):
        one: Any = replaced.get(index, equation)
        if is_widening(one):
            made_of[one.outvars[0]] = one.invars[0], one
        elif _moves(one) and one.outvars[0] in wide and isinstance(one.invars[0], Var) and one.invars[0] in made_of:
            (out,), (before, conversion) = one.outvars, made_of[one.invars[0]]
            moved = _like(out, before)
            new.append(one.replace(invars=[before], outvars=[moved]))
            one = conversion.replace(invars=[moved], outvars=[out])
            made_of[out] = moved, one
        new.append(one)
    is_same = all(one is other for one, other in zip(new, jaxpr.eqns, strict=False)) and len(new) == len(jaxpr.eqns)
    return jaxpr if is_same else jaxpr.replace(eqns=new)


def _moves(equation: JaxprEqn) -> bool:
    return equation.primitive.name in _MOVES and len(equation.invars) == 1


def _like(variable: Any, other: Any) -> Var:
    """A new variable of a type's shape, and of the dtype of another one."""
    return Var(variable.aval.update(dtype=aval_of(other).dtype))


def _for_products(jaxpr: Jaxpr) -> set[Any]:
    """What products are given, and what that is moved from."""
    found: set[Any] = set()
    for equation in reversed(jaxpr.eqns):
        if equation.primitive.name == "dot_general" or (_moves(equation) and equation.outvars[0] in found):
            found.update(x for x in equation.invars if isinstance(x, Var))
    return found


def _narrowed_results(jaxpr: Jaxpr) -> dict[int, JaxprEqn]:
    """By index, the equations of products whose results are moved before they are converted to 16 bits."""
    program, replaced = Program(jaxpr.eqns, jaxpr.outvars), {}
    for index, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name != "convert_element_type" or aval_of(equation.outvars[0]).dtype not in _BITS_16:
            continue
        (out,) = equation.outvars
        between: list[int] = []
        variable: Any = equation.invars[0]
        while (at := program.maker(variable)[0]) is not None and _moves(program.equations[at]):
            between.append(at)
            variable = program.equations[at].invars[0]
        product: Any = None if at is None else program.equations[at]
        if product is None or not between or product.primitive.name != "dot_general":
            continue
        if aval_of(variable).dtype != jnp.float32 or aval_of(variable).weak_type or aval_of(out).weak_type:
            continue
        # The conversion stands where the first of them was, and so on.
        narrow = _like(variable, out)
        replaced[between[-1]] = equation.replace(invars=[variable], outvars=[narrow])
        for before, behind in zip(between[::-1], [*between[-2::-1], index], strict=True):
            moved = out if behind == index else _like(program.equations[before].outvars[0], out)
            replaced[behind] = program.equations[before].replace(invars=[narrow], outvars=[moved])
            narrow = moved
    return replaced
