"""What a kernel of attention is told of masks: a diagonal, and one array of booleans for all others.

What a mask leaves out weighs nothing beside a score that counts, however low it is. A row of which none counts is the
mean of all values where all its scores are one number, and NaN where they are -inf; the kernel has both, as long as
that number is the same for all, and stands in the place of the scores. What is behind a diagonal is part of no mean of
a kernel's. So where it is of the program's, and a row may have no score that counts, attention_kernel.py adds to the
kernel's results what is missing (`means_of_all`). It is none of the program's if all is -inf, or if what is behind the
diagonal is lower than what other masks leave out. Where a mask is added, the scores of such a row have gradients, which
are none of a kernel's, and are added likewise (`is_added`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun

from jax_moye import _compat
from jax_moye._primitives.attention_formulas import Layer
from jax_moye._primitives.attention_masks import All, Mask, Region, Traced, dims_of, names_of, parts_of
from jax_moye._primitives.attention_search import Search
from jax_moye._primitives.attention_softmax import NotAttentionError
from jax_moye._primitives.patterns import Flat, Number


class KernelMask(NamedTuple):
    """What a kernel is told.

    Attributes:
      row: the label of the rows.
      diagonal: the last key that the first of them sees; None where each sees all.
      parts: the masks that are booleans.
      is_infinite: what they leave out is -inf, and a row of nothing else is NaN; else it is low, and such a row a mean.
      means_of_all: of all values, also of those behind the diagonal.
      clearing: the masks behind which a gradient of scores is 0 whatever the shares are, if a row may have no score
        that counts; None where each has one.
      is_added: all masks are added to the scores: the gradients of these are as of any others.
    """

    row: str
    diagonal: int | None
    parts: tuple[Region, ...] = ()
    is_infinite: bool = False
    means_of_all: bool = False
    clearing: frozenset[Region] | None = None
    is_added: bool = False

    def scores_have_gradients(self, cleared: Mapping[str, frozenset[Region]]) -> bool:
        """Whether those of a row of which no score counts have gradients.

        Args:
          cleared: by the name of a result, the masks that made what is multiplied 0 where they leave a score out.

        Raises:
          NotAttentionError: what a result is in such rows no kernel computes.
        """
        if self.clearing is None:
            return False
        of_scores = [of for name, of in cleared.items() if name in ("dq", "dk", "ds")]
        if any(of for name, of in cleared.items() if name not in ("dq", "dk", "ds")):
            raise NotAttentionError("a row all of whose scores are masked is 0 behind its mask, and none of a kernel's")
        if all(self.clearing <= of for of in of_scores):
            return False
        if self.is_added and not any(of_scores):
            return True
        raise NotAttentionError("a row all of whose scores are masked has a derivative, and none of a kernel's")


def kernel_mask(search: Search) -> KernelMask:
    """What a kernel is told of the masks of scores.

    Args:
      search: that found them.

    Raises:
      NotAttentionError: they are of other scores, too, or a row of which none counts is no kernel's.
    """
    assert search.softmax.scores is not None
    layers, sizes = search.softmax.scores.layers, search.sizes
    parts = parts_of(*(layer.mask for layer in layers))
    # Where nothing tells rows from heads, the more the better: a kernel shares the keys among them.
    row = max(search.rows, key=lambda label: sizes[label], default=".")
    if any(not dims_of(part) <= {*search.batch, *search.rows, "k"} for part in parts):
        raise NotAttentionError("a mask is of other scores, too")
    of_diagonals = {part: one for part in parts if (one := _row_of(part, search.rows)) is not None}
    diagonal: Any = min(of_diagonals, key=operator.attrgetter("offset"), default=None)
    row = of_diagonals.get(diagonal, row)
    offset = None if diagonal is None else diagonal.offset
    others = tuple(part for part in parts if of_diagonals.get(part) != row)
    is_infinite = all(layer.fill == -math.inf for layer in layers)
    # Scores beside those of the keys always count.
    if search.joined is not None or _has_all_rows(parts, sizes):
        # A bias may make all scores that are let through as low as a kernel's low number.
        return KernelMask(
            row, offset, others, is_infinite=is_infinite and bool(others and search.softmax.scores.biases)
        )
    if is_infinite:
        all_added = all(layer.is_added for layer in layers)
        return KernelMask(row, offset, others, is_infinite=True, clearing=frozenset(others), is_added=all_added)
    inner = _without_outer(layers, diagonal)
    is_added = any(layer.is_added for layer in inner)
    is_one = len(inner) == 1 if is_added else len({layer.fill for layer in inner}) == 1
    if not is_one or not all(layer.hides for layer in inner):
        raise NotAttentionError("a row all of whose scores are masked has no one number in their place")
    of_inner = frozenset(parts_of(*(layer.mask for layer in inner)))
    # Of what is behind the outermost ones no mean is made, but of what is behind the same diagonal in the others.
    means_of_all = offset is not None and diagonal in of_inner and len(inner) == len(layers)
    is_all_added = is_added and len(inner) == len(layers)
    return KernelMask(row, offset, others, means_of_all=means_of_all, clearing=of_inner, is_added=is_all_added)


def without_means_of_all(search: Search, told: KernelMask) -> KernelMask:
    """The same masks, the diagonal among the booleans where a row of which no score counts is a mean of all values.

    Args:
      search: that found them.
      told: what a kernel would be told.
    """
    if not told.means_of_all or search.softmax.scores is None:
        return told
    parts = parts_of(*(layer.mask for layer in search.softmax.scores.layers))
    return told._replace(diagonal=None, parts=parts, means_of_all=False)


def _row_of(part: Region, rows: Sequence[str]) -> str | None:
    """The label of the rows of a diagonal that a kernel computes, "." of one row; None of others."""
    if not isinstance(part, Mask) or not part.is_causal:
        return None
    factors = {dim: factor for dim, factor in part.factors if dim != "k"}
    if not factors:
        return None if rows else "."
    ((row, factor),) = factors.items() if len(factors) == 1 else (("", 0),)
    return row if factor == 1 and row in rows else None


def _has_all_rows(parts: Sequence[Region], sizes: Mapping[str, int]) -> bool:
    """Whether masks are known to let something of each row through: of its keys those from `first` to `last`."""
    first: Any = 0
    last: Any = sizes["k"] - 1
    dims = sorted(frozenset().union(*map(dims_of, parts)) - {"k"})
    for part in parts:
        if not isinstance(part, Mask):
            return False
        factors = dict(part.factors)
        of_keys = factors.pop("k", 0)
        total = _sum_of_indices(factors, part.offset, dims, sizes, np)
        if of_keys < 0:
            last = np.minimum(last, total // -of_keys)
        elif of_keys > 0:
            first = np.maximum(first, -(total // of_keys))
        else:
            last = np.where(total >= 0, last, -1)
    return bool(np.all(first <= last))


def _without_outer(layers: Sequence[Layer], diagonal: Mask | None) -> Sequence[Layer]:
    """Without the outermost masks that are a diagonal, if what these leave out has no weight beside the others'."""
    inner = list(layers)
    while len(inner) > 1 and inner[-1].mask == diagonal and inner[-1].fill <= 2 * min(x.fill for x in inner[:-1]):
        inner.pop()
    return inner


# ------------------------------------------------------------------------------------------------- the array of them


def _sum_of_indices(factors: Mapping[str, int], offset: int, dims: Sequence[str], sizes: Any, xp: Any) -> Any:
    """An array of an offset and factors times indices; of size 1 along dimensions without a factor.

    Args:
      factors: by label.
      offset: an integer.
      dims: the labels of the array's dimensions.
      sizes: by label.
      xp: NumPy, or JAX's.
    """
    total: Any = xp.full([1] * len(dims), offset, dtype=np.int32)
    for dim, factor in factors.items():
        shape = [sizes[dim] if one == dim else 1 for one in dims]
        total = total + factor * xp.arange(sizes[dim], dtype=np.int32).reshape(shape)
    return total


def _array(region: Region, dims: Sequence[str], sizes: Mapping[str, int], value: Callable[[Any], Any]) -> Any:
    """The booleans of a region, which have dimensions of size 1 where they are the same for all.

    Args:
      region: of scores.
      dims: the labels of the array's dimensions.
      sizes: by label.
      value: of a boolean of the program, by its name.
    """
    if isinstance(region, All):
        arrays = (_array(part, dims, sizes, value) for part in region.parts)
        both = functools.reduce(jnp.logical_and, arrays)
        return jnp.logical_not(both) if region.is_reverse else both
    if isinstance(region, Traced):
        x = value(region.name)
        own = [dim for dim in region.dims if dim is not None]
        x = x.reshape([size for size, dim in zip(x.shape, region.dims, strict=True) if dim is not None])
        x = x.transpose([own.index(dim) for dim in dims if dim in own])
        x = x.reshape([sizes[dim] if dim in own else 1 for dim in dims])
        return jnp.logical_not(x) if region.is_reverse else x
    return _sum_of_indices(dict(sorted(region.factors)), region.offset, dims, sizes, jnp) >= 0


class MadeOperand(NamedTuple):
    """The operand of a kernel, and what it is made of.

    Attributes:
      labels: of its dimensions.
      variables: of the program, which it is made of.
      made: the function of them that makes it; None where it is the first of them.
    """

    labels: tuple[str, ...]
    variables: tuple[Any, ...]
    made: Callable[..., Any] | None


def mask_operand(flat: Flat, parts: Sequence[Region], search: Search) -> MadeOperand:
    """The array of masks' common booleans.

    Args:
      flat: the program where they stand.
      parts: one or more.
      search: that found them.
    """
    names = [name for part in parts for name in names_of(part)]
    variables = tuple(dict.fromkeys(x for name in names for x in _variables(flat, name)))
    (first, *others) = parts
    if not others and isinstance(first, Traced) and not first.is_reverse and isinstance(first.name, Var):
        return MadeOperand(tuple("." if dim is None else dim for dim in first.dims), variables, None)
    found = frozenset().union(*map(dims_of, parts))
    dims = tuple(dim for dim in (*search.batch, *search.rows, "k") if dim in found)

    def made(*values: Any) -> Any:
        known = dict(zip(variables, values, strict=True))
        value = functools.partial(_value, flat, known)
        array = _array(All(tuple(parts)) if others else first, dims, search.sizes, value)
        return lax.broadcast_in_dim(array, [search.sizes[dim] for dim in dims], range(len(dims)))

    return MadeOperand(dims, variables, made)


def _variables(flat: Flat, name: Any) -> list[Any]:
    """The variables of the program that a value is made of: itself, if it is one."""
    if isinstance(name, Number):
        return []
    if isinstance(name, Var):
        return [name]
    return [x for given in flat.made_by[name].inputs for x in _variables(flat, given)]


def _value(flat: Flat, known: dict[Any, Any], name: Any) -> Any:
    """A value of a call, by the equations of the call."""
    if name not in known:
        step = flat.made_by[name]
        avals = [x.aval for x in step.equation.invars]
        given = [
            jnp.full(aval.shape, x.value, aval.dtype) if isinstance(x, Number) else _value(flat, known, x)
            for x, aval in zip(step.inputs, avals, strict=True)
        ]
        inputs = [Var(aval) for aval in avals]
        equation = step.equation.replace(invars=inputs)
        jaxpr = Jaxpr([], inputs, equation.outvars, [equation], debug_info=_compat.UNNAMED)
        known |= dict(zip(step.outputs, jaxpr_as_fun(ClosedJaxpr(jaxpr, []))(*given), strict=True))
    return known[name]
