"""Follows the scores of a jaxpr through softmax, mask and derivative, to the products that are attention's.

From a product on, whose result may be scores, each equation that reads something made of it is a formula of
attention_formulas.py, or the search ends: `Search.found` says what the products that end it are.

Dimensions have labels: A, B, ... those of a batch, q and r the rows of queries, k the keys, d what is summed over for
a score, and of the values. One of size 1 has none, "."; "*" is one along which a row's value was copied. Several that a
reshape made one have all their labels, as "Br".
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jax_moye._primitives.attention_bias import added
from jax_moye._primitives.attention_dropout import dropout_of
from jax_moye._primitives.attention_formulas import (
    SHARES,
    Affine,
    Choice,
    Cleared,
    Formula,
    Known,
    Logs,
    Opaque,
    Partial,
    derivative_of_scores,
    renamed,
    shares,
)
from jax_moye._primitives.attention_known import KnownValues, axes_of
from jax_moye._primitives.attention_labels import Labels, common, dot_labels, reshaped
from jax_moye._primitives.attention_masks import Region, dims_of
from jax_moye._primitives.attention_products import is_multiplied_as, is_tf32, narrowed, operands_of_scores
from jax_moye._primitives.attention_softmax import COPIES, NotAttentionError, Softmax, apart, is_mild
from jax_moye._primitives.equations import SUMS, is_elementwise, reorders
from jax_moye._primitives.patterns import Number, Program, Step


class Value(NamedTuple):
    """What a search knows of a value.

    Attributes:
      what: it is.
      labels: of its dimensions.
    """

    what: Any
    labels: Labels


class Operand(NamedTuple):
    """An operand of a product that is no score.

    Attributes:
      variable: of the program.
      labels: of its dimensions.
    """

    variable: Any
    labels: Labels


class Result(NamedTuple):
    """A product that ends a search.

    Attributes:
      place: the index of its equation.
      labels: of its dimensions.
      cleared: the masks that made what is multiplied 0 where they leave a score out.
      variable: the result, of "ds" alone, which is no product.
    """

    place: int
    labels: Labels
    cleared: frozenset[Region] = frozenset()
    variable: Any = None


class Joined(NamedTuple):
    """Scores of other keys that stand beside the product's in one softmax, such as those of a token itself.

    Attributes:
      operand: them.
      factor: of the product's scores in front of that.
      start: of the product's along the dimension.
      dim: of it.
    """

    operand: Operand
    factor: float
    start: int
    dim: int


class _SourceError(Exception):
    """Another product is part of it: the search begins anew."""


class Search:
    """What is made of one product.

    Attributes:
      q: the queries, likewise k, v and d_o; None where it is not known.
      results: the products that end it, by "o", "dq", "dk" and "dv"; "shares" are those of other keys.
      leaves: the derivatives of the scores that others read, of which they make the gradients of biases.
      joined: the scores of those; None where there are none. Their dimension together is labelled "j".
      steps: all that belongs to it.
      softmax: of the scores.
      value_dim: the head_dim of the values, where that is known.
      dropouts: of each result the factor of weights that are kept, None of one without dropout.
      ds_parts: in how many parts the derivative of the scores is multiplied, see `AttentionParams`.
      dtype: of the operands.
      product_dtype: of what is made of them.
    """

    def __init__(self, program: Program, known: KnownValues, step: Step, given: Sequence[Any], of_k: int) -> None:
        """Begins.

        Args:
          program: where it stands.
          known: of it.
          step: the product.
          given: what it multiplies: of `operands_of_scores`.
          of_k: which of both is the keys.

        Raises:
          NotAttentionError: its operands are not a score's.
        """
        self.program, self._flat, self._known, self._step = program, program.flat, known, step
        self.sizes: dict[str, int] = {}
        self.product_dtype = step.equation.outvars[0].aval.dtype
        labels = self._score_labels(step, given, of_k)
        self._sources = {step.outputs[0]: (step, Value(Logs(scores=1.0), labels))}
        self.v: Operand | None = None
        self.d_o: Operand | None = None
        self.value_dim: int | None = None

    def _score_labels(self, step: Step, given: Sequence[Any], of_k: int) -> Labels:
        equation = step.equation
        shapes = [tuple(x.aval.shape) for x in equation.invars]
        if not all(isinstance(size, int) and size > 0 for shape in shapes for size in shape):
            raise NotAttentionError
        contracted, batch = equation.params["dimension_numbers"]
        labels: list[list[str]] = [["."] * len(shape) for shape in shapes]
        names = iter("ABCDEFGH")
        for pair in zip(*batch, strict=True):
            if shapes[0][pair[0]] > 1:
                name = next(names, None)
                if name is None:
                    raise NotAttentionError
                self._set(labels, pair, name, shapes)
        summed = [pair for pair in zip(*contracted, strict=True) if shapes[0][pair[0]] > 1]
        if len(summed) != 1:
            raise NotAttentionError
        self._set(labels, summed[0], "d", shapes)
        for side, free in ((1 - of_k, "qr"), (of_k, "k")):
            rest = iter(free)
            for axis, size in enumerate(shapes[side]):
                if size > 1 and labels[side][axis] == ".":
                    label = next(rest, None)
                    if label is None:
                        raise NotAttentionError
                    labels[side][axis], self.sizes[label] = label, size
        if "k" not in self.sizes:
            raise NotAttentionError
        self.q, self.k = (Operand(given[side], tuple(labels[side])) for side in (1 - of_k, of_k))
        self.batch = [label for label in self.sizes if label.isupper()]
        self.rows = [label for label in self.sizes if label in "qr"]
        self.dtype = self.q.variable.aval.dtype
        if self.k.variable.aval.dtype != self.dtype:
            raise NotAttentionError
        return dot_labels(equation, labels)

    def _set(self, labels: Sequence[list[str]], axes: Sequence[int], label: str, shapes: Sequence[Any]) -> None:
        for side, axis in enumerate(axes):
            labels[side][axis] = label
        self.sizes[label] = shapes[0][axes[0]]

    # ------------------------------------------------------------------------------------------------ the search

    def run(self) -> None:
        """Follows the scores to their end.

        Raises:
          NotAttentionError: they have another one.
        """
        for _ in range(3):
            self.softmax = Softmax()
            self.values: dict[Any, Value] = {}
            self.joined: Joined | None = None
            self.results: dict[str, Result] = {}
            self.leaves: list[Any] = []
            self.ds_parts, self.dropouts = 1, list[float | None]()
            self.steps: dict[int, Step] = {}
            try:
                self._follow()
            except _SourceError:
                continue
            return
        raise NotAttentionError

    def _follow(self) -> None:
        waiting: list[int] = []

        def add(step: Step, value: Value) -> None:
            self.steps[id(step)] = step
            self.values[step.outputs[0]] = value
            for reader in self._flat.readers.get(step.outputs[0], ()):
                heapq.heappush(waiting, self._known.order[id(reader)])

        for step, value in self._sources.values():
            add(step, value)
        done: set[int] = set()
        while waiting:
            index = heapq.heappop(waiting)
            step = self._flat.steps[index]
            if index in done or any(x in self._sources for x in step.outputs):
                continue
            done.add(index)
            if id(step) not in self._known.live:
                self.steps[id(step)] = step
                continue
            if step.equation.primitive.name == "dot_general":
                try:
                    self._end(step)
                except NotAttentionError:
                    if not self._leaves(step):
                        raise
                continue
            if len(step.outputs) != 1 or step.equation.effects:
                raise NotAttentionError
            if step.equation.primitive.name == "slice" and self._end_of_others(step):
                continue
            try:
                value = self._value(step)
            except NotAttentionError:
                if not self._leaves(step):
                    raise
                continue
            if not isinstance(value.what, Opaque) or not self._leaves(step):
                add(step, value)

    def _leaves(self, step: Step) -> bool:
        """Whether an equation reads the derivative of scores with a bias, and nothing else: that is a leaf, then."""
        names = [x for x in step.inputs if not isinstance(x, Number) and x in self.values]
        if len(set(map(id, names))) != 1 or not self.is_bias_gradient(self.values[names[0]]):
            return False
        self.leaves += names[:1]
        return True

    def is_bias_gradient(self, value: Value, factor: float | None = None) -> bool:
        """Whether a value is the derivative by a bias, or by the scores behind the scale, and of whole ones.

        Args:
          value: of the search.
          factor: of the bias; None: of any of them, or 1.
        """
        scores, what = self.softmax.scores, value.what.formula if isinstance(value.what, Cleared) else value.what
        if scores is None or not scores.biases or not isinstance(what, Formula):
            return False
        factors = {1.0, *(bias.factor for bias in scores.biases)} if factor is None else {factor}
        own = sorted(label for label in value.labels if label != ".")
        return own == sorted([*self.batch, *self.rows, "k"]) and any(
            what.is_like(derivative_of_scores(one, dropout=dropout_of(what, one))) for one in factors
        )

    def _value(self, step: Step) -> Value:
        equation, name = step.equation, step.equation.primitive.name
        values = [None if isinstance(x, Number) else self.values.get(x) for x in step.inputs]
        axes = axes_of(equation)
        if axes is not None:
            (given,) = values
            assert given is not None
            return Value(given.what, tuple(given.labels[x] if isinstance(x, int) else x for x in axes))
        if name == "reshape" and len(values) == 1 and not reorders(equation):
            (given,) = values
            assert given is not None
            before, after = (tuple(x[0].aval.shape) for x in (equation.invars, equation.outvars))
            return Value(given.what, reshaped(given.labels, before, after, self.sizes))
        if name == "concatenate":
            return self._join(step, values)
        if name == "slice":
            (given,) = values
            assert given is not None
            return Value(given.what, tuple("k" if label == "j" else label for label in given.labels))
        if name in ("reduce_max", "reduce_sum"):
            (given,) = values
            assert given is not None
            return self._reduced(name, given, equation)
        if not is_elementwise(equation):
            raise NotAttentionError
        return self._elementwise(step, values)

    def _reduced(self, name: str, given: Value, equation: Any) -> Value:
        axes, shape = equation.params["axes"], equation.invars[0].aval.shape
        over = [given.labels[axis] for axis in axes if given.labels[axis] != "."]
        labels = tuple(label for axis, label in enumerate(given.labels) if axis not in axes)
        what = given.what
        if isinstance(what, Opaque):
            return Value(what, labels)
        keys = "k" if self.joined is None else "j"
        if name == "reduce_max":
            if over != [keys] or not isinstance(what, Logs):
                raise NotAttentionError
            return Value(self.softmax.largest(what), labels)
        if isinstance(what, (Cleared, Partial)) and not over:
            return Value(what, labels)
        if not isinstance(what, Formula) or not set(over) <= {keys, "*"}:
            raise NotAttentionError
        copies = math.prod(shape[axis] for axis in axes if given.labels[axis] == "*")
        total: Any = what.times(Formula.of(copies))
        if keys in over and not isinstance(total, Opaque):
            total = total.summed(self.sizes[keys])
        return Value(total, labels)

    def _join(self, step: Step, values: list[Value | None]) -> Value:
        """Scores beside others."""
        equation, dim = step.equation, step.equation.params["dimension"]
        at = [i for i, value in enumerate(values) if value is not None]
        if len(values) != 2 or len(at) != 1 or self.joined is not None or self.softmax.largest_of is not None:
            raise NotAttentionError
        (side,) = at
        given, other = values[side], equation.invars[1 - side]
        assert given is not None
        is_scores = isinstance(given.what, Logs) and given.what.scores > 0 and not given.what.biases
        # A kernel's result is rounded before what the others add: so were the scores.
        rounds = self.product_dtype == self.dtype
        if not is_scores or not rounds or given.labels[dim] != "k" or not self._is_of_program(step):
            raise NotAttentionError
        size = other.aval.shape[dim]
        labels = tuple(("x" if size > 1 else ".") if i == dim else label for i, label in enumerate(given.labels))
        start = other.aval.shape[dim] if side else 0
        self.sizes["j"] = self.sizes["k"] + size
        self.joined = Joined(Operand(other, labels), given.what.scores, start, dim)
        return Value(given.what, tuple("j" if i == dim else label for i, label in enumerate(given.labels)))

    def _end_of_others(self, step: Step) -> bool:
        """Whether an equation takes the shares of the other keys out of all; if not, those of the keys.

        Raises:
          NotAttentionError: it takes something else.
        """
        params, value = step.equation.params, self.values[step.inputs[0]]
        joined, shape = self.joined, step.equation.invars[0].aval.shape
        if joined is None or not isinstance(value.what, Formula) or not value.what.is_like(SHARES):
            raise NotAttentionError
        others = [i for i, label in enumerate(value.labels) if label != "j"]
        if any((params["start_indices"][i], params["limit_indices"][i]) != (0, shape[i]) for i in others):
            raise NotAttentionError
        (dim,) = (i for i, label in enumerate(value.labels) if label == "j")
        part = params["start_indices"][dim], params["limit_indices"][dim]
        keys = joined.start, joined.start + self.sizes["k"]
        if params["strides"] is not None or part not in (keys, (keys[1] % shape[dim], joined.start or shape[dim])):
            raise NotAttentionError
        if part == keys:
            return False
        if "shares" in self.results or not self._is_of_program(step):
            raise NotAttentionError
        label = "x" if shape[dim] - self.sizes["k"] > 1 else "."
        self.steps[id(step)] = step
        self.results["shares"] = Result(step.place, tuple(label if x == "j" else x for x in value.labels))
        return True

    # --------------------------------------------------------------------------------------- elementwise equations

    def _elementwise(self, step: Step, values: list[Value | None]) -> Value:
        equation, name = step.equation, step.equation.primitive.name
        out = equation.outvars[0].aval
        labels = common([value.labels for value in values if value is not None and value.labels], tuple(out.shape))
        labels = self._of_masked_row(step, labels)
        operands: list[Any] = []
        for x, aval, value in zip(step.inputs, (one.aval for one in equation.invars), values, strict=True):
            given: Any = value.what if value is not None else self._as_known(x, labels)
            is_of_scores = name in SUMS and any(isinstance(one.what, Logs) for one in values if one)
            if is_of_scores and (given is None or (name != "sub" and is_mild(given, out.dtype))):
                given = added(self.program, x, aval, labels, self.dtype, self._as_known)
            if given is None and any(value is not None and isinstance(value.what, Formula) for value in values):
                self._look_for_source(x, labels)
            operands.append(Opaque() if given is None else given)
        return Value(self.softmax.computed(name, operands, equation.params, out.dtype), labels)

    def _of_masked_row(self, step: Step, labels: Labels) -> Labels:
        """The labels of a result, of which a row's value may be behind a mask: then it has columns, the keys."""
        missing = {*self.batch, *self.rows, "k"} - set("".join(labels))
        shape = step.equation.outvars[0].aval.shape
        copied = [axis for axis, label in enumerate(labels) if label == "*"]
        known = (self._known.of(x) for x in step.inputs)
        masks = (one.mask for one in known if isinstance(one, Choice) and one.mask is not None)
        if missing != {"k"} or len(copied) != 1 or shape[copied[0]] != self.sizes["k"]:
            return labels
        if not any(copied[0] in dims_of(mask) for mask in masks):
            return labels
        return tuple("k" if label == "*" else label for label in labels)

    def _as_known(self, name: Any, labels: Labels) -> Known | None:
        """What is known of an operand, whose dimensions have labels."""
        known = self._known.of(name)
        if known is None or isinstance(known, Affine):
            return None
        if known.mask is None:
            return known
        if any(labels[axis] in ".*" for axis in dims_of(known.mask)):
            return None
        return renamed(known, lambda axis: labels[axis])

    # ------------------------------------------------------------------------------------------------- products

    def _look_for_source(self, name: Any, labels: Labels) -> None:
        """Whether an operand that is not known is the product of d_o and v: then the search begins anew with it.

        Raises:
          _SourceError: it is.
        """
        while True:
            step = self._maker(name)
            if step is None or not step.inputs:  # nothing makes iota
                return
            equation = step.equation
            if equation.primitive.name == "dot_general":
                break
            before, after = (tuple(x[0].aval.shape) for x in (equation.invars, equation.outvars))
            moved = axes_of(equation)
            if moved is not None:
                new = ["." if size == 1 else "*" for size in before]
                for label, axis in zip(labels, moved, strict=True):
                    if isinstance(axis, int):
                        new[axis] = label
                labels = tuple(new)
            elif equation.primitive.name == "reshape" and not reorders(equation):
                labels = reshaped(labels, after, before, self.sizes)
            elif equation.primitive.name == "select_n" and len(step.inputs) == 3:
                others = [x for x in step.inputs[1:] if not self._is_zero(x)]
                if len(others) != 1:
                    return
                (name,) = others  # a gradient behind a mask
                continue
            elif equation.primitive.name in ("mul", "div") and self._known.of(step.inputs[0]) is not None:
                name = step.inputs[1]  # of a gradient behind dropout
                continue
            elif equation.primitive.name in ("mul", "div") and self._known.of(step.inputs[1]) is not None:
                pass
            elif equation.primitive.name not in COPIES:
                return
            name = step.inputs[0]
        if len(self._sources) > 1 or not self._is_of_program(step):
            raise NotAttentionError
        shape = tuple(equation.outvars[0].aval.shape)
        found = ["." if size == 1 else "" for size in shape]
        for axis, label in enumerate(labels):
            if label not in ".*" and shape[axis] == self.sizes.get(label):
                found[axis] = label
        if found.count("") == 1 and "k" not in found and shape[found.index("")] == self.sizes["k"]:
            found[found.index("")] = "k"
        if sorted(x for x in found if x != ".") != sorted([*self.batch, *self.rows, "k"]):
            raise NotAttentionError
        self._take_source(step, tuple(found))
        raise _SourceError

    def _is_zero(self, name: Any) -> bool:
        known = self._known.of(name)
        return isinstance(known, Choice) and known.number == 0

    def _maker(self, name: Any) -> Step | None:
        return None if isinstance(name, Number) else self._flat.made_by.get(name)

    def _take_source(self, step: Step, labels: Labels) -> None:
        """The product of d_o and v, whose result has labels like the scores."""
        equation = step.equation
        (contracted, batch), operands = equation.params["dimension_numbers"], equation.invars
        named: list[list[str]] = [["."] * len(x.aval.shape) for x in operands]
        dims = iter(labels)
        for pair in zip(*batch, strict=True):
            label = next(dims)
            for side, axis in enumerate(pair):
                named[side][axis] = label
        for side in (0, 1):
            for axis in range(len(named[side])):
                if axis not in batch[side] and axis not in contracted[side]:
                    named[side][axis] = next(dims)
        summed = [pair for pair in zip(*contracted, strict=True) if operands[0].aval.shape[pair[0]] > 1]
        if len(summed) != 1 or not self._is_value_dim(operands[0].aval.shape[summed[0][0]]):
            raise NotAttentionError
        named[0][summed[0][0]] = named[1][summed[0][1]] = "d"
        of_v = 1 if "k" in named[1] else 0
        if not is_multiplied_as(equation, self.dtype, None):
            raise NotAttentionError
        self.v = self._checked("v", Operand(operands[of_v], tuple(named[of_v])))
        self.d_o = self._checked("d_o", Operand(operands[1 - of_v], tuple(named[1 - of_v])))
        self._sources[step.outputs[0]] = step, Value(Formula.of(g=1), labels)

    def _checked(self, name: str, operand: Operand) -> Operand:
        """An operand that has the dimensions that are its own, and is the one that was known.

        Raises:
          NotAttentionError: it has others, or is another one.
        """
        rows = self.rows if name in ("q", "d_o", "o") else ["k"]
        if sorted(x for x in operand.labels if x != ".") != sorted([*self.batch, *rows, "d"]):
            raise NotAttentionError
        if operand.variable.aval.dtype != self.dtype:
            raise NotAttentionError
        before: Operand | None = getattr(self, name)
        is_it = before is None or self._name(before.variable) is self._name(operand.variable)
        if not is_it or (before is not None and before.labels != operand.labels):
            raise NotAttentionError
        return operand

    def _is_value_dim(self, size: int) -> bool:
        self.value_dim = self.value_dim or size
        return size == self.value_dim <= self.sizes["d"]

    def _name(self, variable: Any) -> Any:
        return self._flat.names.get(variable, variable)

    def _is_of_program(self, step: Step) -> bool:
        return step.equation is self.program.equations[step.place] and step.place not in self.program.taken

    def _end(self, step: Step) -> None:
        """A product that ends the search.

        Raises:
          NotAttentionError: it is none of attention's.
        """
        equation, inputs = step.equation, step.inputs
        made = [i for i, x in enumerate(inputs) if not isinstance(x, Number) and x in self.values]
        if len(made) != 1 or not self._is_of_program(step):
            raise NotAttentionError
        (side,) = made
        value, other = self.values[inputs[side]], equation.invars[1 - side]
        other = other if other.aval.dtype == self.dtype else narrowed(self.program, other)
        is_in_parts = is_tf32(equation, self.dtype, side, other.aval.dtype)
        if not is_in_parts and not is_multiplied_as(equation, self.dtype, side):
            raise NotAttentionError
        what, cleared = apart(value.what)
        if "*" in value.labels:
            raise NotAttentionError
        contracted, batch = equation.params["dimension_numbers"]
        named: list[list[str]] = [[], []]
        named[side] = list(value.labels)
        named[1 - side] = ["."] * len(other.aval.shape)
        for pair in (*zip(*batch, strict=True), *zip(*contracted, strict=True)):
            named[1 - side][pair[1 - side]] = value.labels[pair[side]]
        if sorted(value.labels[axis] for axis in batch[side] if value.labels[axis] != ".") != sorted(self.batch):
            raise NotAttentionError
        paired = {*batch[1 - side], *contracted[1 - side]}
        free = [axis for axis, size in enumerate(other.aval.shape) if size > 1 and axis not in paired]
        if len(free) != 1:
            raise NotAttentionError
        named[1 - side][free[0]] = "d"
        over = sorted(value.labels[axis] for axis in contracted[side] if value.labels[axis] != ".")
        name, operand = self._kind(what, over, Operand(other, tuple(named[1 - side])))
        of_keys, size = name in ("dq", "dk"), other.aval.shape[free[0]]
        fits = size == self.sizes["d"] if of_keys else self._is_value_dim(size)
        if name in self.results or not fits or (is_in_parts and not of_keys):
            raise NotAttentionError
        self.ds_parts = 2 if is_in_parts else self.ds_parts
        setattr(self, operand, self._checked(operand, Operand(other, tuple(named[1 - side]))))
        self.steps[id(step)] = step
        self.results[name] = Result(step.place, dot_labels(equation, named), cleared)

    def _kind(self, what: Formula, over: list[str], other: Operand) -> tuple[str, str]:
        """The name of a product's result, and of the operand that is no score."""
        is_of_keys = over == ["k"]
        if not is_of_keys and over != sorted(self.rows):
            raise NotAttentionError
        scores = self.softmax.scores
        dropout = dropout_of(what, 1.0 if scores is None else scores.scale)
        self.dropouts.append(dropout)
        if what.is_like(shares(dropout)):
            return ("o", "v") if is_of_keys else ("dv", "d_o")
        if scores is None or not what.is_like(derivative_of_scores(scores.scale, scores.in_tanh is not None, dropout)):
            raise NotAttentionError
        return ("dq", "k") if is_of_keys else ("dk", "q")


def searches(program: Program, known: KnownValues, step: Step) -> Iterable[Callable[[], Search]]:
    """The searches that may begin with a product: what is the keys' operand is seen later.

    Args:
      program: where it stands.
      known: of it.
      step: the product.
    """
    ways = itertools.product(operands_of_scores(program, step.equation), (1, 0))
    return (functools.partial(Search, program, known, step, *way) for way in ways)
