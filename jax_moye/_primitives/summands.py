"""What is added to a product: an array that is the same along some dimensions of the result, or a multiple of one.

And which sums are XLA's: a kernel of ours that adds an array saves nothing where XLA computes that array in the sum, or
the sum in what reads it (docs/performance.md, section 47).
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import Var

from jax_moye._primitives.equations import IN_PLACE, SAME, SUMS, is_elementwise, is_fusible, operands_of
from jax_moye._primitives.patterns import PRODUCTS, Program, as_broadcast, as_number, aval_of

# What changes no element, in front of who reads it.
MOVES = frozenset(("convert_element_type", "copy", "reshape", "squeeze", "transpose", "optimization_barrier"))
_FACTORS = ("mul", "div", "neg")


def as_bias(
    program: Program, spec: tuple[str, str, str], value: Any, variable: Any
) -> tuple[Any, str, list[int]] | None:
    """An operand as a bias: the array, its labels, and the equation that copies it to the product's shape, if any."""
    shape = aval_of(value).shape
    vector, dims, members = as_broadcast(program, variable, shape)
    if vector is None or len(shape) - 1 not in dims:
        return None
    lhs, rhs, out_labels = spec
    labels, batch = "".join(out_labels[dim] for dim in dims), set(lhs) & set(rhs)
    # Of a layer with several dimensions, such as heads and what one has, or of each layer of a batch of them.
    own = set(lhs if labels[-1] in lhs else rhs) - batch
    own |= {labels[-1]} if aval_of(vector).shape == shape else batch
    return (vector, labels, members) if own.issuperset(labels) else None


def as_column_and_row(
    program: Program, spec: tuple[str, str, str], value: Any, variable: Any
) -> tuple[dict[str, Any], list[int]] | None:
    """An array that is a sum of two, one of which is the same in each row: a bias, and c."""
    index, equation = program.maker(variable)
    if index is None or equation.primitive.name != "add":
        return None
    for column, row in (equation.invars, equation.invars[::-1]):
        of_row = as_bias(program, spec, value, row) if isinstance(row, Var) else None
        of_column = as_copy(program, spec, value, column) if isinstance(column, Var) else None
        if of_row is not None and of_column is not None:
            operands = {"c": of_column[:2], "bias": of_row[:2]}
            return operands, [index, *of_row[2], *of_column[2]]
    return None


def as_copy(
    program: Program, spec: tuple[str, str, str], value: Any, variable: Any
) -> tuple[Any, str, list[int]] | None:
    """An operand that is the same along some dimensions: its array, its labels, and the equation that copies it."""
    shape, (*_, out_labels) = aval_of(value).shape, spec
    before, dims, members = as_broadcast(program, variable, shape)
    is_whole = list(dims) == [dim for dim, size in enumerate(shape) if size != 1]
    return None if before is None or is_whole else (before, "".join(out_labels[dim] for dim in dims), members)


def as_multiple(program: Program, variable: Any) -> tuple[Any, float, list[int]]:
    """An operand as an array, a factor, and the equation that multiplies them; with factor 1 where there is none."""
    index, equation = program.maker(variable)
    if index is None or equation.primitive.name != "mul":
        return variable, 1.0, []
    for x, other in (equation.invars, equation.invars[::-1]):
        number = as_number(program, other)
        is_array = isinstance(x, Var) and aval_of(x).shape == aval_of(variable).shape
        if number and is_array and 2.0**-100 < abs(number) < 2.0**100:
            return x, number, [index]
    return variable, 1.0, []


def is_fused_by_xla(program: Program, variable: Any) -> bool:
    """Whether XLA computes an array where it is added to a product, so that it never lies in memory.

    A kernel that adds it would have it written there first, and reads it: as much as writing and reading the product
    takes, which XLA adds in the fusion that computes the array. Nobody else reads it, and it is neither a product nor
    the sum of one, which a kernel may write.
    """
    _, equation = program.maker(variable)
    while equation is not None and equation.primitive.name in IN_PLACE:
        _, equation = program.maker(equation.invars[0])
    if equation is None:
        return False
    is_sum = equation.primitive.name in (*SUMS, "convert_element_type")
    if is_sum and any(_is_of_product(program, x) for x in operands_of(equation)):
        return False
    return is_fusible(equation)


def is_computed_where_read(program: Program, value: Any, added: Any) -> bool:
    """Whether XLA computes a product and an array in what reads it, of elements alone: it never lies in memory.

    The kernel there reads both in its place, and is there anyway. Not where the array is a product, too, or the sum is
    added to one or multiplied with it: one kernel of ours does more than XLA's then.

    Args:
      program: where it stands.
      value: the sum.
      added: the array.
    """
    if _is_of_product(program, added) or program.is_read_whole(value, MOVES):
        return False
    readers = [program.equations[index] for index in program.readers.get(value, ())]
    return not any(
        _is_of_product(program, x, is_activated=one.primitive.name in SUMS)
        for one in readers
        for x in one.invars
        if x is not value
    )


def has_column_sums(program: Program, value: Any) -> bool:
    """Whether somebody sums a value along other dimensions than the last one, as a bias's gradient is made."""
    waiting = [value]
    for x in waiting:  # which grows
        for index in program.readers.get(x, ()):
            equation: Any = program.equations[index] if index < len(program.equations) else None
            if equation is None:
                continue
            if equation.primitive.name == "reduce_sum" and x.aval.ndim - 1 not in equation.params["axes"]:
                return True
            if equation.primitive.name == "convert_element_type":
                waiting += equation.outvars
    return False


def _is_of_product(program: Program, value: Any, is_activated: bool = False) -> bool:
    """Whether a product makes a value, in front of factors, conversions and what moves it.

    Args:
      program: where it stands.
      value: which.
      is_activated: a bias and functions of single elements may stand between them, too.
    """
    while isinstance(value, Var) and (index := program.made_by.get(value)) is not None:
        equation: Any = program.equations[index]
        if equation.primitive.name in PRODUCTS:
            return True
        operands = [x for x in operands_of(equation) if not (is_activated and _is_copied(program, x))]
        is_function = is_activated and is_elementwise(equation)
        if len(operands) != 1 or not (is_function or equation.primitive.name in (*MOVES, *SAME, *_FACTORS)):
            return False
        (value,) = operands
    return False


def _is_copied(program: Program, value: Any) -> bool:
    """Whether a value is a smaller one, copied along some dimensions: as a bias is."""
    index = program.made_by.get(value)
    return index is not None and program.equations[index].primitive.name == "broadcast_in_dim"
