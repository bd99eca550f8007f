"""Saved programs: what `jax.export` must be told, and what a process that loads one must do first."""

from __future__ import annotations

from typing import Literal

from jax.export import DisabledSafetyCheck

from jax_moye._kernels import ffi

# For `jax.export.export(..., disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)`: JAX refuses custom calls whose owner
# promises nothing. We promise that a target's name keeps its meaning: another meaning gets another name, and the old
# one stays.
EXPORT_DISABLED_CHECKS = tuple(
    DisabledSafetyCheck.custom_call(target)
    for target in (
        ffi.TARGET,
        ffi.FUSED_TARGET,
        ffi.SCALED_TARGET,
        ffi.VIEW_TARGET,
        ffi.GROUPED_TARGET,
        ffi.SCALED_GROUPED_TARGET,
        ffi.SCATTERED_GROUPED_TARGET,
        ffi.WEIGHTS_TARGET,
        ffi.BLOCK_SCALED_TARGET,
        ffi.ATTENTION_TARGET,
        ffi.ATTENTION_GRAD_TARGET,
        ffi.VIEW_ATTENTION_TARGET,
        ffi.VIEW_ATTENTION_GRAD_TARGET,
        ffi.JOINED_ATTENTION_GRAD_TARGET,
        ffi.BIASED_ATTENTION_TARGET,
        ffi.BIASED_ATTENTION_GRAD_TARGET,
        ffi.CAPPED_ATTENTION_TARGET,
        ffi.CAPPED_ATTENTION_GRAD_TARGET,
        ffi.DROPPED_ATTENTION_TARGET,
        ffi.DROPPED_ATTENTION_GRAD_TARGET,
    )
)


def register(platform: Literal["cpu", "cuda"] | None = None) -> None:
    """Makes our kernels known to XLA, for a program that was compiled or exported elsewhere.

    A program that is traced in this process needs no such call. One that comes from `jax.export.deserialize` or
    `jax.experimental.serialize_executable` does, unless it is for CUDA: `import jax_moye` is enough there. Without it
    XLA says "No FFI handler registered for jax_moye_gemm_v1".

    Args:
      platform: "cpu", the emulator of programs with interpret=True; "cuda", the kernels; None, what this jax_moye has.

    Raises:
      ValueError: the platform is neither.
      NotImplementedError: this jax_moye has no kernels for it that the installed jaxlib can call; the message says why.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> fun = jax.jit(lambda a: jax_moye.matmul(a, a, interpret=True))
      >>> exported = jax.export.export(fun, disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)
      >>> saved = exported(jax.ShapeDtypeStruct((2, 2), jnp.float32)).serialize()
      >>> jax_moye.register()  # in the process that loads it
      >>> jax.export.deserialize(saved).call(jnp.ones((2, 2))).tolist()
      [[2.0, 2.0], [2.0, 2.0]]
    """
    if platform not in (None, "cpu", "cuda"):
        raise ValueError(f"register: platform is 'cpu', 'cuda' or None, not {platform!r}")
    if platform is not None and (reason := ffi.why_unavailable(platform)) is not None:
        raise NotImplementedError(f"register: {reason}")
    for name in ("cpu", "cuda") if platform is None else (platform,):
        ffi.register(name)
