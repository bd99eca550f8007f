"""Both halves of a product, as if they were two products: of one array that holds the weights of a gated layer.

    y = x @ w                         w is (K, 2 N), (K, 2, N), (2, N, K) or the like
    activation(y[:, :N]) * y[:, N:]   pairs.py finds it as that of x @ w[:, :N] and x @ w[:, N:]

Nobody reads all of y. The halves are taken out by what views.py can follow, along a dimension that w alone has. The
kernel reads those of w where they lie: views.py makes strides of the slices that stand in front of the new equation.
Everywhere else it is one product, as it was: `Original.in_two` says of which array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.chains import Chain, aval_of, original_of
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.rewritten import Original
from jax_moye._primitives.transposes import Part, may_be_step, part_of
from jax_moye._selection.in_place import is_possible
from jax_moye._selection.problem import parse_spec
from jax_moye._selection.request import Operand
from jax_moye._selection.view import View


@dataclasses.dataclass(frozen=True)
class Halves:
    """A product whose result is read as two halves alone.

    Attributes:
      product: all of it.
      chains: of the halves, as products of x and of half of w.
      side: which operand of the product w is.
      axis: the dimension of w that is halved.
      is_dropped: its halves have size 1, and the operand of a half does not have it.
      is_turned: the second half is the first one of `chains`.
    """

    product: Chain
    chains: tuple[Chain, Chain]
    side: int
    axis: int
    is_dropped: bool
    is_turned: bool = False

    @property
    def turned(self) -> Halves:
        """The same in the other order."""
        return dataclasses.replace(self, chains=self.chains[::-1], is_turned=not self.is_turned)

    def other(self, value: Any) -> Chain | None:
        """The second of `chains` if that makes a value."""
        return self.chains[1] if self.chains[1].value is value else None

    def operands(self, program: Program) -> tuple[list[JaxprEqn], list[Any]]:
        """The equations that take both halves out of w, and x and the halves, that of the first of `chains` first."""
        product = program.equations[self.product.product]
        w = product.invars[self.side]

        def halved(w: jax.Array) -> list[jax.Array]:
            half = w.shape[self.axis] // 2
            halves = [lax.slice_in_dim(w, start, start + half, axis=self.axis) for start in (0, half)]
            return [lax.squeeze(x, [self.axis]) for x in halves] if self.is_dropped else halves

        jaxpr = _compat.jaxpr_of(halved, [aval_of(w)])
        equations = [
            one.replace(invars=[w if x is jaxpr.invars[0] else x for x in one.invars], source_info=product.source_info)
            for one in jaxpr.eqns
        ]
        return equations, [product.invars[1 - self.side], *self._ordered(jaxpr.outvars)]

    def _ordered(self, halves: Sequence[Any]) -> Sequence[Any]:
        """The halves in w's order in that of `chains`, or the other way round."""
        return halves[::-1] if self.is_turned else halves

    def original(self, program: Program, members: Sequence[int], operands: Sequence[Any], values: Any) -> Original:
        """The equations of x and the halves, which become w again first.

        Args:
          program: where they stand.
          members: the indices of the equations.
          operands: as `operands` has them.
          values: what the equations make.
        """

        def joined(*halves: jax.Array) -> list[jax.Array]:
            whole = [lax.expand_dims(x, [self.axis]) if self.is_dropped else x for x in halves]
            return [lax.concatenate(whole, self.axis)]

        given = program.equations[self.product.product].invars
        whole = original_of(program, [self.product], members, given, values).jaxpr.jaxpr
        join = _compat.jaxpr_of(joined, [aval_of(x) for x in self._ordered(operands[1:])])
        x = whole.invars[1 - self.side]
        names: dict[Any, Any] = {whole.invars[self.side]: join.outvars[0]}
        equations = [
            one.replace(invars=[names.get(x, x) if isinstance(x, Var) else x for x in one.invars]) for one in whole.eqns
        ]
        jaxpr = Jaxpr(
            [], [x, *self._ordered(join.invars)], whole.outvars, [*join.eqns, *equations], debug_info=_compat.UNNAMED
        )
        return Original(ClosedJaxpr(jaxpr, []))


class Taken(NamedTuple):
    """Where a half is taken from.

    Attributes:
      array: whose half it is.
      steps: how many equations take it out.
    """

    array: Any
    steps: int


def taken_from(program: Program, half: Any) -> Taken:
    """What `Halves.operands` takes a half from.

    Args:
      program: with those equations.
      half: one of their results.
    """
    equation: Any = program.equations[program.made_by[half]]
    if equation.primitive.name == "squeeze":
        return Taken(program.equations[program.made_by[equation.invars[0]]].invars[0], 2)
    return Taken(equation.invars[0], 1)


def halves_of(program: Program, product: Chain) -> Halves | None:
    """The halves of a product; None where it is read as something else.

    Args:
      program: where it stands.
      product: alone, or with the conversion behind it.
    """
    if product.of_product["implementation"] == "xla":
        return None
    ends, members = _ends(program, product.value)
    parts = [part_of(program, x) for x in ends] if len(ends) == 2 else []
    found = sorted((x for x in parts if x is not None and x.source is product.value), key=_offset)
    if len(found) != 2:
        return None
    spec = parse_spec(product.spec)
    for axis, label in enumerate(spec.out):
        labels = {_labels(part.view, spec.out, axis, number) for number, part in enumerate(found)}
        if None not in labels and len(labels) == 1 and (label in spec.lhs) != (label in spec.rhs):
            return _halves(program, product, label, labels.pop() or "", found, members)
    return None


def _offset(part: Part) -> int:
    return part.view.offset


def _ends(program: Program, value: Any) -> tuple[list[Any], list[int]]:
    """The parts of a value, or of its parts, that something else reads, and the equations that take them out."""
    ends: list[Any] = []
    members: list[int] = []
    waiting = [value]
    while waiting:
        x = waiting.pop()
        readers = program.readers.get(x, [])
        is_whole = any(i == len(program.equations) or i in program.taken for i in readers)
        if is_whole or not all(may_be_step(program.equations[i]) for i in readers):
            ends.append(x)
        else:
            members += readers
            waiting += [made for i in readers for made in program.equations[i].outvars]
    return ends, sorted(set(members))


def _labels(view: View, out: str, axis: int, number: int) -> str | None:
    """The labels of a part of a result that is half of it; None if it is no half, or lies otherwise than its view says.

    Args:
      view: of the part.
      out: the result's labels.
      axis: the dimension that is halved.
      number: 0 for the first half, or 1.
    """
    size = view.source[axis]
    starts, limits = [0] * len(out), list(view.source)
    starts[axis], limits[axis] = number * (size // 2), (number + 1) * (size // 2)
    half = View.whole(view.source).sliced(starts, limits, [1] * len(out))
    dims = list(zip(out, half.shape, half.strides, strict=True))
    if len(view.shape) == len(out) - 1 and half.shape[axis] == 1:
        del dims[axis]
    if size % 2 or view.offset != half.offset or len(view.shape) != len(dims):
        return None
    labels = ""
    for wanted, stride in zip(view.shape, view.strides, strict=True):
        found = next((x for x in dims if x[1] == wanted and (wanted == 1 or x[2] == stride)), None)
        if found is None:
            return None
        dims.remove(found)
        labels += found[0]
    return labels


def _halves(
    program: Program, product: Chain, label: str, labels: str, parts: Sequence[Part], members: Sequence[int]
) -> Halves | None:
    """The halves, where it is known what they are; None where no kernel reads half of w in place.

    Args:
      program: where they stand.
      product: all of it.
      label: of the dimension that is halved.
      labels: of the halves.
      parts: the halves.
      members: indices of the equations that take them out.
    """
    sides = parse_spec(product.spec)[:2]
    side = int(label in sides[1])
    axis, is_dropped = sides[side].index(label), label not in labels
    of_w = sides[side].replace(label, "") if is_dropped else sides[side]
    if labels[-1] not in of_w:  # two operands share a tile's columns, along which results are contiguous
        return None
    spec = f"{sides[1 - side]},{of_w}->{labels}"
    x, w = (aval_of(program.equations[product.product].invars[i]) for i in (1 - side, side))
    limits = list(w.shape)
    limits[axis] //= 2
    view: View | None = View.whole(w.shape).sliced([0] * w.ndim, limits, [1] * w.ndim)
    if is_dropped and view is not None:
        view = view.reshaped([size for i, size in enumerate(view.shape) if i != axis])
    if view is None or not is_possible(spec, (Operand(x.shape, x.dtype), Operand(w.shape, w.dtype, view=view))):
        return None
    precision = product.of_product["precision"]
    if isinstance(precision, tuple) and side == 0:
        precision = precision[::-1]
    of_half = {**product.of_product, "spec": spec, "precision": precision}
    all_members = *product.members, *members
    first, second = (Chain(product.product, of_half, all_members, spec, part.variable) for part in parts)
    return Halves(product, (first, second), side, axis, is_dropped)
