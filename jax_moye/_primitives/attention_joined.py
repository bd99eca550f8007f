"""Gradients of attention that a program joins in one array, as where one product made queries, keys and values.

The derivative of a split is a concatenation, and that of slices a sum of padded arrays: XLA reads the gradients and
writes them side by side. Where that is all that reads them, the equation of the gradients has the array among its
results, and a kernel writes them there. Where none does, the equations are what they were.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jax_moye import _compat
from jax_moye._primitives.attention import AttentionParams, KernelArrays, attention_grad_p
from jax_moye._primitives.attention_call import View, can_be_joined
from jax_moye._primitives.equations import reorders
from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._primitives.rewritten import Original

_JOINED = ("dq", "dk", "dv")
_JOINS = ("concatenate", "stack", "add_any", "add")


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Gradients that are parts of one array.

    Attributes:
      names: of dq, dk and dv, in the order in which `join` takes them.
      views: which parts they are, by name, with the dimensions that they have in the program.
      join: the equations that make the array of them.
    """

    names: tuple[str, ...]
    views: Mapping[str, View]
    join: Original

    @functools.cached_property
    def on_one_device(self) -> Joined:
        """The same of arrays whose types say nothing about a mesh."""
        return dataclasses.replace(self, join=self.join.on_one_device)

    def parts_of_kernel(self, params: AttentionParams, arrays: KernelArrays, dtype: Any) -> dict[str, View] | None:
        """The parts, with the dimensions that a kernel's results have; None where it does not write them so.

        Args:
          params: of the attention.
          arrays: how the kernel reads the others.
          dtype: of all.
        """
        if params.has_bias or params.cap is not None or params.dropout is not None or params.ds_dtype is not None:
            return None
        parts, dims = {}, {}
        for name, view in self.views.items():
            of_program, of_kernel = params.of(name), arrays.labels[name[1:]]
            if sorted(of_program) != sorted(of_kernel):
                return None
            parts[name] = view.transposed([of_program.index(label) for label in of_kernel])
            dims[name] = arrays.dims[name[1:]]
        return parts if can_be_joined(parts, dims, dtype) else None


def with_joined_gradients(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, whose gradients of attention are written where a concatenation puts them.

    Args:
      jaxpr: a program; the jaxprs of its equations stay what they are.
    """
    if not any(one.primitive is attention_grad_p for one in jaxpr.eqns):
        return jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    new: list[JaxprEqn | None] = list(jaxpr.eqns)
    for index, one in reversed(list(enumerate(jaxpr.eqns))):  # of sums the whole one first
        if one.primitive.name in _JOINS and index not in program.taken and (found := _joined_by(program, index)):
            at, new[at], members = found
            program.taken.update((at, *members))
            for member in members:
                new[member] = None
    equations = [one for one in new if one is not None]
    return jaxpr if len(equations) == len(jaxpr.eqns) else jaxpr.replace(eqns=equations)


def _joined_by(program: Program, index: int) -> tuple[int, JaxprEqn, list[int]] | None:
    """The equation of gradients, with the array that an equation joins them in, and where it is, and all in between."""
    join = program.equations[index]
    (array,) = join.outvars
    members = [index]
    found = None if _compat.has_explicit_axes(aval_of(array)) else _parts_of(program, join, members)
    sources = [] if found is None else [_made_of(program, x, view, members) for x, view in found]
    views = {one[1]: one[2] for one in sources if one is not None}
    places = {one[0] for one in sources if one is not None}
    if not 2 <= len(views) == len(sources) or len(places) != 1 or not views.keys() <= {*_JOINED}:
        return None
    if sum(math.prod(view.shape) for view in views.values()) != math.prod(aval_of(array).shape):
        return None
    (at,) = places
    gradients: Any = program.equations[at]
    results = dict(zip(gradients.params["results"], gradients.outvars, strict=True))
    body = [program.equations[member] for member in sorted(members)]
    join_alone = Original(_closed([results[name] for name in views], body, [array]))
    inner: Original = gradients.params["original"]
    whole = inner.jaxpr.jaxpr
    names: dict[Any, Any] = dict(zip(gradients.outvars, whole.outvars, strict=True))
    behind: list[JaxprEqn] = []
    for one in body:
        made: list[Any] = [Var(aval_of(x)) for x in one.outvars]
        invars: list[Any] = [names[x] if isinstance(x, Var) else x for x in one.invars]
        behind.append(one.replace(invars=invars, outvars=made))
        names |= dict(zip(one.outvars, made, strict=True))
    outvars = [*(x for name, x in results.items() if name not in views), array]
    jaxpr = whole.replace(eqns=[*whole.eqns, *behind], outvars=[names[x] for x in outvars], debug_info=_compat.UNNAMED)
    params = {
        **gradients.params,
        "original": Original(ClosedJaxpr(jaxpr, inner.jaxpr.consts)),
        "joined": Joined(tuple(views), views, join_alone),
    }
    return at, gradients.replace(outvars=outvars, params=params), members


def _parts_of(program: Program, join: Any, members: list[int]) -> list[tuple[Any, View]] | None:
    """What an equation joins, and which parts of its result they are; None where it adds something up.

    Args:
      program: of the equation.
      join: it.
      members: the indices of equations that belong to it; there are more behind the call.
    """
    name = join.primitive.name
    source = View.whole(aval_of(join.outvars[0]).shape)
    if name in ("add_any", "add"):
        return _padded_in(program, join, source, members)
    dim, start, found = join.params["axis" if name == "stack" else "dimension"], 0, []
    for x in join.invars:
        size = 1 if name == "stack" else aval_of(x).shape[dim]
        view = _sliced(source, {dim: (start, start + size)})
        dims = [i for i in range(len(view.shape)) if i != dim or name != "stack"]
        found.append((x, view.transposed(dims)))
        start += size
    return found


def _padded_in(program: Program, join: Any, source: View, members: list[int]) -> list[tuple[Any, View]] | None:
    """The arrays that a sum has, each padded with zeros."""
    waiting, found = [(x, source) for x in join.invars], []
    while waiting:
        maker = _maker(program, *waiting.pop(), members)
        if maker is None:
            return None
        index, x, view = maker
        equation: Any = program.equations[index]
        members.append(index)
        if equation.primitive.name == join.primitive.name:
            waiting += [(x, view) for x in equation.invars]
            continue
        if equation.primitive.name != "pad":
            return None
        x, zero = equation.invars
        around = equation.params["padding_config"]
        is_zero = isinstance(zero, Literal) and not np.any(np.asarray(zero.val, np.float32))
        if not is_zero or any(low < 0 or high < 0 or inside for low, high, inside in around):
            return None
        sizes = aval_of(x).shape
        found.append((x, _sliced(view, {i: (low, low + sizes[i]) for i, (low, *_) in enumerate(around)})))
    return found


def _sliced(view: View, of_dims: Mapping[int, tuple[int, int]]) -> View:
    ends = [of_dims.get(dim, (0, size)) for dim, size in enumerate(view.shape)]
    return view.sliced([int(start) for start, _ in ends], [int(limit) for _, limit in ends], [1] * len(ends))


def _made_of(program: Program, x: Any, view: View, members: list[int]) -> tuple[int, str, View] | None:
    """The gradient that moving no element makes a part of an array of.

    Args:
      program: of the array.
      x: the part.
      view: which part.
      members: as of `_parts_of`.

    Returns:
      The index of the equation of gradients, the gradient's name, and which part it is; None where something else makes
      it, or reads it, too.
    """
    maker = _maker(program, x, view, members)
    if maker is None:
        return None
    index, x, view = maker
    equation: Any = program.equations[index]
    if equation.primitive is not attention_grad_p:
        return None
    return index, equation.params["results"][list(equation.outvars).index(x)], view


def _maker(program: Program, x: Any, view: View, members: list[int]) -> tuple[int, Any, View] | None:
    """The equation that makes an array, in front of those that move no element of it.

    Returns:
      Its index, its result, and where the result's elements are; None where somebody else reads one of these, too.
    """
    while True:
        index, equation = program.maker(x)
        if index is None or not _keeps_elements(equation):
            return None if index is None else (index, x, view)
        members.append(index)
        (x,) = equation.invars
        if equation.primitive.name == "transpose":
            view = view.transposed([int(dim) for dim in np.argsort(equation.params["permutation"])])
        elif (before := view.reshaped(aval_of(x).shape)) is not None:
            view = before
        else:
            return None


def _keeps_elements(equation: Any) -> bool:
    """Whether an equation's result has its operand's elements, in another shape or order of dimensions."""
    if equation.primitive.name != "broadcast_in_dim":
        return equation.primitive.name in ("transpose", "reshape", "squeeze", "expand_dims") and not reorders(equation)
    before, after = aval_of(equation.invars[0]), aval_of(equation.outvars[0])
    return math.prod(before.shape) == math.prod(after.shape)


def _closed(invars: Sequence[Any], equations: list[JaxprEqn], outvars: Sequence[Any]) -> ClosedJaxpr:
    return ClosedJaxpr(Jaxpr([], list(invars), list(outvars), equations, debug_info=_compat.UNNAMED), [])
