"""The backward pass of a gated layer: the cotangents of both products, which are made of one, as one equation.

    d_h    = d_y @ w                                 of h = activation(gate) * up
    d_up   = d_h * activation(gate)                  rewritten_p with gate as the epilogue's c, up as its MULTIPLIER,
    d_gate = (d_h * up) * activation'(gate)          and two results, d_gate first

Nobody else reads d_h, nor d_h * up. gate and up are in memory: products of ours write them, or the program is given
them. The equations of activation(gate) stay, for who else reads what they make.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
from jax_moye._primitives.patterns import Program
from jax_moye._selection.epilogue import DERIVATIVES, MULTIPLIER, Epilogue
from jax_moye._selection.problem import parse_spec


@dataclasses.dataclass(frozen=True)
class Gate:
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


def gate_from(program: Program, index: int, parameters: Mapping[str, Any]) -> Gate | None:
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
        found = _gate(program, chain, of_up, of_gate)
        if found is not None:
            return found
    return None


def _gate(program: Program, chain: Chain, of_up: int, of_gate: int) -> Gate | None:
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
            if is_it and _is_made_before(program, chain, gate) and of_up not in members:
                members = *chain.members, of_up, of_gate, *members
                return Gate(chain, name, gate, up, members, tuple(inside), d_gate, d_up)
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


def _is_made_before(program: Program, chain: Chain, value: Any) -> bool:
    """Whether a value is there before the product, and so not made of a cotangent."""
    return program.made_by.get(value, -1) < chain.product
