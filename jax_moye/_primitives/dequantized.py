"""dequantized_p: a product by weights that the program dequantizes itself, and the equations that dequantize them.

`jax_moye.optimize` puts it in their place (dequantizing.py). Where a kernel for weights computes it, it is one custom
call, which reads the weights as they are in memory. Everywhere else it is the equations as they were, and so are its
derivatives and what it is under vmap, as those of rewritten_p.

It has other operands than weights_p: each array is read in the form in which the program has it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.interpreters import mlir

from jax_moye import _compat
from jax_moye._primitives.rewritten import Original, of_equations, of_local_equations
from jax_moye._primitives.weights import kernel_of_program


class Entries(NamedTuple):
    """Scales or zeros in a program: what their array, or number, says of a group of rows and a column of w.

    Attributes:
      groups: of rows of w, for which they differ; 1 where they do not.
      columns: of w, likewise.
      number: what they all are; None where an array says it, (groups, columns) behind a reshape.
    """

    groups: int
    columns: int
    number: float | None = None

    def as_read(self, arrays: Iterator[Any], groups: int, columns: int) -> Any:
        """As a kernel reads them, (groups, columns); numbers are f32.

        Args:
          arrays: of the program, of which these are the next one, if they are one.
          groups: of the product, a multiple of theirs.
          columns: of the product.
        """
        if self.number is not None:
            return jnp.full((groups, columns), self.number, jnp.float32)
        return jnp.broadcast_to(next(arrays).reshape(self.groups, self.columns), (groups, columns))


dequantized_p = of_equations("jax_moye_dequantized")


def groups_of(scales: Entries, zeros: Entries | None) -> int:
    """Of rows of w, of which one has a row of scales, and of zeros."""
    return max(scales.groups, 1 if zeros is None else zeros.groups)


def given_to_kernel(x: Any, w: Any, *rest: Any, k: int, scales: Entries, zeros: Entries | None) -> list[Any]:
    """The operands of a kernel: x (M,K), w (K,N), scales (groups,N), and zeros likewise, int8, if there are any."""
    n, groups, arrays = math.prod(w.shape) // k, groups_of(scales, zeros), iter(rest)
    found = [x.reshape(-1, k), w.reshape(k, n), scales.as_read(arrays, groups, n)]
    return found if zeros is None else [*found, zeros.as_read(arrays, groups, n).astype(jnp.int8)]


# ------------------------------------------------------------------------------------------------------- lowering

dequantized_local_p = of_local_equations("jax_moye_dequantized_local")


def _lower_local(platform, ctx, *values, original: Original, k: int, scales: Entries, zeros: Entries | None, **options):
    x, w, *_ = ctx.avals_in
    (out,) = ctx.avals_out
    run = kernel_of_program(x, w, groups_of(scales, zeros), k, platform, out_dtype=out.dtype, **options)

    if run is None:  # the product says itself who computes it, or that nobody may
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)

    def in_one(*operands):
        return [run(*given_to_kernel(*operands, k=k, scales=scales, zeros=zeros)).reshape(out.shape)]

    return mlir.lower_fun(in_one, multiple_results=True)(ctx, *values)


mlir.register_lowering(dequantized_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(dequantized_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(dequantized_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, *values, original: Original, **params):
    if _compat.why_not_local(ctx) is not None:
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    params |= {"original": original.on_one_device}
    return _compat.lower_equation(ctx, dequantized_local_p, values, ctx.avals_in, **params)


# Not cacheable: whether it is one device's depends on the place.
mlir.register_lowering(dequantized_p, _lower, cacheable=False)
