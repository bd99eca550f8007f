"""Lines of operands that TMA cannot read, padded by XLA.

TMA reads lines that begin at multiples of 16 bytes. Where an operand's do not, the program has a `pad` in front of the
kernel, and XLA makes one of it and of what computes the operand. So it is faster than a kernel of ours that copies
(cuda/gemm/pack.h), which is left to parts of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax


def padded(x: Any, sizes: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Any:
    """An operand with zeros behind each of its lines.

    Args:
      x: a row-major array; the operand may be the first part of it alone.
      sizes: of the operand, its batch's first.
      strides: of x along these, in elements.
      new: those that the kernel is launched with.

    Returns:
      An array of the new strides: x itself where they are the same.
    """
    if new == strides:
        return x
    length, pitch = _lines(sizes, strides, new)
    elements = math.prod(size for size, stride in zip(sizes, strides, strict=True) if stride)
    lines = x.reshape(-1)[:elements].reshape(-1, length)
    return lax.pad(lines, jnp.zeros((), x.dtype), ((0, 0, 0), (0, pitch - length, 0)))


def unpadded(x: Any, sizes: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Any:
    """A flat array of the lines of an operand, out of those that were padded.

    Args:
      x: flat, of the new strides; behind the last line nothing may be.
      sizes: as in `padded`.
      strides: likewise, of what is returned.
      new: likewise, of x.
    """
    if new == strides:
        return x
    length, pitch = _lines(sizes, strides, new)
    lines = jnp.pad(x, (0, -x.size % pitch)).reshape(-1, pitch)
    return lines[:, :length].reshape(-1)


def _lines(sizes: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> tuple[int, int]:
    """How many elements a line has, and from one padded line to the next."""
    length = next(size for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride == 1)
    old_stride, new_stride = next(pair for pair in zip(strides, new, strict=True) if len(set(pair)) > 1)
    return length, new_stride // (old_stride // length)
