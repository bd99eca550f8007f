"""In which order the dimensions of a product's arrays lie in memory, where XLA could choose.

Of its own product XLA lays out an operand as the product wants it, and whatever computes it element by element writes
it so. Of a custom call the arrays lie as the call says, and what is around them follows: an order that is no cost to a
kernel of ours may cost the rest of the program a transpose, or values that are computed twice, in two orders. So an
operand that is computed lies as what it is computed of: attention's weights as its scores. Where that is not known, or
no kernel could read it, it lies as XLA's product would have it.

What is in memory anyway is read where it is: an input, a product, or what a loop gives. A kernel's strides cost
nothing, and XLA would write it once more. A result is written as the program has it, which saves a transpose; but one
that is larger than both operands, such as attention's scores, lies as XLA's product would write it, with the dimensions
of each operand in the order that they have there. What follows it reads other arrays of its size, and those lie so.

The request says of an operand that is computed, and lies for a kernel in another order than XLA's product would have
it, which one that is: XLA is timed with the operand in its own order, in which the program would write it at no cost.
So it is with products that XLA makes one of, such as queries, keys and values: what cuts them apart writes them. Only
lowering sees which products are XLA's; a report takes the time that there is.

All this is about products with a batch. Without one an operand is one matrix or its transpose, as XLA has it, too. But
one that is computed, and whose lines are no multiple of 16 bytes where its columns are, XLA writes as columns.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jax.interpreters import mlir

from jax_moye._primitives.equations import body_of, called_by
from jax_moye._primitives.patterns import PRODUCTS
from jax_moye._primitives.reference import lax_form
from jax_moye._primitives.transposes import Permutation, Permutations, Source
from jax_moye._selection.problem import NotServedError, make_problem, parse_spec
from jax_moye._selection.request import Operand, Operands, Request, label_sizes


class Made(NamedTuple):
    """How a value is made.

    Attributes:
      how: "memory": nobody chooses how it lies; "part": XLA computes it as part of a product, and cuts it out;
        "transpose", "reshape", or "computed" from others; "call" of a function, whose "argument" it may be.
      operands: the one in front of a transpose or a reshape; of what is computed those of its shape; all of a call.
      detail: the permutation of a transpose; of a call the value that the function returns; an argument's number.
    """

    how: Literal["memory", "part", "transpose", "reshape", "computed", "call", "argument"]
    operands: Sequence[Any] = ()
    detail: Any = None


_LOOPS = ("scan", "jax_moye_scan", "while", "cond")
_IN_MEMORY = (*PRODUCTS, *_LOOPS, "dynamic_update_slice", "scatter", "ffi_call", "pallas_call", "optimization_barrier")


_PRODUCTS, _PRODUCT = ("dot_general", "jax_moye_contract"), object()  # as lax writes it, before a transpose


class InJaxpr:
    """How the values of a jaxpr are made, as they are seen where it is lowered."""

    def __init__(self, made_by: Mapping[Any, Any]) -> None:
        """Keeps what makes each."""
        self._made_by = dict(made_by)
        self._numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> Made:
        """How a variable or a literal is made."""
        if value is _PRODUCT:
            return Made("memory")
        equation = None if hasattr(value, "val") else self._made_by.get(value)
        if equation is None:
            return Made("argument", detail=None if hasattr(value, "val") else self._numbers.get(value))
        name, operands = equation.primitive.name, equation.invars
        if name in _PRODUCTS:  # if it is XLA's
            back = lax_form(equation.params["spec"])[1] if "spec" in equation.params else tuple(range(value.aval.ndim))
            return Made("transpose", (_PRODUCT,), back)
        if name in _IN_MEMORY:
            return Made("memory")
        if name == "transpose":
            return Made("transpose", operands[:1], tuple(equation.params["permutation"]))
        if name in ("reshape", "squeeze"):
            return Made("reshape", operands[:1])
        if (called := called_by(equation)) is not None:
            body = body_of(called)
            self._made_by |= {variable: one for one in body.eqns for variable in one.outvars}
            self._numbers |= {variable: i for i, variable in enumerate(body.invars)}
            return Made("call", operands, body.outvars[equation.outvars.index(value)])
        same = [x for x in operands if x.aval.shape == value.aval.shape and x.aval.dtype != bool]
        return Made("computed", same)


# As the names of StableHLO say it.
_LOWERED_IN_MEMORY = (
    "dot_general",
    "custom_call",
    "while",
    "case",
    "dynamic_update_slice",
    "scatter",
    "optimization_barrier",
)


def made_in_lowering(ctx: mlir.LoweringRuleContext, value: Any) -> Made:
    """How a value of a program that is being lowered is made.

    Looks at MLIR objects as `_compat.transposed_source` does.

    Args:
      ctx: where an equation is lowered that stands behind it.
      value: of the program.
    """
    owner: Any = getattr(value, "owner", None)
    name = getattr(owner, "name", None)
    if not isinstance(name, str):
        return Made("argument", (), getattr(value, "arg_number", None))
    if name == "stablehlo.dot_general" and _is_merged(owner):
        return Made("part")
    if name.removeprefix("stablehlo.") in _LOWERED_IN_MEMORY:
        return Made("memory")
    if name == "stablehlo.transpose":
        return Made("transpose", (owner.operands[0],), tuple(int(i) for i in owner.attributes["permutation"]))
    if name == "stablehlo.reshape":
        return Made("reshape", (owner.operands[0],))
    if name == "func.call":
        functions, callee = ctx.module_context.symbol_table, owner.attributes["callee"].value
        if callee in functions:
            function: Any = functions[callee]
            *_, returns = function.entry_block.operations
            return Made("call", tuple(owner.operands), returns.operands[value.result_number])
    shape = getattr(value.type, "shape", None)
    return Made("computed", [x for x in owner.operands if getattr(x.type, "shape", None) == shape and not _is_bool(x)])


def _is_merged(product: Any) -> bool:
    """Whether XLA makes one of a product and others of its left operand, as of those for queries, keys and values."""
    readers = (use.owner for use in product.operands[0].uses)
    dimensions = product.attributes["dot_dimension_numbers"]
    return any(
        one != product
        and one.name == product.name
        and one.operands[0] == product.operands[0]
        and one.attributes["dot_dimension_numbers"] == dimensions
        for one in readers
    )


def written_by(ctx: mlir.LoweringRuleContext, value: Any) -> str | None:
    """The target of the custom call that has written a value, perhaps of another shape, with nothing between; or None.

    Args:
      ctx: where an equation is lowered that reads it.
      value: of the program.
    """
    calls: tuple[Any, ...] = ()
    for _ in range(_MOST_STEPS):
        how, operands, _, around = _step(value, calls, functools.partial(made_in_lowering, ctx))
        if how not in ("reshape", "call"):
            break
        value, calls = operands[0], around
    owner: Any = getattr(value, "owner", None)
    if getattr(owner, "name", None) != "stablehlo.custom_call":
        return None
    return owner.attributes["call_target_name"].value


def _is_bool(value: Any) -> bool:
    return str(value.type.element_type) == "i1"


class Lies(NamedTuple):
    """How an operand lies in memory if nobody asks for another order.

    Attributes:
      computed: XLA chooses it.
      permutation: of the transpose that leads from the array that decides about it to the operand; None: not known.
    """

    computed: bool = False
    permutation: Permutation = None


_MOST_STEPS = 200


def how_it_lies(value: Any, ndim: int, made: Callable[[Any], Made]) -> Lies:
    """How a value lies.

    Args:
      value: an operand of a product.
      ndim: the number of its dimensions.
      made: says of each value how it is made.
    """
    waiting: list[Any] = [(value, tuple(range(ndim)), False, ())]
    for _ in range(_MOST_STEPS):
        if not waiting:
            break
        value, permutation, computed, calls = waiting.pop()
        how, operands, detail, calls = _step(value, calls, made)
        if how in ("memory", "part", "argument"):
            return Lies(computed or how == "part", permutation)
        if how == "reshape":
            return Lies(computed or not _is_in_memory(operands[0], calls, made), permutation)
        if how == "transpose":
            permutation = tuple(detail[dim] for dim in permutation)
        waiting += [(x, permutation, computed or how == "computed", calls) for x in reversed(operands)]
    return Lies(True, None)


def _step(value: Any, calls: tuple[Any, ...], made: Callable[[Any], Made]) -> tuple[str, Sequence[Any], Any, Any]:
    """How a value is made, of what, and in which calls that stands, the innermost last."""
    how, operands, detail = made(value)
    if how == "call":
        return how, (detail,), None, (*calls, operands)
    if how == "argument" and calls and detail is not None:
        return "call", (calls[-1][detail],), None, calls[:-1]
    return how, operands, detail, calls


def _is_in_memory(value: Any, calls: tuple[Any, ...], made: Callable[[Any], Made]) -> bool:
    for _ in range(_MOST_STEPS):
        how, operands, _, calls = _step(value, calls, made)
        if how not in ("transpose", "reshape", "call"):
            return how in ("memory", "argument")
        value = operands[0]
    return False


_WORD = 16  # bytes: lines of so many are read and written at once
# The last dimension of scores is not shorter: groups of queries are, and whatever follows would move them.
_ROW = 64


class Orders(NamedTuple):
    """How the arrays of a product lie.

    Attributes:
      request: what was asked for, of the arrays as they lie.
      operands: these.
      moved: of lhs, rhs and the result, the transpose that leads from the program's array to the one that lies so; for
        the result the one that leads back. None where there is none.
    """

    request: Request
    operands: Operands
    moved: tuple[Permutation, Permutation, Permutation]

    @property
    def permutations(self) -> Permutations:
        """Of the transposes that are left right in front of the product."""
        left, right = self.operands
        return left.permutation, right.permutation


def _is_asked(request: Request, operands: Operands) -> bool:
    """Whether it matters how a product's operands lie: sizes are known, and XLA and our kernels may both compute it."""
    known = all(isinstance(size, int) and size > 0 for operand in operands for size in operand.shape)
    return known and not request.insists and request.implementation != "xla"


def with_xlas_orders(request: Request, operands: Operands, lie: Sequence[Lies]) -> Request:
    """A request that says of operands that are computed in which order XLA would write them for its product.

    Args:
      request: what was asked for. Who insists on a kernel has no race with XLA.
      operands: lhs and rhs, before transposes right in front of the product, and no parts.
      lie: how these lie.
    """
    if not _is_asked(request, operands):
        return request
    return _Product(request, operands, lie).written_for()


def with_orders_in_lowering(ctx: mlir.LoweringRuleContext, request: Request, sources: Sequence[Source]) -> Request:
    """The same of an equation that is being lowered.

    Args:
      ctx: where it is lowered.
      request: of it.
      sources: what its operands are read from, lhs and rhs first.
    """
    if request.insists:
        return request
    made = functools.partial(made_in_lowering, ctx)
    left, right = (Operand(tuple(one.aval.shape), one.aval.dtype, one.permutation) for one in sources[:2])
    return with_xlas_orders(request, (left, right), [how_it_lies(x.value, x.aval.ndim, made) for x in sources[:2]])


class _Product:
    """A product whose sizes are known, and in which order its operands' labels lie.

    Attributes:
      sizes: of each label.
      batch: labels of both operands and the result.
      free: of each operand, those that the result has, too.
      lying: labels of lhs and rhs, as they lie in memory.
      xlas: as they do if XLA writes what is computed.
    """

    def __init__(self, request: Request, operands: Operands, lie: Sequence[Lies]) -> None:
        """Looks at the specification."""
        self._request, spec = request, parse_spec(request.spec)
        self.sizes = label_sizes(request.spec, operands)
        self.batch = "".join(label for label in spec.out if label in spec.lhs and label in spec.rhs)
        contracted = "".join(label for label in spec.lhs if label in spec.rhs and label not in spec.out)
        of_both = self.batch + contracted
        self.free = ["".join(label for label in names if label not in of_both) for names in (spec.lhs, spec.rhs)]
        self.lying = [
            labels if operand.permutation is None else _in_front_of(labels, operand.permutation)
            for labels, operand in zip(spec[:2], operands, strict=True)
        ]
        self.xlas = [
            self._of_xla(order, own, contracted, operand) if computed else order
            for order, own, operand, (computed, _) in zip(self.lying, self.free, operands, lie, strict=True)
        ]

    def _of_xla(self, order: str, own: str, contracted: str, operand: Operand) -> str:
        if self.batch:
            return _of_xla(order, self.batch, own, contracted, self.sizes)
        last, first = (contracted, own) if order[-1:] in contracted else (own, contracted)
        odd = [math.prod(self.sizes[x] for x in names) * operand.dtype.itemsize % _WORD != 0 for names in (last, first)]
        return last + first if odd == [True, False] else order

    def written_for(self, orders: Sequence[str] | None = None) -> Request:
        """The request of operands that lie so; None: as they do."""
        pairs = zip(self.lying if orders is None else orders, self.xlas, strict=True)
        left, right = (None if old == new else tuple(map(old.index, new)) for old, new in pairs)
        return dataclasses.replace(self._request, xlas_orders=(left, right))


def in_their_orders(request: Request, operands: Operands, lie: Sequence[Lies]) -> Orders:
    """The product whose arrays lie as is best for the program around it.

    Args:
      request: what was asked for.
      operands: lhs and rhs as the program has them, before transposes right in front of the product, and no parts.
      lie: how these lie.
    """
    as_it_is = Orders(with_xlas_orders(request, operands, lie), operands, (None, None, None))
    spec = parse_spec(request.spec)
    has_batch = any(label in spec.lhs and label in spec.rhs for label in spec.out)
    if not has_batch or not _is_asked(request, operands):
        return as_it_is
    if not any(_is_one_product(request.spec, pair) for pair in (operands, [x.transposed for x in operands])):
        return as_it_is  # XLA's, or with copies
    product = _Product(request, operands, lie)
    sizes, batch, free, before, xlas = product.sizes, product.batch, product.free, product.lying, product.xlas
    ours = []
    for order, of_xla, (computed, permutation) in zip(before, xlas, lie, strict=True):
        of_root = None if permutation is None else _in_front_of(order, permutation)
        # What sums over the last dimension, as softmax does, keeps it last.
        ours.append(of_root if of_root is not None and not (computed and of_root[-1] != order[-1]) else of_xla)

    volumes = [math.prod(sizes[label] for label in labels) for labels in spec]
    is_largest = request.beta == 0 and volumes[2] > max(volumes[:2])
    for orders in (ours, xlas):
        out = spec.out
        if is_largest:
            left, right = ("".join(x for x in order if x in of) for order, of in zip(orders, free, strict=True))
            out = _of_xla(out, batch, left, right, sizes)
            if sizes[out[-1]] < _ROW and max(sizes[left[-1]], sizes[right[-1]]) >= _ROW:
                out = batch + (right + left if out[-1] in right else left + right)
        if [*orders, out] == [*before, spec.out]:
            break
        moved: list[Permutation] = []
        names, arrays = list(spec[:2]), list(operands)
        for i, (old, new) in enumerate(zip(before, orders, strict=True)):
            moved.append(None if old == new else tuple(map(old.index, new)))
            if moved[i] is not None:
                names[i], arrays[i] = new, Operand(tuple(sizes[label] for label in new), arrays[i].dtype)
        new_spec = f"{','.join(names)}->{out}"
        if not _is_one_product(new_spec, arrays):
            continue
        back = None if out == spec.out else tuple(map(out.index, spec.out))
        new_request = dataclasses.replace(product.written_for(orders), spec=new_spec)
        return Orders(new_request, (arrays[0], arrays[1]), (moved[0], moved[1], back))
    return as_it_is


def _of_xla(lying: str, batch: str, first: str, second: str, sizes: Mapping[str, int]) -> str:
    """XLA's order of an array's labels: the batch, then both groups, in front the one that is now."""
    wanted = [batch + first + second, batch + second + first]
    counted = [[label for label in names if sizes[label] != 1] for names in (lying, *wanted)]
    return lying if counted[0] in counted[1:] else wanted[lying[-1] in first]


def _is_one_product(spec: str, operands: Sequence[Operand]) -> bool:
    left, right = operands
    try:
        make_problem(spec, left.seen_shape, right.seen_shape, "bf16", "bf16", left.permutation, right.permutation)
    except NotServedError:
        return False
    return True


def _in_front_of(labels: str, permutation: Sequence[int]) -> str:
    """The labels of the array in front of a transpose."""
    return "".join(labels[dim] for dim in sorted(range(len(labels)), key=lambda dim: permutation[dim]))
