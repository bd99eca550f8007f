"""Which arrays a product may be written over: the c that it is added to, whose memory its result takes then.

Where somebody reads c who need not be done before, XLA copies c in front of such a kernel, which costs more than a
result of its own. So a kernel writes over c where all else that reads c makes what the kernel reads, and c is the
program's own or was donated. What is made of c element by element and is no array in memory, such as c in float32 in
front of a norm, XLA computes of c wherever it is read, in the norm's derivative, too: who reads that reads c. A jaxpr
does not say which of its arguments are donated: lowering knows (custom_call.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.core import Var

from jax_moye import _compat
from jax_moye._primitives.equations import IN_PLACE, body_of, is_fusible
from jax_moye._primitives.patterns import PRODUCTS, Program


def is_needed(program: Program, variable: Any, members: Collection[int], operands: Sequence[Any]) -> bool:
    """Whether an array is to stay as it is, which an equation might write its result over.

    Args:
      program: where it is read.
      variable: the array.
      members: indices of the equations that become that one.
      operands: of that one.
    """
    if not isinstance(variable, Var) or sum(x is variable for x in operands) > 1:
        return True
    arrays: list[Any] = [variable]
    for x in arrays:  # which grows
        index = program.made_by.get(x)
        if index is not None and program.equations[index].primitive.name in IN_PLACE:
            arrays.append(program.equations[index].invars[0])
    if any(x in program.borrowed for x in arrays if isinstance(x, Var)):
        return True
    readers: set[int] = set()
    for x in arrays:  # which grows
        of_x = set(program.readers.get(x, ()) if isinstance(x, Var) else ()) - readers - set(members)
        readers |= of_x
        arrays += [y for index in of_x for y in _computed(program, index)]
    return not all(_is_before(program, reader, operands) for reader in sorted(readers, reverse=True))


def _computed(program: Program, index: int) -> list[Any]:
    """What an equation makes that XLA does not write to memory, but computes where it is read."""
    if index >= len(program.equations):
        return []
    equation = program.equations[index]
    if not is_fusible(equation):
        return []
    return [x for x in equation.outvars if not any(_writes(program, reader) for reader in program.readers.get(x, ()))]


def _writes(program: Program, reader: int) -> bool:
    """Whether who reads an array needs it in memory: a product, or whom the program returns it to."""
    return reader >= len(program.equations) or program.equations[reader].primitive.name in PRODUCTS


def _is_before(program: Program, first: int, operands: Sequence[Any]) -> bool:
    """Whether an equation has to be done before operands, which are made of its results, are read."""
    seen: set[int] = set()
    waiting = list(operands)
    while waiting:
        x = waiting.pop()
        index = program.made_by.get(x, -1) if isinstance(x, Var) else -1
        if index == first:
            return True
        if index > first and index not in seen:  # what is made earlier is made of none of its results
            seen.add(index)
            waiting += program.equations[index].invars
    return False


def borrowed_by(program: Program, index: int, body: Any) -> list[bool]:
    """Of the inputs of an equation's jaxpr, which are arrays that somebody reads when it is done.

    Args:
      program: where the equation stands.
      index: of it.
      body: the jaxpr.
    """
    equation: Any = program.equations[index]
    count = len(body_of(body).invars)
    if equation.primitive.name == "scan":  # a carry and rows are the loop's own
        operands = _compat.scan_operands(equation.params)
        return [operands is None or i < operands.consts for i in range(count)]
    if equation.primitive.name == "while":
        consts = equation.params["cond_nconsts" if body is equation.params["cond_jaxpr"] else "body_nconsts"]
        return [i < consts for i in range(count)]
    if count > len(equation.invars):
        return [True] * count
    given = equation.invars[len(equation.invars) - count :]  # cond has an index in front
    return [is_needed(program, x, [index], equation.invars) for x in given]
