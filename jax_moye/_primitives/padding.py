"""Lines of operands that TMA cannot read, padded by XLA.

TMA reads lines that begin at multiples of 16 bytes. Where an operand's do not, the program has a `pad` in front of the
kernel, and XLA makes one of it and of what computes the operand. So it is faster than a kernel of ours that copies
(cuda/gemm/pack.h), which is left to parts of arrays.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_moye._selection.problem import GemmProblem


def padded(x: Any, name: str, problem: GemmProblem, launched: GemmProblem) -> Any:
    """An operand with zeros behind each of its lines.

    Args:
      x: a row-major array; the operand may be the first part of it alone.
      name: "a" or "b".
      problem: which it is an operand of.
      launched: what the kernel computes.

    Returns:
      An operand of `launched`: x itself where its strides are the same.
    """
    sizes = (*problem.batch_sizes, problem.m if name == "a" else problem.n, problem.k)
    strides, new = problem.strides[name], launched.strides[name]
    if new == strides:
        return x
    length = next(size for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride == 1)
    elements = math.prod(size for size, stride in zip(sizes, strides, strict=True) if stride)
    old_stride, new_stride = next(pair for pair in zip(strides, new, strict=True) if len(set(pair)) > 1)
    pitch = new_stride // (old_stride // length)  # of lines
    lines = x.reshape(-1)[:elements].reshape(-1, length)
    return lax.pad(lines, jnp.zeros((), x.dtype), ((0, 0, 0), (0, pitch - length, 0)))
