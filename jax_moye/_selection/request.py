"""What a caller asks for: the product, the options, and what is in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp

from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection.epilogue import Epilogue, compute_dtype
from jax_moye._selection.problem import parse_spec
from jax_moye._selection.view import View


@dataclasses.dataclass(frozen=True)
class Operand:
    """What is in memory, and the transpose behind it, or which part of it is meant.

    Attributes:
      shape: of the row-major array in memory.
      dtype: of its elements.
      permutation: the operand is `transpose(array, permutation)`; None where it is the array.
      view: which part of the array the operand is, without a permutation; None where it is all of it.
    """

    shape: tuple[Any, ...]
    dtype: Any
    permutation: tuple[int, ...] | None = None
    view: View | None = None

    @property
    def seen_shape(self) -> tuple[Any, ...]:
        """The shape that the specification names."""
        if self.view is not None:
            return self.view.shape
        return self.shape if self.permutation is None else tuple(self.shape[axis] for axis in self.permutation)

    @property
    def transposed(self) -> Operand:
        """The same operand where the transpose was written to memory."""
        return self if self.permutation is None else Operand(self.seen_shape, self.dtype)

    @property
    def written(self) -> Operand:
        """The same operand where the part of the array was written to memory, its dimensions in their order there."""
        if self.view is None:
            return self
        order, shape = self.view.order, self.view.shape
        if order == tuple(range(len(order))):
            return Operand(shape, self.dtype)
        permutation = tuple(order.index(dim) for dim in range(len(order)))
        return Operand(tuple(shape[dim] for dim in order), self.dtype, permutation)


Operands = tuple[Operand, Operand]


@dataclasses.dataclass(frozen=True)
class Request:
    """What the caller asked for.

    Attributes:
      spec: e.g. "bmk,kn->bmn".
      out_dtype: of the result.
      precision: None, a pair of lax.Precision, a lax.DotAlgorithmPreset or a lax.DotAlgorithm.
      config: name of a config, or None.
      implementation: None, "moye" or "xla".
      interpret: None where no emulator is asked for.
      beta: of a third operand c, out = lhs rhs + beta c; 0.0 where there is none.
      deterministic: the same operands give the same bits in every run.
      batch_invariant: a row's bits depend neither on m nor on the other rows.
      epilogue: of a fused product, else None.
      autotune: "on", "cached" or "off", as in `options`; None: as the environment says.
      keeps_c: somebody else reads c, too, so that the result is not written over it.
      lasting: of lhs, rhs and others, whether it is what the program was given, which nothing writes while it runs.
      xlas_orders: of lhs and rhs, the transpose to the order in which XLA would write it for a product of its own; None
        where it lies so, or is not XLA's to write.
      alone: what is asked for of the product where no kernel finishes it, as the program had it that `optimize` was
        given. None where the epilogue is the caller's: sums are not rounded then before they are finished.
    """

    spec: str
    out_dtype: Any
    precision: Any
    config: str | None
    implementation: Literal["moye", "xla"] | None
    interpret: InterpretParams | None
    beta: float = 0.0
    deterministic: bool = False
    batch_invariant: bool = False
    epilogue: Epilogue | None = None
    autotune: Literal["on", "cached", "off"] | None = None
    keeps_c: bool = False
    lasting: tuple[bool, ...] = ()
    xlas_orders: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    alone: Request | None = None

    def lasting_where(self, as_it_was: Sequence[bool]) -> Request:
        """The same, where only these operands are still as the program was given them."""
        lasting = tuple(lasts and same for lasts, same in zip(self.lasting, as_it_was, strict=False))
        return self if lasting == self.lasting else dataclasses.replace(self, lasting=lasting)

    @property
    def insists(self) -> bool:
        """Whether the caller wants our kernels where XLA may be faster, too."""
        return self.implementation == "moye" or self.config is not None or self.batch_invariant

    def without_epilogue(self, operand_dtype: Any) -> Request:
        """The product alone, in the dtype in which XLA then finishes it.

        Args:
          operand_dtype: of both operands.
        """
        if self.alone is not None:
            return self.alone
        if self.epilogue is None:
            return self
        return dataclasses.replace(self, out_dtype=compute_dtype(operand_dtype, self.out_dtype), epilogue=None)


def label_sizes(spec: str, operands: Operands) -> dict[str, Any]:
    """The size of each label of a specification."""
    sizes: dict[str, Any] = {}
    for labels, operand in zip(parse_spec(spec)[:2], operands, strict=True):
        sizes |= zip(labels, operand.seen_shape, strict=True)
    return sizes


def describe(request: Request, operands: Operands) -> str:
    """The contraction in a message."""
    left, right = (f"{jnp.dtype(x.dtype)}{list(x.seen_shape)}" for x in operands)
    what = f"{request.spec} on {left} and {right}"
    if request.beta != 0:
        what += f" plus {request.beta} c"
    return f"{what} into {jnp.dtype(request.out_dtype)}"
