"""Attention whose keys and values a program repeats for the queries that share them: a kernel reads them once.

    k (b, s, n, d)   repeat    k (b, s, n g, d)               as it was
    q (b, t, n g, d) reshape   q (b, t, n, g, d)              queries in groups, and k in front of the repeat

So it is in a forward pass alone, as in decoding, where keys and values are most of what is read. Gradients are those of
repeated keys, which the program rounds before it adds them up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.attention import AttentionParams, arrays_of, moved
from jax_moye._primitives.equations import reorders
from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._primitives.rewritten import Original
from jax_moye._primitives.transposes import operands_of

AsEquations = Callable[[Callable[..., Any], Sequence[Any], JaxprEqn], tuple[list[JaxprEqn], list[Any]]]


class Repeated(NamedTuple):
    """An array each of whose matrices is there several times, one behind the other.

    Attributes:
      variable: what is repeated.
      shape: of it, with the dimensions of what is made of it.
      permutation: of what is made of that; None: the dimensions are in order.
      axis: the dimension, of what is made.
      times: how many there are.
    """

    variable: Any
    shape: tuple[int, ...]
    permutation: tuple[int, ...] | None
    axis: int
    times: int

    def once(self, x: Any) -> Any:
        """The array that is repeated, its dimensions as those of the operand."""
        x = x.reshape(self.shape)
        return x if self.permutation is None else lax.transpose(x, self.permutation)


def with_keys_once(
    program: Program,
    equation: JaxprEqn,
    in_front: Callable[[Program, Any], tuple[Any, tuple[int, ...] | None]],
    as_equations: AsEquations,
) -> list[JaxprEqn]:
    """An equation of attention_p that reads keys and values in front of repeats, with what stands around it.

    Args:
      program: where it is to stand.
      equation: of a forward pass alone.
      in_front: the array in front of the transposes that make a variable, and these in one.
      as_equations: the equations of a function of variables, and its results, like an equation.

    Returns:
      The equation alone, where keys and values are not repeated, or no kernel reads them so.
    """
    params: AttentionParams = equation.params["attention"]
    k, v = (_repeated(program, *in_front(program, x)) for x in equation.invars[1:3])
    if params.has_bias or params.dropout is not None or "g" in params.of("q"):
        return [equation]
    if k is None or v is None or k.times != v.times:
        return [equation]
    label, count = params.of("k")[k.axis], k.times
    is_head = label.isupper() and label == params.of("v")[v.axis] and label in params.of("q")
    if not is_head or (params.has_mask and label in params.of("mask")):
        return [equation]
    of_q, of_o = (params.of(name).index(label) for name in "qo")
    labels = tuple((name, x.replace(label, label + "g") if name in "qo" else x) for name, x in params.labels)
    grouped = dataclasses.replace(params, labels=labels)
    q, o, lse = map(aval_of, (equation.invars[0], *equation.outvars))
    shape_q, shape_o = _split(q.shape, of_q, count), _split(o.shape, of_o, count)
    rows = params.of("lse")

    def grouped_rows(x: Any) -> Any:
        split = x.reshape(_split(x.shape, rows.index(label), count))
        return moved(split, rows.replace(label, label + "g"), grouped.of("lse"))

    before, given = as_equations(
        lambda q, k_, v_: (q.reshape(shape_q), k.once(k_), v.once(v_)),
        [equation.invars[0], k.variable, v.variable],
        equation,
    )
    if arrays_of(grouped, operands_of(list(map(aval_of, given[:2])), (None, None))) is None:
        return [equation]

    def of_groups(original: Original) -> Original:
        def fun(q_: Any, k_: Any, v_: Any, *others: Any) -> list[Any]:
            repeated = (jnp.repeat(x, count, axis=one.axis) for x, one in ((k_, k), (v_, v)))
            first, *rows_of = original(q_.reshape(q.shape), *repeated, *others)
            return [first.reshape(shape_o), *map(grouped_rows, rows_of)]

        avals = [*map(aval_of, given), *original.jaxpr.in_avals[3:]]
        with _compat.lax_itself():
            return Original(ClosedJaxpr(_compat.jaxpr_of(fun, avals), []))

    original, together = of_groups(equation.params["original"]), equation.params["together"]
    together = together and type(together).of(of_groups(together.equations), None, None)
    of_lse: Any = original.jaxpr.out_avals[1]
    outvars = [Var(o.update(shape=shape_o)), Var(lse.update(shape=of_lse.shape))]
    behind, _ = as_equations(lambda x: x.reshape(o.shape), outvars[:1], equation)
    behind = [*behind[:-1], behind[-1].replace(outvars=equation.outvars[:1])]
    of_params = {**equation.params, "attention": grouped, "original": original, "together": together}
    new = equation.replace(invars=[*given, *equation.invars[3:]], outvars=outvars, params=of_params)
    return [*before, new, *behind]


def _split(shape: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    """A shape with a dimension as two, the inner one of a size."""
    return (*shape[:axis], shape[axis] // count, count, *shape[axis + 1 :])


def _repeated(program: Program, variable: Any, permutation: tuple[int, ...] | None) -> Repeated | None:
    """What `jnp.repeat`, or a broadcast and a reshape, makes an array of; None where it is made otherwise.

    Args:
      program: where it stands.
      variable: the array.
      permutation: of the transpose behind it; None where there is none.
    """
    made = _made_by(program, variable, "reshape")
    wide: Any = None if made is None else made.invars[0]
    broadcast = None if wide is None else _made_by(program, wide, "broadcast_in_dim")
    if made is None or broadcast is None or len(broadcast.invars) != 1 or reorders(made):
        return None
    shape, split = tuple(variable.aval.shape), tuple(wide.aval.shape)
    for axis, count in enumerate(split[1:]):
        (given,), dims = broadcast.invars, broadcast.params["broadcast_dimensions"]
        once = (*split[: axis + 1], *split[axis + 2 :])
        others = [dim for dim in range(len(split)) if dim != axis + 1]
        if count == 1 or shape != (*split[:axis], split[axis] * count, *split[axis + 2 :]):
            continue
        given_shape = tuple(aval_of(given).shape)
        is_new = given_shape == once and list(dims) == others
        if is_new or (len(dims) == len(split) and given_shape == (*split[: axis + 1], 1, *split[axis + 2 :])):
            behind = axis if permutation is None else permutation.index(axis)
            return Repeated(given, once, permutation, behind, count)
    return None


def _made_by(program: Program, variable: Any, name: str) -> JaxprEqn | None:
    index = program.made_by.get(variable) if isinstance(variable, Var) else None
    equation = None if index is None else program.equations[index]
    return equation if equation is not None and equation.primitive.name == name else None
