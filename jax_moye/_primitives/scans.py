"""Equations of scan: their operands, and others in the place of those."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jax_moye import _compat
from jax_moye._primitives.equations import body_of


class Scan:
    """An equation of scan.

    Attributes:
      equation: it.
      body: its jaxpr.
      consts: how many operands are the same in each iteration; they come first.
      carry: how many come then, and are the first outputs, too.
      first: the first of the other operands, which are stacked.
      length: the number of iterations.
      linear: by operand, whether the program is linear in it, which older versions of JAX say.
    """

    def __init__(self, equation: JaxprEqn) -> None:
        """Reads the parameters."""
        params: Any = equation.params
        described = _compat.scan_operands(params)
        assert described is not None
        self.equation = equation
        self.body: Jaxpr = body_of(params["jaxpr"])
        self.consts, self.carry, self.linear = described
        self.first = self.consts + self.carry
        self.length: int = params["length"]

    def operands(self) -> list[tuple[Any, Any, bool]]:
        """Each with its name in the body, and whether the program is linear in it."""
        return list(zip(self.equation.invars, self.body.invars, self.linear, strict=True))

    @property
    def stacked_results(self) -> list[Any]:
        """The outputs of the equation that are stacked."""
        return list(self.equation.outvars[self.carry :])

    def stacked(self, variable: Any) -> Any:
        """The name in the body of a stacked operand; None if it is none."""
        return next((y for x, y, _ in self.operands()[self.first :] if x is variable), None)

    def constant(self, variable: Any) -> Any:
        """Likewise of an operand that is the same in each iteration."""
        return next((y for x, y, _ in self.operands()[: self.consts] if x is variable), None)

    def replaced(
        self, operands: Sequence[tuple[Any, Any, bool]], consts: int, carry: int | None = None, **of_body: Any
    ) -> JaxprEqn:
        """The equation with other operands and another body, whose input names come from the operands.

        Args:
          operands: as `operands` gives them.
          consts: how many of them are the same in each iteration.
          carry: how many are the carry's then; None: as many as before.
          **of_body: what else of the body is another one.
        """
        carry = self.carry if carry is None else carry
        body = self.body.replace(invars=[inside for _, inside, _ in operands], **of_body)
        closed: Any = self.equation.params["jaxpr"]
        new = ClosedJaxpr(body, closed.consts) if isinstance(closed, ClosedJaxpr) else body
        described = _compat.ScanOperands(consts, carry, tuple(linear for _, _, linear in operands))
        params = _compat.scan_params(self.equation.params, described, new)
        return self.equation.replace(invars=[outside for outside, _, _ in operands], params=params)


def is_known(equation: JaxprEqn) -> bool:
    """Whether an equation is a scan whose parameters are known."""
    return equation.primitive.name == "scan" and _compat.scan_operands(equation.params) is not None


def bytes_of(variable: Any) -> int:
    aval = variable.aval
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 8)
