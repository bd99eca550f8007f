"""Sums of a product's columns, as the derivative of a bias is one, apart from what else reads the product.

Where a kernel has written an array, XLA makes one kernel of a sum of its columns and of what it computes of the array's
elements beside that. In float32 one such kernel took 47 us where XLA's two for the same arrays take 11
(docs/performance.md, section 48). A barrier in front of the sum keeps them apart; the array is in memory, and is read
once more.

| what | condition |
|---|---|
| the sum of x over all dimensions but the last reads a barrier of x | x is float32, of as many elements as were timed |
| | it is a product's result, also of another shape |
| | something that XLA computes where it is read reads that result, too |
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.equations import IN_PLACE, is_fusible
from jax_moye._primitives.known_constants import renamed
from jax_moye._primitives.patterns import PRODUCTS, Program, aval_of

_LEAST = 1 << 20  # elements: nobody has timed smaller arrays


def with_sums_apart(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, with barriers in front of such sums; the same object if there are none.

    Args:
      jaxpr: a program; the jaxprs of its equations stay what they are.
    """
    if not any(map(_is_of_columns, jaxpr.eqns)):
        return jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    equations: list[JaxprEqn] = []
    for one in jaxpr.eqns:
        equations += _apart(one) if _is_of_columns(one) and _is_beside_others(program, one.invars[0]) else [one]
    return jaxpr if len(equations) == len(jaxpr.eqns) else jaxpr.replace(eqns=equations)


def _is_of_columns(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "reduce_sum":
        return False
    x = aval_of(equation.invars[0])
    is_of_rows = sorted(equation.params["axes"]) == list(range(x.ndim - 1)) and x.ndim > 1
    return is_of_rows and x.dtype == np.float32 and math.prod(x.shape) >= _LEAST


def _is_beside_others(program: Program, value: Any) -> bool:
    """Whether it is a product's result, of which XLA computes something else, too."""
    index = program.made_by.get(value) if isinstance(value, Var) else None
    if index is None:
        return False
    maker = program.equations[index]
    if maker.primitive.name in IN_PLACE:
        return _is_beside_others(program, maker.invars[0])
    return maker.primitive.name in PRODUCTS and _is_computed_of(program, value)


def _is_computed_of(program: Program, value: Any) -> bool:
    """Whether functions of elements read it, also in another shape."""
    readers = [program.equations[i] for i in program.readers.get(value, ()) if i < len(program.equations)]
    moves = [one for one in readers if one.primitive.name in IN_PLACE]
    others = [one for one in readers if one.primitive.name not in IN_PLACE]
    return any(map(is_fusible, others)) or any(_is_computed_of(program, one.outvars[0]) for one in moves)


def _apart(equation: JaxprEqn) -> list[JaxprEqn]:
    """A barrier, and the sum of what it lets through."""
    x = equation.invars[0]
    with _compat.lax_itself():
        traced = jax.make_jaxpr(lax.optimization_barrier)(aval_of(x)).jaxpr
    (barrier,) = traced.eqns
    barrier = renamed(barrier, {traced.invars[0]: x})
    return [barrier, equation.replace(invars=[*barrier.outvars])]
