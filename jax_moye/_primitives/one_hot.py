"""A scatter of one number into each row of zeros, as the derivative of a loss by labels has it, becomes a choice.

`jnp.take_along_axis(logits, labels[..., None], -1)`, `logits[jnp.arange(rows), labels]` and `vmap` of `logits[label]`
read one element of each row. Their derivative is a scatter-add into zeros of the size of the logits. XLA writes these
zeros to memory, and reads them again for whatever is made of them. A choice by an iota,

    select(iota == labels, updates, 0)

has the same elements, and XLA makes each of them where it is read. An index that is outside is equal to no iota, and
what a scatter does with it depends on its mode: one that clips has clipped it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.equations import reorders
from jax_moye._primitives.indices import fits, scatter_dimensions
from jax_moye._primitives.known_constants import renamed
from jax_moye._primitives.patterns import Number, Program, Step, aval_of

_MOST_STEPS = 24  # between indices and the iota that they are
_MOVES = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type")
_INDEX_BYTES = 4  # at least, of what an iota counts in


def with_choices(jaxpr: Jaxpr) -> Jaxpr:
    """The same program without scatters of one number into each row of zeros; the same object if there are none.

    Args:
      jaxpr: a program; the jaxprs of its equations stay what they are.
    """
    if not any(equation.primitive.name == "scatter-add" for equation in jaxpr.eqns):
        return jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    new = [one for equation in jaxpr.eqns for one in _chosen(program, equation) or [equation]]
    if len(new) == len(jaxpr.eqns) and all(one is other for one, other in zip(new, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=new)


def _chosen(program: Program, equation: JaxprEqn) -> list[JaxprEqn]:
    """The equations that compute what a scatter does; none where it is another equation, or has to stay one."""
    if equation.primitive.name != "scatter-add" or not all(isinstance(x, Var) for x in equation.invars):
        return []
    zeros, indices, updates = equation.invars
    (result,) = equation.outvars
    if any(_compat.has_explicit_axes(aval_of(x)) for x in (result, indices, updates)) or not _is_zero(program, zeros):
        return []
    rows = _rows(program, equation)
    if rows is None:
        return []
    shape, dtype = aval_of(result).shape, aval_of(result).dtype
    (along,) = (dim for dim in range(len(shape)) if dim not in rows)
    column = list(scatter_dimensions(equation)[2]).index(along)
    clips = equation.params["mode"] == lax.GatherScatterMode.CLIP

    def of_rows(x: Any) -> Any:  # (rows..., in the order of the indices' dimensions) -> shape
        sizes = aval_of(indices).shape
        by_index = sorted(rows, key=rows.__getitem__)
        x = lax.reshape(x, [sizes[rows[dim]] for dim in by_index])
        x = lax.transpose(x, [by_index.index(dim) for dim in sorted(rows)])
        return lax.broadcast_in_dim(x, shape, sorted(rows))

    def choice(indices: Any, updates: Any) -> Any:
        at = lax.index_in_dim(indices, column, indices.ndim - 1, keepdims=False)
        at = at if at.dtype.itemsize >= _INDEX_BYTES else at.astype(np.int32)
        at = lax.clamp(np.zeros((), at.dtype), at, np.asarray(shape[along] - 1, at.dtype)) if clips else at
        is_there = lax.eq(lax.broadcasted_iota(at.dtype, shape, along), of_rows(at))
        return lax.select(is_there, of_rows(updates), lax.full(shape, 0, dtype))

    with _compat.lax_itself():
        body = _compat.jaxpr_of(choice, [aval_of(indices), aval_of(updates)])
    names = dict(zip(body.invars, (indices, updates), strict=True)) | {body.outvars[0]: result}
    return [renamed(one, names).replace(source_info=equation.source_info) for one in body.eqns]


def _is_zero(program: Program, variable: Any) -> bool:
    name = program.flat.names.get(variable, variable)
    return isinstance(name, Number) and not np.any(name.value)


def _rows(program: Program, equation: JaxprEqn) -> dict[int, int] | None:
    """By dimension of the result but for one, the dimension of the indices that counts it.

    None where the scatter does not give each row along the remaining dimension one number.
    """
    window, inserted, of_columns, batching, of_batching = map(list, scatter_dimensions(equation))
    zeros, indices, updates = map(aval_of, equation.invars)
    shape, sizes = zeros.shape, indices.shape
    dims = [dim for dim in range(len(shape)) if dim not in (*inserted, *batching)]  # of the updates' windows
    if any(not isinstance(size, int) for size in (*shape, *sizes)) or len(sizes) == 0:
        return None
    if any(updates.shape[at] != 1 for at in window) or len(window) != len(dims):
        return None
    rows = dict(zip(batching, of_batching, strict=True))
    others = []
    for column, dim in enumerate(of_columns):
        counted = _counted(program, equation.invars[1], column)
        if counted is None or counted in rows.values():
            others.append(dim)
        else:
            rows[dim] = counted
    if len(others) != 1 or len(rows) != len(shape) - 1 or any(shape[dim] != sizes[at] for dim, at in rows.items()):
        return None
    is_one = all(size == 1 for at, size in enumerate(sizes[:-1]) if at not in rows.values())
    return rows if is_one and shape[others[0]] > 1 else None


def _counted(program: Program, indices: Any, column: int) -> int | None:
    """The dimension that a column of indices is the number along; None where it is none, or nobody knows."""
    flat = program.flat
    step = flat.made_by.get(flat.names.get(indices, indices))
    if step is None or step.equation.primitive.name != "concatenate":
        return None
    if step.equation.params["dimension"] != aval_of(indices).ndim - 1:
        return None
    for x, name in zip(step.equation.invars, step.inputs, strict=True):
        width = aval_of(x).shape[-1]
        if column < width:
            return _iota_dim(program, name) if width == 1 else None
        column -= width
    return None


def _iota_dim(program: Program, name: Any) -> int | None:
    """The dimension that an array is an iota along, through what JAX makes of indices; None where it is none."""
    path: list[Step] = []
    for _ in range(_MOST_STEPS):
        step = None if isinstance(name, Number) else program.flat.made_by.get(name)
        if step is None:
            return None
        path.append(step)
        primitive = step.equation.primitive.name
        if primitive == "iota":
            iota = aval_of(step.equation.outvars[0])
            if not fits((0, iota.shape[step.equation.params["dimension"]] - 1), iota.dtype):
                return None  # it begins again, or rounds
            break
        if primitive in _MOVES and not reorders(step.equation):
            name = step.inputs[0]
        elif primitive == "select_n" and _is_below_zero(program, step.inputs[0], step.inputs[1]):
            name = step.inputs[1]  # no iota is
        else:
            return None
    else:
        return None
    dim: int | None = path[-1].equation.params["dimension"]
    for step in reversed(path[:-1]):
        dim = None if dim is None else _moved(step.equation, dim)
    return dim


def _is_below_zero(program: Program, mask: Any, name: Any) -> bool:
    step = None if isinstance(mask, Number) else program.flat.made_by.get(mask)
    if step is None or step.equation.primitive.name != "lt" or step.inputs[0] is not name:
        return False
    return isinstance(step.inputs[1], Number) and not np.any(step.inputs[1].value > 0)


def _moved(equation: Any, dim: int) -> int | None:
    """Where a dimension of the operand is in the result, with its size; None where it is not there."""
    before, after = aval_of(equation.invars[0]), aval_of(equation.outvars[0])
    name = equation.primitive.name
    if name == "convert_element_type":
        is_whole = np.issubdtype(after.dtype, np.integer) and after.dtype.itemsize >= _INDEX_BYTES
        return dim if is_whole else None
    if name == "broadcast_in_dim":
        to = int(equation.params["broadcast_dimensions"][dim])
        return to if after.shape[to] == before.shape[dim] else None
    return _same_dim(before.shape, after.shape, dim)


def _same_dim(before: Sequence[int], after: Sequence[int], dim: int) -> int | None:
    """Of a reshape that adds or removes dimensions of size 1."""
    kept = [at for at, size in enumerate(before) if size != 1]
    new = [at for at, size in enumerate(after) if size != 1]
    if [before[at] for at in kept] != [after[at] for at in new] or dim not in kept:
        return None
    return new[kept.index(dim)]
