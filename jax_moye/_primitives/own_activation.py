"""Finds the equations behind a product that a kernel can compute as its activation."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from jax.extend.core import Var

from jax_moye._primitives.equations import SAME, is_elementwise
from jax_moye._primitives.patterns import Program, as_number, aval_of

_MOST = 64  # equations behind a value
# Of these alone no function is made: they cost XLA nothing beside what follows, and a kernel of their own to compile.
_ARITHMETIC = frozenset(
    ("add", "add_any", "sub", "mul", "div", "neg", "convert_element_type", "copy", "reshape", *SAME)
)


def equations_behind(program: Program, value: Any) -> tuple[list[int], Any] | None:
    """The equations that make another array of a value and of numbers alone, element by element: as many as there are.

    Args:
      program: where they stand.
      value: which nobody else reads, nor what stands between the two arrays.

    Returns:
      Their indices in order, the last of which makes the other array, and that; None if there are none.
    """
    shape = aval_of(value).shape
    inside: dict[Any, int | None] = {value: None}  # what is made of it, by whom
    waiting = list(program.readers.get(value, ()))
    heapq.heapify(waiting)
    found: list[int] = []
    while waiting and len(found) < _MOST:
        index = heapq.heappop(waiting)
        if index == len(program.equations) or index in program.taken or index in found:
            continue
        equation: Any = program.equations[index]
        others = [x for x in equation.invars if isinstance(x, Var) and x not in inside]
        is_one = len(equation.outvars) == 1 and is_elementwise(equation) and aval_of(equation.outvars[0]).shape == shape
        if not is_one or any(as_number(program, x) is None for x in others):
            continue
        found.append(index)
        inside[equation.outvars[0]] = index
        for reader in program.readers.get(equation.outvars[0], ()):
            heapq.heappush(waiting, reader)
    names = {program.equations[index].primitive.name for index in found}
    if names <= _ARITHMETIC:
        return None
    for count in range(len(found), 0, -1):  # the longest part that hands out its last value alone
        members, last = set(found[:count]), found[count - 1]
        hidden = [x for x, index in inside.items() if index != last and (index is None or index in members)]
        if all(members.issuperset(program.readers.get(x, ())) for x in hidden):
            return found[:count], program.equations[last].outvars[0]
    return None


def name_of(equations: Iterable[Any], behind: str) -> str:
    """What people read of such a function: what its equations call, else their primitives.

    Args:
      equations: that make the other array, in order.
      behind: the name of the activation of the table that they are applied to, or "none".
    """
    words = [] if behind == "none" else [behind]
    for equation in equations:
        called = getattr(equation.params.get("call_jaxpr"), "jaxpr", None)  # of a function with derivatives of its own
        inside = getattr(getattr(called, "debug_info", None), "func_name", None)
        words.append(equation.params.get("name") or inside or equation.primitive.name)
    return " ".join(dict.fromkeys(words))
