"""matmul: the product of jax.numpy, through our kernels."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from jax_moye._api.arguments import ProductOptions, as_array, jitted_where_eager, product_options, weakly_promoted
from jax_moye._api.types import ArrayOperand, Config, Implementation, Interpret, OutSharding
from jax_moye._primitives.contraction import contract
from jax_moye._selection.problem import labels


def matmul(
    a: ArrayOperand,
    b: ArrayOperand,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Multiplies two arrays as `jax.numpy.matmul` does, through jax_moye's kernels.

    It works under jit, grad, jvp, vmap, scan, checkpoint and the rest of JAX. The answer is never less precise than
    asked for: products of bf16 and f16 operands are exact and summed in f32, f32 and f64 kernels use fused
    multiply-adds, int8 ones sum in int32. Where JAX itself computes in less, we may: float32 at default precision on a
    GPU is multiplied as TF32, and F16_F16_F16 may sum in float16.

    On several devices each multiplies the parts that it has: split batch, M and N need no communication, a K that is
    split in both operands one all-reduce, or a reduce-scatter where `out_sharding` or the partitioner asks for that
    result. That goes for explicit meshes, for automatic ones, and inside a shard_map over all mesh axes; other
    shard_maps and meshes of both kinds of axes are XLA's. docs/sharding.md has the tables.

    Args:
      a: (..., M, K) or (K,), an array of any dtype.
      b: (..., K, N) or (K,). Leading dimensions broadcast against a's, and what is broadcast is not copied.
      precision: as in `jax.lax.dot_general`; None means `jax_default_matmul_precision`. On CUDA, f32 operands are
        multiplied as TF32 at default precision, as JAX does, in three products of TF32 parts at "high" (an error of
        f32's class; JAX has TF32 there), and exactly at "highest": by fused multiply-adds, or on sm_90 with their error
        as parts of bfloat16. In the emulator f32 is exact unless TF32_TF32_F32 or TF32_TF32_F32_X3 is asked for.
        docs/precision.md has all of them.
      preferred_element_type: dtype of the result, by default a's and b's promoted. f32 from bf16 and f16 operands costs
        nothing.
      out_sharding: a jax.P or jax.NamedSharding for the result, under a mesh with explicit axes.
      config: one of `jax_moye.configs()`, what `jax_moye.kernel` returned, or a name: the kernel to use. For this
        product, not for its derivatives.
      implementation: None uses our kernel where it is known to be faster and XLA elsewhere, said once in the log of
        "jax_moye"; "moye" insists on our kernel; "xla" is `lax.dot_general`.
      interpret: True, or InterpretParams, runs the kernel in jax_moye's emulator, in a program for the CPU. False runs
        none. None, here and in implementation, deterministic and batch_invariant, means what `jax_moye.options` says
        for this block of code.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that a row's bits depend neither on M nor on the other rows.

    Returns:
      (..., M, N); without M where a is 1-D, without N where b is 1-D.

    Raises:
      TypeError: a or b is not an array, the contracted dimensions differ, or an option has the wrong type; as
        `jnp.matmul`, whose order of errors it is.
      ValueError: the shapes do not fit otherwise, an option has an unknown value or contradicts another one, or the
        config cannot compute this.
      NotImplementedError: implementation="moye", and no kernel computes this, or none runs there; the message says
        why. Also where a contract is asked for that XLA would break, and where interpret is asked for in a program for
        a GPU.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> a = jnp.ones((3, 4), jnp.bfloat16)
      >>> jax_moye.matmul(a, a.T, interpret=True).shape
      (3, 3)
    """
    lhs, rhs = as_array("matmul", "a", a, numbers=True), as_array("matmul", "b", b, numbers=True)
    if not lhs.shape or not rhs.shape:
        raise ValueError(f"{_given(lhs.shape, rhs.shape)}: both need at least one dimension")
    options = product_options(
        "matmul",
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )
    return _matmul(lhs, rhs, options=options)


@jitted_where_eager("options")
def _matmul(a: Any, b: Any, *, options: ProductOptions) -> jax.Array:
    out_dtype = options.preferred_element_type
    if out_dtype is None:  # else the result has no weak type
        a, b = weakly_promoted(a, b)
    squeeze_a, squeeze_b, spec = _contraction(a.shape, b.shape)
    product = contract(
        spec,
        lax.squeeze(a, squeeze_a) if squeeze_a else a,
        lax.squeeze(b, squeeze_b) if squeeze_b else b,
        out_dtype=jnp.result_type(a, b) if out_dtype is None else out_dtype,
        **options.parameters(),
    )
    return product if out_dtype is None else lax.convert_element_type(product, out_dtype)  # no weak type then


def _given(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> str:
    return f"matmul: a has shape {a_shape} and b has shape {b_shape}"


@functools.lru_cache(maxsize=4096)
def _contraction(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """The dimensions of size 1 to drop from a and from b, since they broadcast, and the specification of the rest.

    Raises:
      TypeError: the contracted dimensions differ.
      ValueError: the others do not broadcast.
    """
    given = _given(a_shape, b_shape)
    b_contracted = b_shape[0] if len(b_shape) == 1 else b_shape[-2]
    if a_shape[-1] != b_contracted:
        which = "last" if len(b_shape) == 1 else "last but one"
        raise TypeError(
            f"{given}: the last dimension of a and the {which} of b differ, {a_shape[-1]} != {b_contracted}"
        )

    a_batch, b_batch = a_shape[:-2], b_shape[:-2]
    rank = max(len(a_batch), len(b_batch))
    batch_labels = (label for label in labels() if label not in "kmn")
    squeezed: tuple[list[int], list[int]] = ([], [])
    spec_a = spec_b = spec_out = ""
    for i in range(rank):
        label = next(batch_labels)
        i_a, i_b = i - rank + len(a_batch), i - rank + len(b_batch)
        size_a = a_batch[i_a] if i_a >= 0 else None
        size_b = b_batch[i_b] if i_b >= 0 else None
        spec_out += label
        if size_a is not None and size_b is not None and size_a != size_b:
            if size_a == 1:
                squeezed[0].append(i_a)
                size_a = None
            elif size_b == 1:
                squeezed[1].append(i_b)
                size_b = None
            else:
                raise ValueError(f"{given}: leading dimensions {size_a} and {size_b} neither agree nor broadcast")
        spec_a += label if size_a is not None else ""
        spec_b += label if size_b is not None else ""
    m = "m" if len(a_shape) > 1 else ""
    n = "n" if len(b_shape) > 1 else ""
    return tuple(squeezed[0]), tuple(squeezed[1]), f"{spec_a}{m}k,{spec_b}k{n}->{spec_out}{m}{n}"
