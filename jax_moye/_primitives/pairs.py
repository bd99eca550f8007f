"""Gated layers as one equation: two products of one left operand, the one activated and multiplied with the other.

    activation(x @ w) * (x @ v)      rewritten_p with v as the epilogue's SECOND_B

Of groups' products it is grouped_rewritten_p, of which grouped_rewritten.py says the same. Both products may be halves
of one, by an array that holds w and v (halves.py).

Both right operands have one shape and one type. A kernel reads x once, and writes the two products only where somebody
else reads one of them: derivatives do. The activation's own equations stay then, for who reads what they make.

Their backward pass: the cotangents of both products, which are made of one.

    d_h    = d_y @ w                                 of h = activation(gate) * up
    d_up   = d_h * activation(gate)                  rewritten_p with gate as the epilogue's c, up as its MULTIPLIER,
    d_gate = (d_h * up) * activation'(gate)          and two results, d_gate first

Nobody else reads d_h, nor d_h * up. gate and up are in memory: products of ours write them, or the program is given
them. The equations of activation(gate) stay, for who else reads what they make. Where both results are put together
into one array, as the cotangent of one product, XLA does all that in one pass, and nothing is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax.extend.core import JaxprEqn, Var

from jax_moye._primitives.chains import (
    Chain,
    activations_of,
    aval_of,
    derivatives_of,
    linear_chain,
    rewritten_equation,
)
from jax_moye._primitives.equations import is_same, keep_their_place
from jax_moye._primitives.halves import Halves, halves_of
from jax_moye._primitives.patterns import Program
from jax_moye._selection.epilogue import DERIVATIVES, MULTIPLIER, SECOND_B, Epilogue
from jax_moye._selection.problem import parse_spec


@dataclasses.dataclass(frozen=True)
class Pair:
    """A gated layer.

    Attributes:
      first: the product that is activated.
      second: the other one.
      activation: a key of ACTIVATIONS.
      inside: indices of the activation's equations.
      gate: index of the equation that multiplies.
      keeps: whether somebody else reads one of the products.
      halves: of which product they are the halves; None: each is one.
    """

    first: Chain
    second: Chain
    activation: str
    inside: tuple[int, ...]
    gate: int
    keeps: bool
    halves: Halves | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """The indices of the equations that it stands for alone."""
        inside = () if self.keeps else self.inside
        return (*self.first.members, *self.second.members, *inside, self.gate)

    @property
    def epilogue(self) -> Epilogue:
        """What becomes of the first product."""
        of_right = self.first.spec.partition("->")[0].partition(",")[2]
        operands = ((SECOND_B, of_right),)
        return Epilogue(self.activation, operands=operands, keeps=self.keeps, halves=self.halves is not None)

    def equations(self, program: Program) -> list[JaxprEqn]:
        """What stands in their place: the equation, and in front of it those that take halves of weights out."""
        gate: Any = program.equations[self.gate]
        (out,) = gate.outvars
        values = [out, *([self.first.value, self.second.value] if self.keeps else [])]
        members = (*self.first.members, *self.second.members, *self.inside, self.gate)
        chains = self.first, self.second
        if self.halves is None:
            lhs, rhs = program.equations[self.first.product].invars
            variables = [lhs, rhs, program.equations[self.second.product].invars[1]]
            return [rewritten_equation(program, self.gate, chains, members, variables, values, self.epilogue)]
        in_front, variables = self.halves.operands(program)
        original = self.halves.original(program, members, variables, values)
        of_all = program, self.gate, chains, members, variables, values, self.epilogue
        return [*in_front, rewritten_equation(*of_all, original=original)]


def pair_from(
    program: Program,
    index: int,
    parameters: Mapping[str, Any],
    product_at: Callable[[Program, int, Mapping[str, Any]], Chain | None] = linear_chain,
) -> Pair | None:
    """The gated layer whose activated product is an equation's; None if there is none.

    Args:
      program: where it stands.
      index: of the equation.
      parameters: of a product of lax: what `Options.parameters` gives.
      product_at: what finds a product, and the conversion behind it.
    """
    first = product_at(program, index, parameters)
    if first is None:
        return None

    def second_at(value: Any) -> Chain | None:
        made_by = program.made_by.get(value)
        while made_by is not None and _is_conversion(program.equations[made_by]):
            (given,) = program.equations[made_by].invars
            made_by = program.made_by.get(given) if isinstance(given, Var) else None
        second = None if made_by is None else product_at(program, made_by, parameters)
        names = program.flat.names
        if second is None or names.get(second.value, second.value) is not names.get(value, value):
            return None
        if not _are_alike(program, first, second):
            return None
        return second if _may_be_one(program, *sorted((first.product, second.product))) else None

    pair = _pair(program, first, second_at)
    halves = halves_of(program, first) if pair is None and product_at is linear_chain else None
    for one in () if halves is None else (halves, halves.turned):
        pair = pair or _pair(program, one.chains[0], one.other, one)
    return pair


def _is_conversion(equation: JaxprEqn) -> bool:
    """Whether an equation only gives what it reads another type, or a name."""
    return equation.primitive.name == "convert_element_type" or is_same(equation)


def _pair(
    program: Program, first: Chain, second_at: Callable[[Any], Chain | None], halves: Halves | None = None
) -> Pair | None:
    """The gated layer with an activated product; None if there is none.

    Args:
      program: where it stands.
      first: the product.
      second_at: the other one that makes a value, if there is one.
      halves: whose halves both are; None: they are two products.
    """
    for activation, inside, value in (("none", (), first.value), *activations_of(program, first.value)):
        for gate, other in _gates(program, value):
            second = second_at(other)
            if second is None:
                continue
            alone = {*first.members, *second.members, *inside, gate}
            made = (x for i in inside for x in program.equations[i].outvars)
            keeps = any(not set(program.readers.get(x, ())) <= alone for x in (first.value, second.value, *made))
            (result,) = program.equations[gate].outvars
            if keeps and any(program.is_stacked(x.value, result) for x in (first, second)):
                continue
            return Pair(first, second, activation, tuple(inside), gate, keeps, halves)
    return None


def _gates(program: Program, value: Any) -> Iterator[tuple[int, Any]]:
    """The equations that multiply a value with another variable, and that variable."""
    for index in program.readers.get(value, ()):
        if index < len(program.equations) and index not in program.taken:
            equation: Any = program.equations[index]
            others = [x for x in equation.invars if x is not value]
            if equation.primitive.name == "mul" and len(others) == 1 and isinstance(others[0], Var):
                yield index, others[0]


def _may_be_one(program: Program, earlier: int, later: int) -> bool:
    """Whether an equation may stand for two: neither needs what the other makes, and all between them may move.

    What makes an operand of the later one moves in front of what reads the earlier one.
    """
    made = set(program.equations[earlier].outvars)
    for equation in program.equations[earlier + 1 : later]:
        if _has_effects(equation):
            return False
        if any(isinstance(x, Var) and x in made for x in equation.invars):
            made.update(equation.outvars)
    return all(x not in made for x in program.equations[later].invars if isinstance(x, Var))


def _has_effects(equation: JaxprEqn) -> bool:
    """Whether an equation keeps its place among others, by more than what it reads; names of axes are no reason."""
    return keep_their_place(equation.effects)


def _are_alike(program: Program, first: Chain, second: Chain) -> bool:
    """Whether two products differ in nothing but their right operand."""
    (left, right, *rest), (other_left, other_right, *others) = (
        program.equations[x.product].invars for x in (first, second)
    )

    def type_of(variable: Any) -> tuple[Any, Any]:
        return aval_of(variable).shape, aval_of(variable).dtype

    return (
        first.product != second.product
        and first.of_product == second.of_product
        and all(one is other for one, other in zip([left, *rest], [other_left, *others], strict=True))
        and right is not other_right
        and type_of(right) == type_of(other_right)
        and type_of(first.value) == type_of(second.value)
    )


# ------------------------------------------------------------------------------------------------------- cotangents


@dataclasses.dataclass(frozen=True)
class Cotangents:
    """Both cotangents of a gated layer.

    Attributes:
      chain: the product.
      derivative: a key of DERIVATIVES.
      gate: what the activation is applied to.
      up: the other factor.
      members: the indices of the equations that it stands for.
      activation: those of the activation's equations.
      d_gate: the cotangent of gate.
      d_up: that of up.
    """

    chain: Chain
    derivative: str
    gate: Any
    up: Any
    members: tuple[int, ...]
    activation: tuple[int, ...]
    d_gate: Any
    d_up: Any

    @property
    def place(self) -> int:
        """The index of the equation in whose place it stands."""
        return max(self.members)

    def beside(self, program: Program) -> frozenset[int]:
        """The indices of the equations that make what it reads, and of the activation's."""
        made = (program.made_by[x] for x in (self.gate, self.up) if x in program.made_by)
        return frozenset([*self.activation, *made])

    def equation(self, program: Program) -> JaxprEqn:
        """What stands in their place."""
        variables = [*program.equations[self.chain.product].invars, self.gate, self.up]
        values, labels = [self.d_gate, self.d_up], parse_spec(self.chain.spec).out
        operands = ("c", labels), (MULTIPLIER, labels)
        epilogue = Epilogue(self.derivative, self.chain.alpha, 1.0, operands, keeps=True)
        return rewritten_equation(program, self.place, [self.chain], self.members, variables, values, epilogue)


def cotangents_from(program: Program, index: int, parameters: Mapping[str, Any]) -> Cotangents | None:
    """The cotangents that are made of an equation's product; None if there are none.

    Args:
      program: where it stands.
      index: of the equation.
      parameters: of a product of lax: what `Options.parameters` gives.
    """
    chain = linear_chain(program, index, parameters)
    if chain is None or aval_of(chain.value).dtype.itemsize != 2:  # what no kernel writes
        return None
    readers = program.readers.get(chain.value, [])
    if len(set(readers)) != 2 or len(readers) != 2:
        return None
    for of_up, of_gate in (readers, readers[::-1]):
        found = _cotangents(program, chain, of_up, of_gate)
        if found is not None:
            return found
    return None


def _cotangents(program: Program, chain: Chain, of_up: int, of_gate: int) -> Cotangents | None:
    """The same, where it is known which of two equations makes the cotangent of up, and which one begins the other.

    Args:
      program: where they stand.
      chain: the product.
      of_up: index of the one.
      of_gate: of the other.
    """
    activated, d_up = _times(program, chain.value, of_up)
    other, between = _times(program, chain.value, of_gate)
    up = None if other is None else program.in_memory(other)
    if activated is None or up is None or not _is_made_before(program, chain, up):
        return None
    for name, gate, members, d_gate in derivatives_of(program, between):
        for activation, inside, value in activations_of(program, gate, taken=True):  # a kernel may write it, too
            is_it = value is activated and activation == DERIVATIVES[name]
            is_it = is_it and not all(_is_put_into_another(program, x) for x in (d_gate, d_up))
            if is_it and _is_made_before(program, chain, gate) and of_up not in members:
                all_members = *chain.members, of_up, of_gate, *members
                return Cotangents(chain, name, gate, up, all_members, tuple(inside), d_gate, d_up)
    return None


def _times(program: Program, value: Any, index: int) -> tuple[Any, Any]:
    """What an equation multiplies a value with, an array of its type, and what it makes; (None, None) if it is none."""
    if index >= len(program.equations) or index in program.taken:
        return None, None
    equation: Any = program.equations[index]
    others: Sequence[Any] = [x for x in equation.invars if x is not value]
    if equation.primitive.name != "mul" or len(others) != 1 or not isinstance(others[0], Var):
        return None, None
    (other,), (out,) = others, equation.outvars
    is_alike = aval_of(other).shape == aval_of(value).shape and aval_of(other).dtype == aval_of(value).dtype
    return (other, out) if is_alike else (None, None)


def _is_put_into_another(program: Program, value: Any) -> bool:
    """Whether nothing is made of a value but a larger array that it is part of."""
    while (index := program.only_reader(value)) is not None:
        equation: Any = program.equations[index]
        if equation.primitive.name in ("concatenate", "pad"):
            return True
        if equation.primitive.name not in ("broadcast_in_dim", "expand_dims", "reshape"):
            return False
        (value,) = equation.outvars
    return False


def _is_made_before(program: Program, chain: Chain, value: Any) -> bool:
    """Whether a value is there before the product, and so not made of a cotangent."""
    return program.made_by.get(value, -1) < chain.product


# -------------------------------------------------------------------------------------------------------------- order


def ordered(equations: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """The same equations, each behind those that make what it reads, else in their order.

    Args:
      equations: of a jaxpr, some of which may stand before what they read is made.

    Raises:
      ValueError: some need each other.
    """
    made_by: dict[Any, int] = {}
    for index, equation in enumerate(equations):
        made_by |= dict.fromkeys(equation.outvars, index)
    done: set[int] = set()
    result: list[JaxprEqn] = []
    for start in range(len(equations)):
        waiting, path = [start], set()
        while waiting:
            index = waiting[-1]
            needed = {made_by[x] for x in equations[index].invars if isinstance(x, Var) and x in made_by} - done
            if index in done or not needed:
                waiting.pop()
                if index not in done:
                    done.add(index)
                    result.append(equations[index])
                path.discard(index)
                continue
            if needed & path or index in needed:
                raise ValueError("equations of a program need each other")
            path.add(index)
            waiting += sorted(needed, reverse=True)
    return result
