"""The GPU that a program for CUDA is lowered for."""

from __future__ import annotations

import contextlib
import os

import jax

from jax_moye import _compat

DEFAULT_ARCH = 90  # where there is no GPU and nobody says which one is meant: an H100 or H200
VARIABLE = "JAX_MOYE_CUDA_ARCH"

# What is said where `is_assumed`.
ASSUMED = "JAX sees no GPU here: one {kind} is assumed. device= (--device) names another."

# Part of the key of JAX's caches: the programs of two targets are two programs.
_context = jax.make_user_context(default_value=None)


def cuda_target(arch: int) -> contextlib.AbstractContextManager[None]:
    """In the block, programs for CUDA are lowered for a GPU of this architecture, whichever GPU there is.

    Outside of such blocks it is the one of this process's GPUs, the lowest where there are several. A process without
    any can lower and export programs, too: for the architecture that the environment variable JAX_MOYE_CUDA_ARCH names,
    and for an H100 or H200 (90) where it names none. The choice of kernels depends on it, and a kernel ends with an
    error on a GPU that it has no code for.

    Args:
      arch: ten times the compute capability, e.g. 80 for an A100, 89 for an L4, 90 for an H200.

    Returns:
      A context manager.

    Raises:
      TypeError: arch is not an int.
      ValueError: arch is below 10.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> a = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
      >>> program = jax.jit(lambda a: jax_moye.matmul(a, a, implementation="moye")).trace(a)
      >>> with jax_moye.cuda_target(80):
      ...     text = program.lower(lowering_platforms=("cuda",)).as_text()
      >>> "sm80_" in text, "sm90_" in text
      (True, False)
    """
    if isinstance(arch, bool) or not isinstance(arch, int):
        raise TypeError(f"cuda_target: arch is an int such as 90, not {arch!r}")
    if arch < 10:
        raise ValueError(f"cuda_target: arch is ten times the compute capability, such as 90, not {arch}")
    return _context(arch)


def cuda_arch() -> int:
    """The architecture that a program for CUDA is lowered for, e.g. 90. Called while lowering.

    Raises:
      ValueError: JAX_MOYE_CUDA_ARCH is not a number.
    """
    if _context.value is not None:
        return _context.value
    arch = _compat.cuda_arch()
    if arch is not None:
        return arch
    value = os.environ.get(VARIABLE) or str(DEFAULT_ARCH)  # set to nothing is not set
    if not value.isdecimal() or int(value) < 10:
        raise ValueError(f"{VARIABLE} is an architecture such as 90, not {value!r}")
    return int(value)


def is_assumed() -> bool:
    """Whether `cuda_arch` is nothing but `DEFAULT_ARCH`: there is no GPU, and nobody says which one is meant."""
    return _context.value is None and _compat.cuda_arch() is None and not os.environ.get(VARIABLE)
