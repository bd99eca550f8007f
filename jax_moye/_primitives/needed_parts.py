"""Products of which a program reads a part: it computes that part alone.

Logits of every token, of which the last one is read; a layer's output at one token; a product for queries, keys and
values, of which a cache has the latter: XLA computes all of it, and takes the part out of the result. Here the part is
taken out of the operands, in front of the product, and in front of what stands between: elementwise functions, sums,
transposes, reshapes, other products. So the last layer of a model computes one token, but for its keys and values.

    _Needed      which box of each value is read, from the results of a program backward: the least that holds all that
                 equations take out of the value. A box of more than half of a value is all of it
    _Rewritten   the same program, whose equations make those boxes

Elements that nobody reads are not computed. Those that are, are sums of the same products as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from jax_moye import _compat
from jax_moye._primitives.equations import body_of, called_by, inner_of, is_elementwise, opened, operands_of
from jax_moye._primitives.known_constants import renamed
from jax_moye._primitives.patterns import aval_of
from jax_moye._primitives.transposes import may_be_step, starts_of

Box = tuple[tuple[int, int], ...]  # of each dimension the first index, and the one behind the last

_TAKE = ("slice", "split", "dynamic_slice")
_PRODUCTS = ("dot_general", "jax_moye_contract")
_OF_AXES = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin")
_ALONG_AXIS = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "rev")


def with_needed_parts(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, whose products are of what is read; the same object if no product becomes smaller.

    The calls of jit in it are their equations then.

    Args:
      jaxpr: a program; the jaxprs of its loops and checkpoints stay what they are.
    """
    if not (_has(jaxpr, _TAKE) and _has(jaxpr, _PRODUCTS)):
        return jaxpr
    flat = opened(jaxpr)
    if not all(map(_is_plain, (x for one in flat.eqns for x in (*one.outvars, *operands_of(one))))):
        return jaxpr
    needed = _Needed(flat, [_whole(aval_of(x).shape) for x in flat.outvars], _given_by(flat))
    return needed.rewritten() if needed.are_products_smaller else jaxpr


def _is_plain(x: Any) -> bool:
    """Whether a value is an array of known sizes, whose type says nothing of how it is sharded."""
    aval = aval_of(x)
    is_known = all(isinstance(size, int) for size in getattr(aval, "shape", ("?",)))
    return is_known and not (_compat.is_on_mesh(aval) and _compat.has_explicit_axes(aval))


def _has(jaxpr: Jaxpr, names: Sequence[str]) -> bool:
    bodies = ((one, inner_of(one)) for one in jaxpr.eqns)
    return any(one.primitive.name in names or (body is not None and _has(body, names)) for one, body in bodies)


# --------------------------------------------------------------------------------------------------------- boxes


def _whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(limit - start for start, limit in box)


def _hull(one: Box | None, other: Box, shape: Sequence[int]) -> Box:
    """The least box with both, or the whole value where that is more than half of it."""
    both = one or other
    hull = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(both, other, strict=True))
    return hull if 2 * math.prod(_sizes(hull)) <= math.prod(shape) else _whole(shape)


def _reshaped(box: Box, of: Sequence[int], to: Sequence[int]) -> Box | None:
    """The elements of a box of a value as a box of the same value in another shape; None where they are none."""
    if 0 in (*of, *to):
        return None
    result: list[tuple[int, int]] = []
    i = j = 0
    while i < len(of) or j < len(to):  # groups of dimensions that have as many elements
        first_i, first_j = i, j
        i, j = min(i + 1, len(of)), min(j + 1, len(to))
        while (left := math.prod(of[first_i:i])) != (right := math.prod(to[first_j:j])):
            i, j = (i + 1, j) if left < right else (i, j + 1)
        found = _regrouped(box[first_i:i], of[first_i:i], to[first_j:j])
        if found is None:
            return None
        result += found
    return tuple(result)


def _regrouped(box: Box, of: Sequence[int], to: Sequence[int]) -> Box | None:
    """The same of dimensions that are others of as many elements together."""
    if box == _whole(of):
        return _whole(to)
    first, count = 0, math.prod(_sizes(box))  # in the order of rows
    for (start, _), size in zip(box, of, strict=True):
        first = first * size + start
    last = 0
    for (_, limit), size in zip(box, of, strict=True):
        last = last * size + limit - 1
    if last - first + 1 != count:  # not one behind the other
        return None
    result: list[tuple[int, int]] = []
    rest = math.prod(to)
    for size in to:  # one index of each dimension, until one takes all that is left
        inner = rest // size
        start, limit = first // inner, last // inner + 1
        if first % inner == 0 and (last + 1) % inner == 0:
            return (*result, (start, limit), *_whole(to[len(result) + 1 :]))
        if limit - start > 1:
            return None
        result.append((start, limit))
        first, last, rest = first - start * inner, last - start * inner, inner
    return None


# --------------------------------------------------------------------------------------------------------- rules


class _Part(NamedTuple):
    """How an equation makes boxes of its results.

    Attributes:
      asked: by operand, the box that it needs; None of one that it does not read.
      params: of the equation then.
      inner: of a function with a derivative of its own, what it needs.
    """

    asked: Sequence[Box | None]
    params: Mapping[str, Any] = {}
    inner: Any = None


def _elementwise(equation: Any, box: Box) -> _Part | None:
    shape = aval_of(equation.outvars[0]).shape
    shapes = [aval_of(x).shape for x in equation.invars]
    if len(equation.outvars) != 1 or any(len(one) not in (0, len(shape)) for one in shapes):
        return None
    asked: list[Box] = []
    for one in shapes:  # a dimension of size 1 may stand for others; numbers have none
        sizes = zip(box, one, shape, strict=False)
        asked.append(tuple(part if size == whole else (0, 1) for part, size, whole in sizes))
    return _Part(asked, equation.params)


def _broadcast(equation: Any, box: Box) -> _Part | None:
    params, (shape, *others) = equation.params, [aval_of(x).shape for x in equation.invars]
    dims, whole = params["broadcast_dimensions"], aval_of(equation.outvars[0]).shape
    if others or params.get("sharding") is not None:
        return None
    asked = tuple(box[dim] if size == whole[dim] else (0, 1) for size, dim in zip(shape, dims, strict=True))
    return _Part([asked], {**params, "shape": _sizes(box)})


def _transpose(equation: Any, box: Box) -> _Part:
    asked = {dim: one for dim, one in zip(equation.params["permutation"], box, strict=True)}
    return _Part([tuple(asked[dim] for dim in range(len(box)))], equation.params)


def _reshape(equation: Any, box: Box) -> _Part | None:
    params, shape = equation.params, aval_of(equation.invars[0]).shape
    if len(equation.invars) != 1 or params.get("dimensions") is not None or params.get("sharding") is not None:
        return None
    asked = _reshaped(box, aval_of(equation.outvars[0]).shape, shape)
    return None if asked is None else _Part([asked], {**params, "new_sizes": _sizes(box)})


def _squeeze(equation: Any, box: Box) -> _Part:
    left = iter(box)
    dims = {dim % aval_of(equation.invars[0]).ndim for dim in equation.params["dimensions"]}
    return _Part([tuple((0, 1) if i in dims else next(left) for i in range(len(box) + len(dims)))], equation.params)


def _reduce(equation: Any, box: Box) -> _Part | None:
    if len(equation.invars) != 1 or equation.params.get("out_sharding") is not None:
        return None
    left, shape = iter(box), aval_of(equation.invars[0]).shape
    axes = equation.params["axes"]
    return _Part([tuple((0, size) if i in axes else next(left) for i, size in enumerate(shape))], equation.params)


def _along_axis(equation: Any, box: Box) -> _Part | None:
    params = equation.params
    axes = params["dimensions"] if "dimensions" in params else (params["axis"],)
    whole = _whole(aval_of(equation.outvars[0]).shape)
    return _Part([box], params) if all(box[axis] == whole[axis] for axis in axes) else None


def _product(equation: Any, box: Box) -> _Part | None:
    params = equation.params
    ((of_lhs, of_rhs), (batch_lhs, batch_rhs)) = params["dimension_numbers"]
    if params.get("out_sharding") is not None:
        return None
    shapes = [aval_of(x).shape for x in equation.invars]
    asked, at = [], len(batch_lhs)
    for shape, contracted, batch in zip(shapes, (of_lhs, of_rhs), (batch_lhs, batch_rhs), strict=True):
        boxes = {dim: box[index] for index, dim in enumerate(batch)} | {dim: (0, shape[dim]) for dim in contracted}
        for dim in range(len(shape)):
            if dim not in boxes:
                boxes[dim], at = box[at], at + 1
        asked.append(tuple(boxes[dim] for dim in range(len(shape))))
    return _Part(asked, params)


def _contraction(equation: Any, box: Box) -> _Part | None:
    operands, out = equation.params["spec"].split("->")
    if equation.params.get("out_sharding") is not None:
        return None
    given = [*operands.split(","), out]  # c may be behind them
    of_label = dict(zip(out, box, strict=True))
    asked: list[Box] = []
    for labels, x in zip(given, equation.invars, strict=False):
        sizes = aval_of(x).shape
        asked.append(tuple(of_label.get(label, (0, size)) for label, size in zip(labels, sizes, strict=True)))
    return _Part(asked, equation.params)


def _takes(equation: Any) -> bool:
    """Whether an equation takes boxes out of its operand, which begin at numbers."""
    has_steps = any(stride != 1 for stride in equation.params.get("strides") or ())
    return equation.primitive.name in _TAKE and not has_steps and may_be_step(equation)


def _taken(equation: Any, boxes: Sequence[Box | None]) -> _Part:
    hull, (x, *numbers) = None, equation.invars
    for out, box in zip(equation.outvars, boxes, strict=True):
        if box is not None:
            hull = _hull(hull, _moved(box, starts_of(equation, out)), aval_of(x).shape)
    return _Part([hull, *[None] * len(numbers)])


def _moved(box: Box, by: Sequence[int]) -> Box:
    return tuple((start + at, limit + at) for (start, limit), at in zip(box, by, strict=True))


def _concatenate(equation: Any, box: Box) -> _Part:
    dim, begin, asked = equation.params["dimension"], 0, list[Box | None]()
    for x in equation.invars:
        start, limit = max(box[dim][0] - begin, 0), min(box[dim][1] - begin, aval_of(x).shape[dim])
        asked.append((*box[:dim], (start, limit), *box[dim + 1 :]) if start < limit else None)
        begin += aval_of(x).shape[dim]
    return _Part(asked, equation.params)


_RULES: dict[str, Callable[[Any, Box], _Part | None]] = {
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "dot_general": _product,
    "jax_moye_contract": _contraction,
    "concatenate": _concatenate,
    **dict.fromkeys(_OF_AXES, _reduce),
    **dict.fromkeys(_ALONG_AXIS, _along_axis),
}
_OTHERS = ("iota", "bitcast_convert_type")  # of equations that are elementwise


def _is_elementwise(equation: Any) -> bool:
    """Whether the equation itself, and no program that it calls, computes each element for itself."""
    return is_elementwise(equation) and called_by(equation) is None and equation.primitive.name not in _OTHERS


def _part_of(equation: Any, boxes: Sequence[Box | None]) -> _Part | None:
    """How an equation makes boxes of its results; None where it makes all of them."""
    shapes = [aval_of(x).shape for x in equation.outvars]
    if _takes(equation):
        return _taken(equation, boxes)
    if equation.effects or all(box == _whole(shape) for box, shape in zip(boxes, shapes, strict=True)):
        return None
    if equation.primitive.name == "custom_jvp_call":
        return _call(equation, boxes)
    (box, *others) = boxes
    if others or box is None:
        return None
    rule = _RULES.get(equation.primitive.name)
    if rule is None and _is_elementwise(equation):
        rule = _elementwise
    return None if rule is None else rule(equation, box)


def _call(equation: Any, boxes: Sequence[Box | None]) -> _Part | None:
    closed = equation.params["call_jaxpr"]
    body = body_of(closed)
    values = (*body.invars, *body.outvars)
    if getattr(closed, "consts", ()) or not all(jnp.issubdtype(aval_of(x).dtype, jnp.floating) for x in values):
        return None
    body = opened(body)
    wholes = [_whole(aval_of(x).shape) for x in body.outvars]
    inner = _Needed(body, [box or whole for box, whole in zip(boxes, wholes, strict=True)])
    return _Part([inner.box_of(x) for x in body.invars], equation.params, inner)


# ------------------------------------------------------------------------------------------------------- program


class _Needed:
    """What is read of each value of a program.

    Attributes:
      results: what is read of its results.
      are_products_smaller: whether a product's result is not read whole.
    """

    def __init__(self, jaxpr: Jaxpr, boxes: Sequence[Box], given: Collection[Any] = ()) -> None:
        """Looks for it.

        Args:
          jaxpr: the program, whose calls are their equations.
          boxes: what is read of its results.
          given: the values that may be sharded as somebody else says.
        """
        self._jaxpr, self.results = jaxpr, boxes
        self._boxes: dict[Any, Box] = {}
        self._parts: list[_Part | None] = []
        self._given = given
        self.are_products_smaller = False
        for x, box in zip(jaxpr.outvars, boxes, strict=True):
            self._read(x, box)
        for equation in reversed(jaxpr.eqns):
            self._parts.append(self._part(equation))
        self._parts.reverse()

    def box_of(self, x: Any) -> Box:
        """What is read of a value; all of one that nobody reads."""
        return self._boxes.get(x, _whole(aval_of(x).shape))

    def _read(self, x: Any, box: Box) -> None:
        if isinstance(x, Var):
            self._boxes[x] = _hull(self._boxes.get(x), box, aval_of(x).shape)

    def _part(self, equation: Any) -> _Part | None:
        boxes = [self._boxes.get(x) for x in equation.outvars]
        if all(box is None for box in boxes) and not equation.effects:
            return _Part([None] * len(equation.invars))
        part = _part_of(equation, boxes)
        if part is not None and not all(map(self._may_be_taken, equation.invars, part.asked)):
            part = None
        self.are_products_smaller |= part is not None and equation.primitive.name in _PRODUCTS
        for index, x in enumerate(equation.invars):
            box = _whole(aval_of(x).shape) if part is None else part.asked[index]
            if box is not None:
                self._read(x, box)
        return part

    def _may_be_taken(self, x: Any, box: Box | None) -> bool:
        """Whether a box of an operand may be read: not a part of what the program is given where there are devices.

        A parameter may be sharded in that dimension, and parts of it would be sent around.
        """
        if box is None or box == _whole(aval_of(x).shape):
            return True
        return isinstance(x, Var) and (x not in self._given or jax.device_count() == 1)

    def rewritten(self, of_parts: bool = False) -> Jaxpr:
        """The program, whose equations make what is read.

        Args:
          of_parts: it is given what it reads of its inputs, and not all of them.
        """
        new = _Rewritten(self._boxes)
        invars = [new.named(x, self.box_of(x)) if of_parts else x for x in self._jaxpr.invars]
        for equation, part in zip(self._jaxpr.eqns, self._parts, strict=True):
            new.add(equation, part)
        outvars = [new.part_of(x, box) for x, box in zip(self._jaxpr.outvars, self.results, strict=True)]
        return self._jaxpr.replace(invars=invars, outvars=outvars, eqns=new.equations)


def _given_by(jaxpr: Jaxpr) -> set[Any]:
    """The inputs of a program, and what they become element by element, or in another order."""
    given = {*jaxpr.invars, *jaxpr.constvars}
    for equation in jaxpr.eqns:
        operands = operands_of(equation)
        is_moved = equation.primitive.name in ("transpose", *_TAKE) or is_elementwise(equation)
        if is_moved and operands and given.issuperset(operands):
            given.update(equation.outvars)
    return given


class _Rewritten:
    """A program whose equations make boxes of their results.

    Attributes:
      equations: of it.
    """

    def __init__(self, boxes: Mapping[Any, Box]) -> None:
        """Has no equations yet.

        Args:
          boxes: what is read of each value.
        """
        self.equations: list[JaxprEqn] = []
        self._made: dict[Any, tuple[Any, Box]] = {}  # by name in the program before
        self._taken: dict[tuple[Any, Box], Any] = {}
        self._boxes = boxes

    def named(self, x: Any, box: Box) -> Any:
        """A name for a box of a value: its own if that is all of it."""
        aval = aval_of(x)
        new = x if box == _whole(aval.shape) else Var(aval.update(shape=_sizes(box)))
        self._made[x] = new, box
        return new

    def part_of(self, x: Any, box: Box) -> Any:
        """A box of a value."""
        if isinstance(x, Literal):
            return x
        made, available = self._made.get(x, (x, _whole(aval_of(x).shape)))
        if available == box:
            return made
        if (made, box) not in self._taken:
            starts = [start - first for (start, _), (first, _) in zip(box, available, strict=True)]
            limits = [limit - first for (_, limit), (first, _) in zip(box, available, strict=True)]
            body = _compat.jaxpr_of(lambda y: lax.slice(y, starts, limits), [aval_of(made)])
            self._taken[made, box] = self._put(body, [made])[0]
        return self._taken[made, box]

    def _put(self, body: Jaxpr, operands: Sequence[Any], source: Any = None) -> list[Any]:
        """The results of a program of those operands, whose equations stand here then."""
        names = dict(zip(body.invars, operands, strict=True))
        for one in body.eqns:
            new = renamed(one, names)
            self.equations.append(new if source is None else new.replace(source_info=source))
        return [names[x] if isinstance(x, Var) else x for x in body.outvars]

    def add(self, equation: Any, part: _Part | None) -> None:
        """The next equation, which makes what is needed of its results."""
        if part is None:
            invars = [self.part_of(x, _whole(aval_of(x).shape)) for x in equation.invars]
            is_same = all(x is y for x, y in zip(invars, equation.invars, strict=True))
            self.equations.append(equation if is_same else equation.replace(invars=invars))
            return
        needed = {x: self._boxes[x] for x in equation.outvars if x in self._boxes}
        if not needed:
            return
        name = equation.primitive.name
        if name in _TAKE:
            self._take(equation, needed)
            return
        operands = [(x, box) for x, box in zip(equation.invars, part.asked, strict=True) if box is not None]
        invars = [self.part_of(x, box) for x, box in operands]
        if part.inner is not None:
            body = _small_call(equation, part, [aval_of(x) for x in invars])
            for x, made in zip(equation.outvars, self._put(body, invars, equation.source_info), strict=True):
                self._made[x] = made, needed.get(x) or _whole(aval_of(x).shape)
            return
        if name == "concatenate" and len(invars) == 1:
            ((x, box),) = needed.items()
            self._made[x] = invars[0], box
            return
        outvars = [self.named(x, needed[x]) for x in equation.outvars]
        self.equations.append(equation.replace(invars=invars, outvars=outvars, params=dict(part.params)))

    def _take(self, equation: Any, needed: Mapping[Any, Box]) -> None:
        """The parts that an equation takes, out of what there is of its operand."""
        for out, box in needed.items():
            of = _moved(box, starts_of(equation, out))
            self._made[out] = self.part_of(equation.invars[0], of), box


def _small_call(equation: Any, part: _Part, avals: Sequence[Any]) -> Jaxpr:
    """A function with a derivative of its own, of boxes of its operands: the derivative is that of all of them."""
    boxes: Any = part.asked
    invars, outvars = [Var(aval_of(x)) for x in equation.invars], [Var(aval_of(x)) for x in equation.outvars]
    alone: Any = Jaxpr(
        [], invars, outvars, [equation.replace(invars=invars, outvars=outvars)], debug_info=_compat.UNNAMED
    )
    whole = jaxpr_as_fun(ClosedJaxpr(alone, []))
    small = jaxpr_as_fun(ClosedJaxpr(part.inner.rewritten(of_parts=True), []))
    results = part.inner.results

    def of_boxes(*operands: Any) -> Any:
        return small(*operands)

    of_boxes.__name__ = equation.params.get("name", "custom_jvp")
    fun = jax.custom_jvp(of_boxes)

    def padded(xs: Sequence[Any]) -> list[Any]:
        around = [
            [(start, size - limit, 0) for (start, limit), size in zip(box, aval_of(x).shape, strict=True)]
            for box, x in zip(boxes, invars, strict=True)
        ]
        return [lax.pad(x, jnp.zeros((), x.dtype), one) for x, one in zip(xs, around, strict=True)]

    @fun.defjvp
    def of_tangents(primals: Any, tangents: Any) -> Any:
        made, moved = jax.jvp(whole, padded(primals), padded(tangents))
        return [
            [lax.slice(x, *zip(*box, strict=True)) for x, box in zip(xs, results, strict=True)] for xs in (made, moved)
        ]

    return _compat.jaxpr_of(fun, avals)
