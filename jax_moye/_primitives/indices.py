"""What a jaxpr says of vectors of indices: between which numbers they lie, and which are permutations of 0, ..., m - 1.

A sort of an iota is one: `argsort`. What sorts an iota by a permutation, as `argsort(argsort(x))` does, or stores it by
one, is its inverse. Values of arguments are not known. Where the program wraps negative indices, as jax.numpy does, and
none is negative, the vector is what it was before; likewise where indices are clipped that are in bounds anyway.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax

from jax_moye._primitives.equations import reorders
from jax_moye._primitives.patterns import Number, Program, Step, aval_of

Bounds = tuple[int, int]  # the lowest and the highest number
_MOST_STEPS = 48  # between what is asked about and what is known
_RESHAPES = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")
_VECTOR = ((), (0,), (0,), (), ())  # dimensions of a gather, or scatter, of elements of a vector


def fits(bounds: Bounds | None, dtype: Any) -> bool:
    """Whether a type of integers holds all between bounds that are known: others begin again."""
    if bounds is None or not np.issubdtype(dtype, np.integer):
        return False
    return bool(np.iinfo(dtype).min <= bounds[0] and bounds[1] <= np.iinfo(dtype).max)


def gather_dimensions(equation: Any) -> tuple[tuple[int, ...], ...]:
    """Of a gather: offset_dims, collapsed_slice_dims, start_index_map, and those of batches."""
    d = equation.params["dimension_numbers"]
    batching = d.operand_batching_dims, d.start_indices_batching_dims
    return d.offset_dims, d.collapsed_slice_dims, d.start_index_map, *batching


def scatter_dimensions(equation: Any) -> tuple[tuple[int, ...], ...]:
    """Of a scatter: update_window_dims, inserted_window_dims, scatter_dims_to_operand_dims, and those of batches."""
    d = equation.params["dimension_numbers"]
    batching = d.operand_batching_dims, d.scatter_indices_batching_dims
    return d.update_window_dims, d.inserted_window_dims, d.scatter_dims_to_operand_dims, *batching


def stores(equation: Any) -> bool:
    """Whether an equation is a scatter that stores what it is given, and computes nothing of it."""
    return equation.primitive.name == "scatter" and equation.params.get("update_jaxpr") is None


class Indices:
    """The vectors of indices of a program, by the names that `Program.flat` has for them."""

    def __init__(self, program: Program) -> None:
        """Looks at nothing yet."""
        self._flat = program.flat
        self._bounds: dict[Any, Bounds | None] = {}
        self._steps = 0

    def name_of(self, variable: Any) -> Any:
        """Of a variable of the jaxpr."""
        return self._flat.names.get(variable, variable)

    def _step(self, name: Any) -> tuple[Step | None, str]:
        step = None if isinstance(name, Number) else self._flat.made_by.get(name)
        return step, "" if step is None else step.equation.primitive.name

    def _aval(self, step: Step, name: Any) -> Any:
        return aval_of(step.equation.outvars[next(i for i, x in enumerate(step.outputs) if x is name)])

    # ------------------------------------------------------------------------------------------------- the same vector

    def resolved(self, name: Any) -> Any:
        """What a vector is, but for dimensions of size 1, conversions, and what changes no index that is in bounds."""
        for _ in range(_MOST_STEPS):
            before = self.before(name)
            if before is None:
                break
            name = before
        return name

    def before(self, name: Any) -> Any | None:
        """The same vector one step before; None where there is no such step."""
        step, primitive = self._step(name)
        if step is None:
            return None
        first = step.inputs[0] if step.inputs else None
        if primitive in _RESHAPES and len(step.inputs) == 1 and not isinstance(first, Number):
            if reorders(step.equation):
                return None
            is_as_long = math.prod(aval_of(step.equation.invars[0]).shape) == math.prod(self._aval(step, name).shape)
            return first if is_as_long else None
        if primitive == "convert_element_type" and not isinstance(first, Number):
            return first if fits(self.bounds(first), self._aval(step, name).dtype) else None
        if primitive == "select_n" and len(step.inputs) == 3:
            return step.inputs[1] if self._is_never(first) else None
        if primitive in ("max", "min"):
            for x, other in (step.inputs, step.inputs[::-1]):
                limit, of_x = (self.bounds(other), self.bounds(x)) if isinstance(other, Number) else (None, None)
                if limit and of_x and (of_x[0] >= limit[1] if primitive == "max" else of_x[1] <= limit[0]):
                    return x
        if primitive == "clamp":
            low, x, high = step.inputs
            lowest, of_x, highest = map(self.bounds, (low, x, high))
            if lowest and of_x and highest and lowest[1] <= of_x[0] and of_x[1] <= highest[0]:
                return x
        return None

    def _is_never(self, name: Any) -> bool:
        """Whether no element of a mask is true."""
        if isinstance(name, Number):
            return not np.any(name.value)
        step, primitive = self._step(name)
        if step is None:
            return False
        if primitive in _RESHAPES:
            return self._is_never(step.inputs[0])
        if primitive == "lt":
            left, right = map(self.bounds, step.inputs)
            return left is not None and right is not None and left[0] >= right[1]
        if primitive == "and":
            return any(map(self._is_never, step.inputs)) or self._has_no_rest_below_zero(*step.inputs)
        return False

    def _has_no_rest_below_zero(self, *masks: Any) -> bool:
        """Whether these are floor_divide's `sign(x) != sign(c)` and `rem(x, c) != 0`, of x >= 0 and c > 0."""
        for signs, rest in (masks, masks[::-1]):
            (of_signs, differ), (of_rest, is_rest) = self._step(signs), self._step(rest)
            if of_signs is None or of_rest is None or (differ, is_rest) != ("ne", "ne"):
                continue
            rem, name = self._step(of_rest.inputs[0])
            zero = self.bounds(of_rest.inputs[1])
            if rem is None or name != "rem" or zero != (0, 0):
                continue
            x, c = map(self.bounds, rem.inputs)
            if x is None or c is None or x[0] < 0 or c[0] <= 0:
                continue
            if self._is_sign_of(of_signs.inputs[0], rem.inputs[0]) and self._is_positive_sign(of_signs.inputs[1]):
                return True
        return False

    def _is_sign_of(self, name: Any, x: Any) -> bool:
        step, primitive = self._step(name)
        return step is not None and primitive == "sign" and step.inputs[0] is x

    def _is_positive_sign(self, name: Any) -> bool:
        step, primitive = self._step(name)
        if step is not None and primitive in _RESHAPES:
            return self._is_positive_sign(step.inputs[0])
        number = step.inputs[0] if step is not None and primitive == "sign" else name
        found = self.bounds(number) if isinstance(number, Number) else None
        return found is not None and found[0] > 0

    # ----------------------------------------------------------------------------------------------------- its numbers

    def bounds(self, name: Any) -> Bounds | None:
        """Between which numbers all elements of an array of integers lie; None where nothing is known."""
        if isinstance(name, Number):
            if not np.issubdtype(name.dtype, np.integer) or name.value.size == 0:
                return None
            return int(name.value.min()), int(name.value.max())
        if name not in self._bounds:
            self._bounds[name] = None
            self._steps += 1
            if self._steps <= _MOST_STEPS:
                self._bounds[name] = self._found_bounds(name)
            self._steps -= 1
        return self._bounds[name]

    def _found_bounds(self, name: Any) -> Bounds | None:
        step, primitive = self._step(name)
        if step is None:
            return None
        aval = self._aval(step, name)
        if not np.issubdtype(aval.dtype, np.integer) or 0 in aval.shape:
            return None
        if primitive == "iota":
            counted: Bounds = (0, aval.shape[step.equation.params["dimension"]] - 1)
            return counted if fits(counted, aval.dtype) else None  # else it begins again
        if primitive == "top_k" and name is step.outputs[1]:
            return 0, aval_of(step.equation.invars[0]).shape[step.equation.params.get("axis", -1)] - 1
        if self.is_permutation(name):
            return 0, aval.shape[0] - 1
        before = self.before(name)
        if before is not None:
            return self.bounds(before)
        if primitive == "sort":
            return self.bounds(step.inputs[next(i for i, x in enumerate(step.outputs) if x is name)])
        if primitive in (*_RESHAPES, "rev", "slice", "transpose"):
            return self.bounds(step.inputs[0])
        if primitive == "gather":
            fills = step.equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
            return None if fills and not self._is_within(step) else self.bounds(step.inputs[0])
        found = self._of_numbers(primitive, step, aval.dtype)
        return found if fits(found, aval.dtype) else None

    def _is_within(self, step: Step) -> bool:
        """Whether a gather of single elements of a vector reads no index that is outside."""
        size = aval_of(step.equation.invars[0]).shape[0] if aval_of(step.equation.invars[0]).ndim == 1 else 0
        return gather_dimensions(step.equation) == _VECTOR and self.are_within(step.inputs[1], size)

    def _of_numbers(self, primitive: str, step: Step, dtype: Any) -> Bounds | None:
        """Of arithmetic, without overflow."""
        if primitive == "select_n":
            found = [self.bounds(x) for x in step.inputs[1:]]
            return None if None in found else (min(x[0] for x in found if x), max(x[1] for x in found if x))
        if primitive in ("max", "min", "clamp"):  # of what is not known, too
            whole = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            ends = [self.bounds(one) or whole for one in step.inputs]
            if primitive == "clamp":
                return min(ends[0][0], ends[2][0]), ends[2][1]
            choose = max if primitive == "max" else min
            return choose(one[0] for one in ends), choose(one[1] for one in ends)
        if len(step.inputs) != 2:
            return None
        x, y = map(self.bounds, step.inputs)
        if primitive == "rem" and x and y and x[0] >= 0 and y[0] > 0:
            return 0, min(x[1], y[1] - 1)
        if primitive == "div" and x and y and x[0] >= 0 and y[0] > 0:
            return x[0] // y[1], x[1] // y[0]
        if primitive == "add" and x and y:
            return x[0] + y[0], x[1] + y[1]
        if primitive == "sub" and x and y:
            return x[0] - y[1], x[1] - y[0]
        if primitive == "mul" and x and y:
            products = [a * b for a in x for b in y]
            return min(products), max(products)
        return None

    def are_within(self, name: Any, size: int) -> bool:
        """Whether all elements are indices of an array of so many."""
        found = self.bounds(name)
        return found is not None and found[0] >= 0 and found[1] < size

    # ---------------------------------------------------------------------------------------------------- permutations

    def is_permutation(self, name: Any) -> bool:
        """Whether a vector of m elements has each of 0, ..., m - 1 once."""
        name = self._unreshaped(name)
        step, primitive = self._step(name)
        if step is None or self._aval(step, name).ndim != 1:
            return False
        if primitive == "iota":
            return self.bounds(name) is not None
        if primitive == "sort":
            return self._is_permuted(step.inputs[next(i for i, x in enumerate(step.outputs) if x is name)])
        if primitive == "rev":
            return self._is_permuted(step.inputs[0])
        return primitive == "scatter" and self.inverse(name) is not None  # and so is that one

    def _is_permuted(self, name: Any) -> bool:
        return not isinstance(name, Number) and self.is_permutation(self.resolved(name))

    def _unreshaped(self, name: Any) -> Any:
        """The vector that an array of one dimension beside others of size 1 is."""
        step, primitive = self._step(name)
        if step is None or primitive not in _RESHAPES or isinstance(step.inputs[0], Number):
            return name
        before = self.before(name)
        return name if before is None else self._unreshaped(before)

    def inverse(self, name: Any) -> Any | None:
        """The permutation that a vector is the inverse of; None where it is none that is known."""
        name = self.resolved(name)
        step, primitive = self._step(name)
        if step is None or self._aval(step, name).ndim != 1:
            return None
        if primitive == "sort":
            is_argsort = len(step.inputs) == 2 and step.equation.params["num_keys"] == 1 and name is step.outputs[1]
            return self._inverse_of(step.inputs[0], step.inputs[1], self._aval(step, name)) if is_argsort else None
        if stores(step.equation) and scatter_dimensions(step.equation) == _VECTOR:
            _, at, updates = step.inputs
            return self._inverse_of(at, updates, self._aval(step, name))
        return None

    def _inverse_of(self, permutation: Any, iota: Any, aval: Any) -> Any | None:
        """The permutation, if the one is a permutation and the other an iota, of so many elements."""
        if isinstance(permutation, Number) or isinstance(iota, Number):
            return None
        at, counted = self.resolved(permutation), self.resolved(iota)
        (of_at, _), (of_counted, primitive) = self._step(at), self._step(counted)
        if of_at is None or of_counted is None or primitive != "iota":
            return None
        if not self.is_permutation(at) or not self.is_permutation(counted):
            return None
        sizes = {self._aval(of_at, at).shape, self._aval(of_counted, counted).shape, aval.shape}
        return at if len(sizes) == 1 else None
