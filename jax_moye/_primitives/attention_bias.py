"""Arrays that a program adds to the scores of attention, and that are no masks: where they are in memory, as small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Var

from jax_moye._primitives.attention_formulas import Added, Bias, Choice
from jax_moye._primitives.attention_known import axes_of
from jax_moye._primitives.attention_labels import Labels
from jax_moye._primitives.attention_softmax import is_mild
from jax_moye._primitives.patterns import Number, Program

_AS_IT_IS = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose")
_SUMS = ("add", "add_any")


def variable_of(program: Program, name: Any) -> Any:
    """The variable of a program that has a name in `Program.flat`; None where only a call has it.

    Args:
      program: where it stands.
      name: of a value.
    """
    if isinstance(name, Var):
        return name
    return next((x for x in program.made_by if program.flat.names.get(x) is name), None)


def added(
    program: Program, name: Any, aval: Any, labels: Labels, dtype: Any, known: Callable[[Any, Labels], Any]
) -> Added | Choice | None:
    """What is added to scores, in front of the broadcasts that make it as large; None where no kernel reads it.

    Args:
      program: where it stands.
      name: of the array that is added.
      aval: its type.
      labels: of the scores' dimensions, which it has, or 1 in their place.
      dtype: of queries and keys.
      known: what is known of a value with labels; None where that is nothing.
    """
    if len(aval.shape) != len(labels):  # one number for all scores
        return None
    found: Bias | None = None
    labels = _where_it_has_several(labels, aval)
    while not isinstance(name, Number):
        is_mask = known(name, labels)
        if is_mask is not None and not is_mild(is_mask, aval.dtype):
            return is_mask if isinstance(is_mask, Choice) else None
        variable = variable_of(program, name)
        if variable is not None:
            is_read = variable.aval.dtype in (dtype, jnp.float32) and all(len(x) == 1 and x != "*" for x in labels)
            found = Bias(variable, labels) if is_read else found
        step = program.flat.made_by.get(name)
        if step is None:
            break
        kind = step.equation.primitive.name
        if kind in _SUMS:
            avals = [x.aval for x in step.equation.invars]
            both = [added(program, x, aval, labels, dtype, known) for x, aval in zip(step.inputs, avals, strict=True)]
            masks = tuple(x for x in both if isinstance(x, Choice))
            of_bias = [x for x in both if isinstance(x, Added)]
            if len(of_bias) == 1 and len(masks) == 1:
                return of_bias[0]._replace(masks=of_bias[0].masks + masks)
            break
        axes = axes_of(step.equation) if kind in _AS_IT_IS else None
        if axes is not None:
            new = ["*"] * len(step.equation.invars[0].aval.shape)
            for label, axis in zip(labels, axes, strict=True):
                if isinstance(axis, int):
                    new[axis] = label
            new = list(_where_it_has_several(tuple(new), step.equation.invars[0].aval))
            if kind == "transpose" and [x for x in new if x != "."] != [x for x in labels if x != "."]:
                break  # XLA writes it once for all that read it
            labels = tuple(new)
        elif kind != "convert_element_type" or not _widens(step.equation, dtype):
            break
        name = step.inputs[0]
    return None if found is None else Added(found)


def _where_it_has_several(labels: Labels, aval: Any) -> Labels:
    """The labels of dimensions of more than one index."""
    return tuple("." if size == 1 else label for label, size in zip(labels, aval.shape, strict=True))


def _widens(equation: Any, dtype: Any) -> bool:
    """Whether a conversion is of what a kernel reads, and rounds nothing."""
    return equation.invars[0].aval.dtype == dtype and equation.outvars[0].aval.dtype == jnp.float32
