"""Equations of a scan's body that move a value, or convert it, and the same ones outside of the scan.

Each has one operand, and each element of its result is one of that operand. Outside they move a constant, a sum, or all
rows of a stack at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.extend.core import JaxprEqn, Var, unmapped_aval
from jax.extend.core.primitives import convert_element_type_p

from jax_moye._primitives.equations import is_same
from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._primitives.scans import Scan

# Of equations that keep each element, or convert it: their parameters where each operand is a row of one with so many.
_MOVES: dict[str, Callable[[dict[str, Any], int], dict[str, Any]]] = {
    "broadcast_in_dim": lambda params, length: {
        **params,
        "shape": (length, *params["shape"]),
        "broadcast_dimensions": with_rows(params["broadcast_dimensions"]),
    },
    "convert_element_type": lambda params, length: params,
    "copy": lambda params, length: params,
    "copy_p": lambda params, length: params,
    "reshape": lambda params, length: {**params, "new_sizes": (length, *params["new_sizes"])},
    "squeeze": lambda params, length: {**params, "dimensions": tuple(1 + dim for dim in params["dimensions"])},
    "transpose": lambda params, length: {**params, "permutation": with_rows(params["permutation"])},
}


def with_rows(dims: Iterable[int]) -> tuple[int, ...]:
    """Dimensions of a row where it is one of a stack: that of the rows, and those of a row."""
    return 0, *(1 + dim for dim in dims)


def is_move(equation: JaxprEqn) -> bool:
    """Whether an equation keeps each element of its only operand, but for where it stands, or converts it."""
    if len(equation.invars) != 1 or equation.params.get("sharding") is not None:
        return False
    operand, result = aval_of(equation.invars[0]), aval_of(equation.outvars[0])
    if equation.primitive.name in ("broadcast_in_dim", "reshape"):
        dims = equation.params.get("dimensions")  # of reshape: the order in which it reads those of the operand
        return dims is None and math.prod(operand.shape) == math.prod(result.shape)
    return equation.primitive.name in _MOVES or is_same(equation)


def are_numbers(*avals: Any) -> bool:
    """Whether all sizes of arrays are."""
    return all(isinstance(size, int) for aval in avals for size in aval.shape)


def chain_of(body: Program, value: Any) -> list[tuple[Any, list[JaxprEqn]]]:
    """A value, and what it is made of by moves alone, each with the moves from it to the value."""
    chain: list[tuple[Any, list[JaxprEqn]]] = [(value, [])]
    while isinstance(value, Var) and value in body.made_by:
        move = body.equations[body.made_by[value]]
        if not is_move(move):
            break
        value = move.invars[0]
        chain.append((value, [move, *chain[-1][1]]))
    return chain


def moves_behind(body: Program, value: Any) -> tuple[list[JaxprEqn], Any]:
    """The moves of a value that alone read what is in front of them, and what they make in the end."""
    moves: list[JaxprEqn] = []
    while (reader := body.only_reader(value)) is not None and is_move(body.equations[reader]):
        moves.append(body.equations[reader])
        (value,) = moves[-1].outvars
    return moves, value


def placed(scan: Scan, equation: JaxprEqn, invars: Sequence[Any], result: Any, params: Any) -> JaxprEqn:
    """An equation of the body, with other operands, where the scan is."""
    source, outside = equation.source_info, scan.equation.source_info
    source = source.replace(name_stack=outside.name_stack + source.name_stack)
    return equation.replace(invars=list(invars), outvars=[result], params=params, source_info=source)


def moved(scan: Scan, moves: Iterable[JaxprEqn], name: Any, of_rows: bool = False) -> tuple[list[JaxprEqn], Any]:
    """The equations that move an array outside, and the name of what they make.

    Args:
      scan: of whose body the moves are.
      moves: the first one first; conversions may have been left out.
      name: of the array.
      of_rows: the body moves one of its rows at a time; else all of it.
    """
    equations: list[JaxprEqn] = []
    for one in moves:
        aval, params = aval_of(one.outvars[0]), one.params
        if one.primitive is not convert_element_type_p:
            aval = aval.update(dtype=aval_of(name).dtype)
        if of_rows:
            aval = unmapped_aval(scan.length, 0, aval)
            params = _MOVES.get(one.primitive.name, lambda params, _: params)(params, scan.length)
        equations.append(placed(scan, one, [name], Var(aval), params))
        name = equations[-1].outvars[0]
    return equations, name
