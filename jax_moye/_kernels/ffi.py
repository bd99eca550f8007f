"""Registration of the compiled handlers with XLA."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import threading
from collections.abc import Sequence
from types import ModuleType

import jax

from jax_moye._kernels import runtime
from jax_moye._log import logger

TARGET = "jax_moye_gemm_v1"  # of both platforms; a change of the attributes gets a new name, so that old exports load
FUSED_TARGET = "jax_moye_fused_gemm_v1"  # likewise; ffi/handlers.h says what it computes
SCALED_TARGET = "jax_moye_scaled_gemm_v1"  # likewise
VIEW_TARGET = "jax_moye_view_gemm_v1"  # likewise
GROUPED_TARGET = "jax_moye_grouped_gemm_v1"  # likewise
SCALED_GROUPED_TARGET = "jax_moye_scaled_grouped_gemm_v1"  # likewise
SCATTERED_GROUPED_TARGET = "jax_moye_scattered_grouped_gemm_v1"  # likewise
WEIGHTS_TARGET = "jax_moye_weights_gemm_v1"  # likewise
BLOCK_SCALED_TARGET = "jax_moye_block_scaled_gemm_v1"  # likewise
ATTENTION_TARGET = "jax_moye_attention_v1"  # likewise
ATTENTION_GRAD_TARGET = "jax_moye_attention_grad_v1"  # likewise
VIEW_ATTENTION_TARGET = "jax_moye_view_attention_v1"  # likewise
VIEW_ATTENTION_GRAD_TARGET = "jax_moye_view_attention_grad_v1"  # likewise
JOINED_ATTENTION_GRAD_TARGET = "jax_moye_joined_attention_grad_v1"  # likewise
BIASED_ATTENTION_TARGET = "jax_moye_biased_attention_v1"  # likewise
BIASED_ATTENTION_GRAD_TARGET = "jax_moye_biased_attention_grad_v1"  # likewise
CAPPED_ATTENTION_TARGET = "jax_moye_capped_attention_v1"  # likewise
CAPPED_ATTENTION_GRAD_TARGET = "jax_moye_capped_attention_grad_v1"  # likewise
DROPPED_ATTENTION_TARGET = "jax_moye_dropped_attention_v1"  # likewise
DROPPED_ATTENTION_GRAD_TARGET = "jax_moye_dropped_attention_grad_v1"  # likewise
PREFIX = "jax_moye_"  # of all of them
MARK_TARGET = "jax_moye_mark_v1"  # CUDA's alone, of no user's program

_lock = threading.Lock()
_registered: set[str] = set()


@functools.cache
def extension(platform: str) -> ModuleType | None:
    """The extension module of a platform, "cpu" or "cuda"; None where it was not built."""
    if platform == "cpu":
        from jax_moye import _moye_cpu

        return _moye_cpu
    if platform == "cuda" and importlib.util.find_spec("jax_moye._moye_cuda") is not None:
        from jax_moye import _moye_cuda

        return _moye_cuda
    return None


@functools.cache
def why_unavailable(platform: str) -> str | None:
    """Why no kernel of a platform can run in this process; None if nothing speaks against it."""
    module = extension(platform)
    if module is None:
        hint = ": JAX_MOYE_CUDA=ON, or a GPU, at the time of `pip install .` builds them" if platform == "cuda" else ""
        return f"this jax_moye was built without kernels for {platform}{hint}"
    handler, spoken = tuple(module.api_version), runtime.ffi_version()
    if spoken is not None and (handler[0] != spoken[0] or handler > spoken):
        return (
            f"this jax_moye was built for version {handler[0]}.{handler[1]} of XLA's FFI, and the installed jaxlib has "
            f"{spoken[0]}.{spoken[1]}: build jax_moye against this jaxlib, or install a newer jax"
        )
    return None


@functools.cache
def built(platform: str) -> frozenset[str] | None:
    """The names of the configs that a platform's module has; None where there is no module.

    A CUDA module may have fewer than the emulator: code of sm_90a is in no build for sm_80.
    """
    module = extension(platform)
    return None if module is None else frozenset(config["name"] for config in module.configs())


def workspace_bytes(
    config: str,
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    out_dtype: str,
    offsets: Sequence[int] = (),
) -> int:
    """Bytes of workspace that a call needs. The CPU module knows all kernels.

    Args:
      config: its name.
      sizes: (batch modes..., m, n, k), one to three of the batch.
      strides: of a (batch modes..., m, k), b (batch modes..., n, k) and d (batch modes..., m, n), in elements.
      out_dtype: of d, e.g. "bf16".
      offsets: of a and b, as `GemmProblem` has them.
    """
    module = extension("cpu")
    assert module is not None
    return module.workspace_bytes(config, sizes, *strides, out_dtype, *offsets[:2])


def k_parts(config: str, sizes: Sequence[int], strides: Sequence[Sequence[int]], out_dtype: str) -> int:
    """Into how many parts a kernel that splits k by a call's sizes splits it: what its workspace has room for.

    The arguments are those of `workspace_bytes`, of a config that packs nothing.
    """
    *batch, m, n, _k = sizes
    row_bytes = -(-n // 4) * 16  # of f32 sums, whole vectors
    return max(1, workspace_bytes(config, sizes, strides, out_dtype) // max(1, math.prod(batch) * m * row_bytes))


def register(platform: str) -> None:
    """Registers the handlers of a platform, once. Call it before loading a program that was compiled elsewhere.

    A handler that XLA refuses takes the whole backend down when it starts, hence nothing is registered where
    `why_unavailable` has a reason.
    """
    with _lock:
        if platform in _registered or why_unavailable(platform) is not None:
            return
        module = extension(platform)
        assert module is not None
        handlers = module.recording_handlers() if platform == "cuda" and records_calls() else module.handlers()
        for name, stages in handlers.items():
            jax.ffi.register_ffi_target(name, stages, platform={"cuda": "CUDA"}.get(platform, platform))
        _registered.add(platform)


def records_calls() -> bool:
    """Whether calls become nodes of XLA's CUDA graphs, not captures of a stream, so that small products end earlier.

    Where the runtime can, unless JAX_MOYE_RECORD_CALLS=0.
    """
    return os.environ.get("JAX_MOYE_RECORD_CALLS") != "0" and runtime.records_calls()


def register_cuda() -> None:
    """Registers the CUDA handlers if they were built; JAX holds them back until its CUDA backend starts."""
    try:
        register("cuda")
    except ImportError as error:  # e.g. a module of another build
        logger.warning("jax_moye: the CUDA kernels cannot be loaded: %s", error)
