"""What is known of a program's values while it is traced: masks, indices and numbers; and which values are read.

A boolean of which nothing is known is a mask, too, by its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Var

from jax_moye._primitives.attention_formulas import Affine, Choice, Known, computed, renamed, simplified
from jax_moye._primitives.attention_masks import Traced
from jax_moye._primitives.equations import reorders
from jax_moye._primitives.indices import Bounds, fits
from jax_moye._primitives.patterns import Number, Program, Step

_RESHAPES = ("reshape", "squeeze", "expand_dims")


class KnownValues:
    """What is known of a program's values while it is traced, and which of them are read."""

    def __init__(self, program: Program) -> None:
        """Looks at all of them once."""
        flat = self._flat = program.flat
        self._values: dict[Any, Known] = {}
        for step in flat.steps:
            value = self._of_step(step)
            if value is not None:
                self._values[step.outputs[0]] = value
        last = len(program.equations)
        results = (flat.names.get(x, x) for x, readers in program.readers.items() if last in readers)
        live = {x for x in results if not isinstance(x, Number)}
        self.live: set[int] = set()  # ids of the steps that make something that is read
        self.order: dict[int, int] = {}
        for i, step in reversed(list(enumerate(flat.steps))):
            self.order[id(step)] = i
            if step.equation.effects or any(x in live for x in step.outputs):
                self.live.add(id(step))
                live.update(x for x in step.inputs if not isinstance(x, Number))

    def of(self, name: Any) -> Known | None:
        """What a value is; None where that is not known."""
        if isinstance(name, Number):
            return Choice.of(name.value[()]) if name.value.ndim == 0 else None
        found = self._values.get(name)
        return _as_mask(name, name.aval) if found is None and isinstance(name, Var) else found

    def _of_step(self, step: Step) -> Known | None:
        """What an equation makes."""
        if len(step.outputs) != 1:
            return None
        (out,) = (x.aval for x in step.equation.outvars)
        if not _is_array(out):
            return None
        found = self._computed(step, out)
        if isinstance(found, Affine) and not fits(_bounds(found, out.shape), out.dtype):
            return None
        return _as_mask(step.outputs[0], out) if found is None else found

    def _computed(self, step: Step, out: Any) -> Known | None:
        equation, name = step.equation, step.equation.primitive.name
        if name == "iota":
            dim = equation.params["dimension"]
            is_integer = np.issubdtype(out.dtype, np.integer)
            return Affine(frozenset({(dim, 1)} if out.shape[dim] > 1 else ()), 0) if is_integer else None
        inputs = [self.of(x) for x in step.inputs]
        if not inputs or any(x is None for x in inputs):
            return None
        axes = axes_of(equation)
        if axes is not None:
            (given,) = inputs
            new = {axis: i for i, axis in enumerate(axes) if isinstance(axis, int)}
            return renamed(given, new.get)  # type: ignore[arg-type]
        if name == "slice" and isinstance(inputs[0], Choice) and inputs[0].mask is None:  # of one number everywhere
            return inputs[0]
        value = given = inputs[0] if name in ("stop_gradient", "copy", "copy_p") else None
        if given is None:
            value = computed(name, inputs, equation.params, out.dtype)  # type: ignore[arg-type]
        return None if value is None else simplified(value, dict(enumerate(out.shape)))


def _is_array(aval: Any) -> bool:
    """Of fixed sizes, and no key of random numbers."""
    shape = getattr(aval, "shape", ())
    return isinstance(getattr(aval, "dtype", None), np.dtype) and all(isinstance(size, int) for size in shape)


def _bounds(indices: Affine, shape: tuple[int, ...]) -> Bounds:
    ends = [factor * (shape[dim] - 1) for dim, factor in indices.factors]
    return indices.offset + sum(min(0, end) for end in ends), indices.offset + sum(max(0, end) for end in ends)


def _as_mask(name: Any, aval: Any) -> Choice | None:
    """An array of booleans, or one of them, of which no more is known."""
    if not _is_array(aval) or aval.dtype != np.bool_:
        return None
    dims = tuple(None if size == 1 else axis for axis, size in enumerate(aval.shape))
    return Choice(Traced(name, dims), np.True_, np.False_)


def axes_of(equation: Any) -> list[Any] | None:
    """Of each dimension of a result the one it was, "." of one of size 1, "*" where it is copied; None if unknown."""
    name, params = equation.primitive.name, equation.params
    if len(equation.invars) != 1 or name not in ("transpose", "broadcast_in_dim", *_RESHAPES) or reorders(equation):
        return None
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if name == "transpose":
        return list(params["permutation"])
    if name == "broadcast_in_dim":
        new: list[Any] = ["." if size == 1 else "*" for size in after]
        for axis, dim in enumerate(params["broadcast_dimensions"]):
            if before[axis] == after[dim]:
                new[dim] = axis
        return new
    old = [axis for axis, size in enumerate(before) if size != 1]
    if [before[axis] for axis in old] != [size for size in after if size != 1]:
        return None
    given = iter(old)
    return ["." if size == 1 else next(given) for size in after]
