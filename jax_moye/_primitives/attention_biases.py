"""The one bias that a kernel adds to scores, of all that a program adds, and what their gradients are made of.

    (scores + a) * scale + b        a kernel's bias is scale * a + b

XLA computes that sum in f32, and writes it as large as the arrays together are. It is rounded to 16 bits where the
program rounds as much: where it rounds the scores, and their sum with the last of the biases. The bias is no larger
than both together, and so is what rounding takes from it. In float16, though, it may be infinite where both are not.

A kernel's derivative is that of the scores behind the scale. The program's own equations make of it what it is in front
of the scale, and in the types that gradients are summed in.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from jax_moye._primitives.attention import moved
from jax_moye._primitives.attention_bias import variable_of
from jax_moye._primitives.attention_dropout import dropout_of
from jax_moye._primitives.attention_formulas import Bias, is_same
from jax_moye._primitives.attention_operand import MadeOperand
from jax_moye._primitives.attention_search import Result, Search
from jax_moye._primitives.attention_softmax import NotAttentionError, apart
from jax_moye._primitives.patterns import Number, Program


def bias_operand(program: Program, search: Search, row: str) -> MadeOperand | None:
    """The array that a kernel adds to the scores; None where there is none.

    Args:
      program: where they stand.
      search: that found them.
      row: the label of the rows: others are of heads that share keys.

    Raises:
      NotAttentionError: it is made of the queries and the keys.
    """
    biases = () if search.softmax.scores is None else search.softmax.scores.biases
    if not biases:
        return None
    variables = tuple(dict.fromkeys(bias.variable for bias in biases))
    for variable in variables:
        _check_is_of_others(program, search, variable)
    (first, *others) = biases
    if not others and is_same(first.factor, 1):
        return MadeOperand(first.labels, variables, None)
    of_scores = *search.batch, *(label for label in search.rows if label != row), row, "k"
    dims = tuple(dim for dim in of_scores if any(dim in bias.labels for bias in biases) and dim != ".")
    dtype = search.dtype if _may_be_rounded(search, biases) else jnp.float32

    def made(*values: Any) -> Any:
        given, total = dict(zip(variables, values, strict=True)), jnp.float32(0)
        for variable, labels, factor, _ in biases:
            wanted = "".join(dim if dim in labels else "." for dim in dims)
            x = moved(given[variable], "".join(labels), wanted).astype(jnp.float32)
            total += x if is_same(factor, 1) else factor * x
        return lax.broadcast_in_dim(total.astype(dtype), [search.sizes[dim] for dim in dims], range(len(dims)))

    return MadeOperand(dims, variables, made)


def _may_be_rounded(search: Search, biases: tuple[Bias, ...]) -> bool:
    """Whether the sum of biases has as many bits as the queries, if it is one of the program's or is exact.

    Not of float16, in which biases together may be infinite where they and a score are not.
    """
    if search.dtype == jnp.float16:
        return False
    if search.product_dtype == biases[-1].sum_dtype == search.dtype:
        return True
    is_alone = len(biases) == 1 and biases[0].variable.aval.dtype == search.dtype == jnp.bfloat16
    return is_alone and math.frexp(abs(biases[0].factor))[0] == 0.5


def _check_is_of_others(program: Program, search: Search, variable: Any) -> None:
    """That it is not made of the scores, which a program may compute twice, where XLA computes them once."""
    waiting, seen, both = [variable], set(), {search.q.variable, search.k.variable}
    while waiting:
        x = waiting.pop()
        if isinstance(x, Literal) or x in seen:
            continue
        seen.add(x)
        if both <= seen:
            raise NotAttentionError("what is added to the scores is made of the queries and the keys")
        index = program.made_by.get(x)
        waiting += [] if index is None else program.equations[index].invars


def gradient_of_biases(program: Program, search: Search) -> tuple[dict[str, Result], frozenset[int]]:
    """What the gradients of biases are made of.

    Args:
      program: where they stand.
      search: that found them; the factor of dropout is added to it.

    Returns:
      The result "ds", the derivative of the scores behind the scale, if there is one; and the indices of the equations
      that make of it what the program sums, and that stay.

    Raises:
      NotAttentionError: it is no variable of the program that a kernel writes.
    """
    leaves = dict.fromkeys(search.leaves)
    for name, value in search.values.items():
        if search.is_bias_gradient(value) and len(program.equations) in program.readers.get(
            variable_of(program, name), ()
        ):
            leaves[name] = None  # a result of the program itself
    if not leaves:
        return {}, frozenset()
    first, *others = (_in_front(program, search, name) for name in leaves)
    for name, places in first.items():
        variable, value = variable_of(program, name), search.values[name]
        place = program.made_by.get(variable)
        if place is None or any(name not in one for one in others) or not search.is_bias_gradient(value, 1.0):
            continue
        behind = places.union(*(one[name] for one in others))
        is_written = variable.aval.dtype in (search.dtype, jnp.float32) and not variable.aval.weak_type
        if is_written and place not in behind:
            search.dropouts.append(dropout_of(value.what))
            return {"ds": Result(place, value.labels, apart(value.what)[1], variable)}, behind
    raise NotAttentionError("the gradient of what is added to the scores is read in several forms")


def _in_front(program: Program, search: Search, name: Any) -> dict[Any, frozenset[int]]:
    """The derivatives of scores that one is made of, the last first, and the equations between each and that one."""
    found: dict[Any, frozenset[int]] = {}
    places: frozenset[int] = frozenset()
    while True:
        found[name] = places
        step = program.flat.made_by[name]
        made = {x for x in step.inputs if not isinstance(x, Number) and x in search.values}
        before = [x for x in made if search.is_bias_gradient(search.values[x])]
        if len(before) != 1:
            return found
        (name,), places = before, places | {step.place}
