"""Moves numbers that float32 queries or keys are multiplied by to the scores, where attention_finding.py sees them.

    product(convert(q) / s, convert(k))        product(convert(q), convert(k)) / s      q and k of 16 bits
    product(d_scores, convert(q) / s)          product(d_scores / s, convert(q))        dk
    product(d_scores, convert(k)) / s          product(d_scores / s, convert(k))        dq

So programs write it that ask for scores, and a softmax, in float32: Hugging Face's Llama does. Products of 16 bits are
exact in float32, and quotients in front of them are not, which TF32 rounds: what is left to XLA is no less precise.

A dot_general without a sum that multiplies by an array of ones, as BERT's weights are by its mask of heads, becomes the
transpose that it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.attention_formulas import Choice
from jax_moye._primitives.attention_known import KnownValues
from jax_moye._primitives.attention_products import is_exact_in_tf32, is_widening
from jax_moye._primitives.attention_scaled import multiplied
from jax_moye._primitives.known_constants import renamed
from jax_moye._primitives.patterns import Program, aval_of


class _Move(NamedTuple):
    """A number that moves.

    Attributes:
      wide: the queries, or the keys, in f32, in front of the number.
      factor: the number.
      scores: the index of the product that makes the scores.
      gradient: the index of the other product that reads the scaled ones: the other one's gradient; None without.
      own: the index of the product that makes their own gradient; None without.
      behind: the index of the equation that multiplies that by the number.
      last: what it multiplies: the product's result, or a transpose of it.
    """

    wide: Any
    factor: float
    scores: int
    gradient: int | None = None
    own: int | None = None
    behind: int | None = None
    last: Any = None


def with_factors_at_scores(jaxpr: Jaxpr, but: Collection[Any]) -> tuple[Jaxpr, dict[Any, Any]]:
    """The same program, whose scores are multiplied by what queries or keys were; the same object if there are none.

    Args:
      jaxpr: a program, without what its calls and loops contain.
      but: arrays that were multiplied, and stay what they are.

    Returns:
      it, and {the scores in front of the number: the array that was multiplied}.
    """
    scores: dict[Any, Any] = {}
    if not any(is_widening(equation) for equation in jaxpr.eqns):
        return jaxpr, scores
    while True:
        jaxpr, found = _moved_once(jaxpr, but)
        if not found:
            return jaxpr, scores
        scores |= found


def _moved_once(jaxpr: Jaxpr, but: Collection[Any]) -> tuple[Jaxpr, dict[Any, Any]]:
    """The same, where queries and keys of a product are multiplied, of one of them."""
    program = Program(jaxpr.eqns, jaxpr.outvars)
    known = functools.cache(lambda: KnownValues(program))
    moves: dict[int, _Move] = {}  # by the equation that multiplies
    for index, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name in ("mul", "div") and equation.outvars[0] not in but:
            move = _move_of(program, known, index)
            if move is not None and not any(set(_products(move)) & {*_products(other)} for other in moves.values()):
                moves[index] = move
    return _moved(program, jaxpr, moves)


def _products(move: _Move) -> list[int]:
    return [x for x in (move.scores, move.gradient, move.own) if x is not None]


def _move_of(program: Program, known: Callable[[], KnownValues], index: int) -> _Move | None:
    """What an equation multiplies, if its number may move; None if it may not."""
    equations = program.equations
    (scaled,) = equations[index].outvars
    readers = program.readers.get(scaled, [])
    if not 1 <= len(readers) <= 2 or len(equations) in readers:
        return None
    products: list[Any] = [equations[reader] for reader in readers]
    if any(one.primitive.name != "dot_general" or list(one.invars).count(scaled) != 1 for one in products):
        return None
    wide, factor = _f32_multiplied(program, known, index)  # at last, as it looks at the whole program
    if wide is None or not _is_wide(program, wide) or _compat.has_explicit_axes(aval_of(wide)):
        return None
    sides = [list(one.invars).index(scaled) for one in products]
    others = [one.invars[1 - side] for one, side in zip(products, sides, strict=True)]
    of_scores = [_is_wide(program, x) or _is_scaled(program, known, x) for x in others]
    if of_scores.count(True) != 1 or not is_exact_in_tf32(products[of_scores.index(True)]):
        return None
    which = of_scores.index(True)
    move = _Move(wide, factor, readers[which])
    if len(readers) == 1:
        return move
    d_scores, keys = others[1 - which], others[which]
    if not isinstance(d_scores, Var) or aval_of(d_scores).dtype != np.float32:
        return None
    for reader in program.readers[d_scores]:
        if reader in (len(equations), readers[1 - which]):
            continue
        one: Any = equations[reader]
        if one.primitive.name != "dot_general" or not any(x is keys for x in one.invars):
            continue
        behind = _behind(program, one.outvars[0])
        if behind is None:
            return None
        (x, other), (result,) = _f32_multiplied(program, known, behind), equations[behind].outvars
        if x is None or other != factor or aval_of(result).shape != aval_of(wide).shape:
            return None
        return move._replace(gradient=readers[1 - which], own=reader, behind=behind, last=x)
    return None


def _f32_multiplied(program: Program, known: Callable[[], KnownValues], index: int) -> tuple[Any, float]:
    if aval_of(program.equations[index].outvars[0]).dtype != np.float32:
        return None, 1.0
    return multiplied(program, known(), index)


def _is_wide(program: Program, x: Any) -> bool:
    index = program.made_by.get(x) if isinstance(x, Var) else None
    return index is not None and is_widening(program.equations[index])


def _is_scaled(program: Program, known: Callable[[], KnownValues], x: Any) -> bool:
    index = program.made_by.get(x) if isinstance(x, Var) else None
    if index is None or program.equations[index].primitive.name not in ("mul", "div"):
        return False
    return _is_wide(program, _f32_multiplied(program, known, index)[0])


def _behind(program: Program, variable: Any) -> int | None:
    """The first equation behind a product's result, and its transposes, that alone reads it and is none."""
    while (index := program.only_reader(variable)) is not None:
        equation = program.equations[index]
        if equation.primitive.name not in ("transpose", "reshape"):
            return index
        (variable,) = equation.outvars
    return None


def _moved(program: Program, jaxpr: Jaxpr, moves: dict[int, _Move]) -> tuple[Jaxpr, dict[Any, Any]]:
    if not moves:
        return jaxpr, {}
    equations, scores = list(program.equations), dict[Any, Any]()
    after: dict[int, list[JaxprEqn]] = {}
    for index, (wide, factor, of_scores, gradient, own, behind, last) in moves.items():
        (scaled,) = equations[index].outvars
        product = equations[of_scores]
        (result,) = product.outvars
        plain = Var(aval_of(result))
        equations[of_scores] = product.replace(invars=_with(product, scaled, wide), outvars=[plain])
        after.setdefault(of_scores, []).append(_times(plain, factor, result))
        scores[plain] = scaled
        if gradient is None or own is None or behind is None:
            continue
        (d_scores,) = (x for x in equations[gradient].invars if x is not scaled)
        new = Var(aval_of(d_scores))
        made = program.made_by.get(d_scores, -1)
        after.setdefault(made, []).append(_times(d_scores, factor, new))
        for place in (gradient, own):
            invars = [wide if x is scaled else new if x is d_scores else x for x in equations[place].invars]
            equations[place] = equations[place].replace(invars=invars)
        place = program.made_by[last]
        equations[place] = equations[place].replace(outvars=equations[behind].outvars)
    gone = {*moves} | {move.behind for move in moves.values()}
    eqns = list(after.get(-1, ()))
    for index, equation in enumerate(equations):
        eqns += [*([] if index in gone else [equation]), *after.get(index, ())]
    return jaxpr.replace(eqns=eqns), scores


def _with(equation: Any, old: Any, new: Any) -> list[Any]:
    return [new if x is old else x for x in equation.invars]


def _times(x: Any, factor: float, result: Any) -> JaxprEqn:
    """The equation that multiplies an array by a number."""
    return _equation(lambda x: x * np.float32(factor), x, result)


def _equation(fun: Callable[[Any], Any], x: Any, result: Any) -> JaxprEqn:
    with _compat.lax_itself():
        jaxpr = jax.make_jaxpr(fun)(aval_of(x)).jaxpr  # with the mesh axes that it varies over, as a literal need not
    (equation,) = jaxpr.eqns
    return renamed(equation, {jaxpr.invars[0]: x, jaxpr.outvars[0]: result})


# ------------------------------------------------------------------------------------------------------------- ones


def without_ones(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, in which nothing is multiplied by ones in a dot_general without a sum; the same if nothing was.

    Args:
      jaxpr: a program, without what its calls and loops contain.
    """
    found = [i for i, one in enumerate(jaxpr.eqns) if one.primitive.name == "dot_general" and not _sums(one)]
    if not found:
        return jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    known, equations = KnownValues(program), list(jaxpr.eqns)
    for index in found:
        for side in (0, 1):
            permutation = _permutation(program, known, equations[index], side)
            if permutation is not None:
                x, (result,) = equations[index].invars[1 - side], equations[index].outvars
                fun = functools.partial(lax.transpose_p.bind, permutation=permutation)  # lax.transpose may do nothing
                equations[index] = _equation(fun, x, result)
                break
    return jaxpr.replace(eqns=equations)


def _sums(equation: Any) -> bool:
    contracted, _ = equation.params["dimension_numbers"]
    return any(contracted)


def _permutation(program: Program, known: KnownValues, equation: Any, side: int) -> tuple[int, ...] | None:
    """The dimensions of the other operand in the result's order, if that of a side is ones; else None."""
    ones, x = equation.invars[side], equation.invars[1 - side]
    _, batch = equation.params["dimension_numbers"]
    value = known.of(program.flat.names.get(ones, ones)) if isinstance(ones, Var) else None
    if not isinstance(value, Choice) or value.number != 1 or not isinstance(x, Var):
        return None
    before, after = aval_of(x), aval_of(equation.outvars[0])
    is_same = before.dtype == after.dtype and before.weak_type == after.weak_type
    if not is_same or len(batch[side]) != len(aval_of(ones).shape) or _compat.has_explicit_axes(before):
        return None
    return (*batch[1 - side], *(dim for dim in range(len(before.shape)) if dim not in batch[1 - side]))
