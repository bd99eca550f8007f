"""Attention whose values have a smaller head_dim than its keys, as DeepSeek's: the values are padded with zeros.

    v                 pad          attention    slice      o
    (..., dim of v)   ---> (..., dim of k) ---> (..., dim of k) ---> (..., dim of v)

So are the cotangent of the result, and the gradient of the values is cut off like the result. Zeros add nothing to a
sum. The equations as they were begin with slices of what is padded, and end with pads: XLA, where it computes them,
undoes both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.attention import AttentionParams, attention_grad_p
from jax_moye._primitives.patterns import aval_of
from jax_moye._primitives.rewritten import Original

AsEquations = Callable[[Callable[..., Any], Sequence[Any], JaxprEqn], tuple[list[JaxprEqn], list[Any]]]


def with_values_padded(
    equation: JaxprEqn, params: AttentionParams, size: int, as_equations: AsEquations
) -> list[JaxprEqn]:
    """An equation of attention_p or attention_grad_p of padded values, with what stands around it.

    Args:
      equation: of values as they are.
      params: of the attention.
      size: the head_dim of the keys.
      as_equations: the equations of a function of variables, and its results, like an equation.
    """
    is_grad = equation.primitive is attention_grad_p
    given = {2: params.of("v").index("d")} | ({3: params.of("d_o").index("d")} if is_grad else {})
    of_o = params.of("o").index("d")
    results = equation.params["results"]
    made = {i: params.of("dv").index("d") for i, name in enumerate(results) if name == "dv"} if is_grad else {0: of_o}
    made |= {2: of_o} if not is_grad and params.has_rest else {}
    (own,) = {aval_of(equation.invars[i]).shape[axis] for i, axis in given.items()}

    invars, outvars, before, behind = list(equation.invars), list(equation.outvars), [], []
    for i, axis in given.items():
        equations, (invars[i],) = as_equations(functools.partial(resized, axis=axis, size=size), [invars[i]], equation)
        before += equations
    for i, axis in made.items():
        out, shape = outvars[i], list(aval_of(outvars[i]).shape)
        shape[axis] = size
        outvars[i] = Var(aval_of(out).update(shape=tuple(shape)))
        equations, _ = as_equations(functools.partial(resized, axis=axis, size=own), [outvars[i]], equation)
        behind += [*equations[:-1], equations[-1].replace(outvars=[out])]
    together = equation.params["together"]
    if together is not None:
        has_o = len(together.equations.jaxpr.out_avals) > len(params.gradients)
        names = [*["o"] * has_o, *params.gradients]
        of_all = {i: params.of(name).index("d") for i, name in enumerate(names) if name in ("o", "dv")}
        in_all = {2: params.of("v").index("d")}
        in_all |= {} if together.d_o is None else {3: params.of("d_o").index("d")}
        whole = of_padded(together.equations, in_all, of_all, own, size)
        of_d_o = None if together.d_o is None else whole.jaxpr.in_avals[3]
        together = type(together).of(whole, of_d_o, None)._replace(value_dim=own, behind=together.behind)
    original = of_padded(equation.params["original"], given, made, own, size)
    params_of = {**equation.params, "original": original, "together": together}
    return [*before, equation.replace(invars=invars, outvars=outvars, params=params_of), *behind]


def resized(x: Any, axis: int, size: int) -> Any:
    """An array with zeros behind it, or without its end.

    Args:
      x: the array.
      axis: the dimension.
      size: that it gets.
    """
    if size < x.shape[axis]:
        return lax.slice_in_dim(x, 0, size, axis=axis)
    more = [(0, size - x.shape[i] if i == axis else 0, 0) for i in range(x.ndim)]
    return lax.pad(x, x.dtype.type(0), more)


def with_zeros(operands: Sequence[Any], params: AttentionParams, own: int | None) -> list[Any]:
    """Arrays of any numbers as those that a program pads.

    Args:
      operands: q, k, v and perhaps others, d_o the first of these where there are gradients.
      params: of the attention.
      own: the head_dim of the values without zeros; None: they have none.
    """
    found = list(operands)
    for i, name in enumerate(["v", *["d_o"] * bool(params.gradients)] if own is not None else [], 2):
        axis = params.of(name).index("d")
        found[i] = resized(resized(found[i], axis, own or 0), axis, found[i].shape[axis])
    return found


def of_padded(original: Original, given: Mapping[int, int], made: Mapping[int, int], own: int, size: int) -> Original:
    """Equations, of arrays that are padded, whose results are, too.

    Args:
      original: the equations.
      given: by index of an operand that is padded, its dimension.
      made: by index of a result, likewise.
      own: the size of the dimension before.
      size: and behind it.
    """
    avals = list(original.jaxpr.in_avals)
    for i, axis in given.items():
        shape = list(avals[i].shape)
        shape[axis] = size
        avals[i] = avals[i].update(shape=tuple(shape))

    def padded(*values: Any) -> list[Any]:
        parts = [resized(x, given[i], own) if i in given else x for i, x in enumerate(values)]
        return [resized(x, made[i], size) if i in made else x for i, x in enumerate(original(*parts))]

    with _compat.lax_itself():
        return Original(ClosedJaxpr(_compat.jaxpr_of(padded, avals), []))
