"""Operands that are parts of larger arrays: which kernel reads them where they are.

Who computes such a product is decided as if its operands lay dense in memory, in the same order of dimensions: that is
what is measured, and what `tune` knows. XLA, too, would write the parts to memory first. A kernel that wins then reads
them in place where that is the same matrix multiplication, of the same sizes and contiguous modes: only the distances
between rows, or matrices, are larger. Where the offset or the strides are not aligned for the config that won, another
one takes its place if the model expects it to be faster than the copies and the one that won.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jax_moye._selection.capability import LoweringTarget, why_not
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.decide import Decision, KernelCall, predicted, problem_for
from jax_moye._selection.precision import Arithmetic
from jax_moye._selection.problem import GemmProblem, NotServedError, make_problem
from jax_moye._selection.ranking import select
from jax_moye._selection.request import Operand, Operands
from jax_moye._selection.view import View


def in_place(decision: Decision, views: Sequence[View | None], target: LoweringTarget) -> KernelCall | None:
    """How a kernel reads the operands of a product where they are; None if they are written to memory first.

    Args:
      decision: about the product of operands as `Operand.written` has them.
      views: of lhs and rhs, and of a second right-hand operand, which is in its array as rhs is in its own, but for the
        offset. None: the operand is no part of an array.
      target: what is lowered for.
    """
    request, call = decision.request, decision.call
    if decision.kind != "kernel" or call is None or call.split:
        return None
    dense = call.problem
    sides = zip(call.operands, views[:2], dense.in_memory, strict=True)
    if any(view is not None and np.dtype(operand.dtype) != dtype for operand, view, dtype in sides):
        return None  # the conversion of a part is one of all of the array
    left, right = (
        operand if view is None else Operand(view.source, operand.dtype, view=view)
        for operand, view in zip(call.operands, views[:2], strict=True)
    )
    arithmetic = Arithmetic(dense.of_lhs_and_rhs, dense.sums)
    try:
        problem, strides = problem_for(request, (left, right), arithmetic, target)
    except NotServedError:
        return None
    if not _is_same(dense, problem):
        return None
    if len(views) > 2 and views[2] is not None:
        offsets = (*(problem.offsets or (0, 0)), views[2].offset)
        problem = dataclasses.replace(problem, offsets=offsets if any(offsets) else ())
    own = KernelCall(problem, call.config, False, (left, right), call.epilogue, strides)
    return _able(own, decision, views, target)


def _is_same(one: GemmProblem, other: GemmProblem) -> bool:
    """Whether two problems are one matrix multiplication, but for how far apart rows and matrices are in memory."""
    facts = ("batch", "m", "n", "k", "swapped", "order")
    return all(getattr(one, name) == getattr(other, name) for name in facts)


def _able(
    own: KernelCall, decision: Decision, views: Sequence[View | None], target: LoweringTarget
) -> KernelCall | None:
    """The call with a config that reads operands in place; None if none does, or copies are expected to be faster."""
    request, dense, problem = decision.request, decision.call, own.problem
    assert dense is not None
    if why_not(own.config, problem, target.arch) is None:
        return own
    if request.config is not None or request.batch_invariant:
        return None
    try:
        config = select(problem, target.arch, target.configs)
    except NotServedError:
        return None
    copied = sum(2 * math.prod(view.shape) * np.dtype(dense.operands[0].dtype).itemsize for view in views if view)
    copied_us = predicted(dense.problem, dense.config, False, target.arch) + elementwise_us(copied)
    is_faster = predicted(problem, config, False, target.arch) <= copied_us
    return dataclasses.replace(own, config=config) if is_faster else None


def is_possible(spec: str, operands: Operands) -> bool:
    """Whether the product of parts of arrays is the one of dense operands, as far as that is known without dtypes."""
    if not all(isinstance(size, int) and size > 0 for x in operands for size in x.seen_shape):
        return False
    try:
        dense, problem = (
            make_problem(
                spec,
                left.seen_shape,
                right.seen_shape,
                "bf16",
                "bf16",
                left.permutation,
                right.permutation,
                views=(left.view, right.view),
            )
            for left, right in ((operands[0].written, operands[1].written), operands)
        )
    except NotServedError:
        return False
    return _is_same(dense, problem)
