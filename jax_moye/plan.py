"""Which kernel computes a contraction on one device, or why none of ours does."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal

import jax.numpy as jnp
from jax import lax

from jax_moye import _compat, _ffi
from jax_moye.configs import GemmConfig, configs, find_config
from jax_moye.interpret import InterpretParams
from jax_moye.problem import GemmProblem, NotServedError, make_problem
from jax_moye.select import select, why_not

Permutation = tuple[int, ...] | None

SHORT_NAMES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
_ACCUMULATOR = {"bf16": "f32", "f16": "f32", "f32": "f32", "f64": "f64"}

# Which operands our kernels multiply at least as precisely as an algorithm asks: products of bf16 and f16 are exact and
# summed in f32, f32 and f64 kernels use fused multiply-adds. What is not here converts the operands first: XLA's.
_SERVED_PRESETS: dict[str, tuple[str, ...]] = {
    "DEFAULT": ("bf16", "f16", "f32", "f64"),
    "F16_F16_F16": ("f16",),
    "F16_F16_F32": ("f16",),
    "BF16_BF16_BF16": ("bf16", "f32"),
    "BF16_BF16_F32": ("bf16", "f32"),
    "BF16_BF16_F32_X3": ("f32",),
    "BF16_BF16_F32_X6": ("f32",),
    "BF16_BF16_F32_X9": ("f32",),
    "TF32_TF32_F32": ("f32",),
    "TF32_TF32_F32_X3": ("f32",),
    "F32_F32_F32": ("f32",),
    "F64_F64_F64": ("f64",),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """What the caller asked for.

    Attributes:
      spec: e.g. "bmk,kn->bmn".
      out_dtype: of the result.
      precision: None, a pair of lax.Precision, a lax.DotAlgorithmPreset or a lax.DotAlgorithm.
      config: name of a row of the table, or None.
      implementation: None, "moye" or "xla".
      interpret: None where no emulator is asked for.
    """

    spec: str
    out_dtype: Any
    precision: Any
    config: str | None
    implementation: Literal["moye", "xla"] | None
    interpret: InterpretParams | None


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """How a kernel of ours computes a contraction."""

    problem: GemmProblem
    config: GemmConfig


def describe(request: Request, lhs: Any, rhs: Any) -> str:
    """The contraction in a message."""
    out_dtype = jnp.dtype(request.out_dtype)
    return f"{request.spec} on {lhs.dtype}{list(lhs.shape)} and {rhs.dtype}{list(rhs.shape)} into {out_dtype}"


def served() -> str:
    """What our kernels compute, for error messages."""
    lines = []
    for dtype in dict.fromkeys(row.dtype for row in configs()):
        rows = [row for row in configs() if row.dtype == dtype]
        out_dtypes = dict.fromkeys(itertools.chain.from_iterable(row.out_dtypes for row in rows))
        arch = min(row.min_arch for row in rows)
        lines.append(f"{dtype} operands with a result of {' or '.join(out_dtypes)} (sm_{arch} or newer)")
    return "Served is any contraction that is one batched matrix product: " + "; ".join(lines)


def _precision_reason(precision: Any, dtype: str) -> str | None:
    """Why `precision` keeps kernels for `dtype` from serving; None if they are at least as precise."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        if dtype in _SERVED_PRESETS.get(precision.name, ()):
            return None
        return f"no kernel computes {precision!r} on {dtype} operands"
    if isinstance(precision, lax.DotAlgorithm):
        return "a lax.DotAlgorithm is XLA's to interpret (a lax.DotAlgorithmPreset may be served)"
    return None  # a pair of lax.Precision: our kernels are as precise as HIGHEST


def _wants_exact_f32(precision: Any) -> bool:
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name == "F32_F32_F32"
    return precision is not None and tuple(precision) == (lax.Precision.HIGHEST,) * 2


def _operand_dtype(lhs_dtype: Any, rhs_dtype: Any, out_dtype: Any) -> str:
    """The dtype in which a kernel can multiply the operands without loss.

    Raises:
      NotServedError: there is none.
    """
    names = [jnp.dtype(dtype).name for dtype in (lhs_dtype, rhs_dtype, out_dtype)]
    if any(name not in SHORT_NAMES for name in names):
        raise NotServedError(f"no kernel multiplies {names[0]} by {names[1]} into {names[2]}")
    if names[2] == "float64":
        return "f64"
    return SHORT_NAMES[jnp.dtype(jnp.promote_types(lhs_dtype, rhs_dtype)).name]


def find_kernel(
    request: Request, lhs: Any, rhs: Any, permutations: tuple[Permutation, Permutation], arch: int | None
) -> KernelCall | None:
    """The kernel that can compute a contraction; None if there is nothing to compute.

    Args:
      request: what the caller asked for.
      lhs: what is in memory (shape and dtype); transposed by its permutation it is what the specification names.
      rhs: likewise.
      permutations: of lhs and rhs, None where the operand is used as it is.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.

    Raises:
      NotServedError: no kernel can.
      ValueError: the config asked for cannot.
    """
    shapes = [
        tuple(x.shape) if p is None else tuple(x.shape[axis] for axis in p)
        for x, p in zip((lhs, rhs), permutations, strict=True)
    ]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        raise NotServedError(f"the sizes in {shapes[0]} and {shapes[1]} are not all known")
    dtype = _operand_dtype(lhs.dtype, rhs.dtype, request.out_dtype)
    if reason := _precision_reason(request.precision, dtype):
        raise NotServedError(reason)
    if 0 in shapes[0] or 0 in shapes[1]:
        return None

    row = None if request.config is None else find_config(request.config)
    out_dtype = SHORT_NAMES[jnp.dtype(request.out_dtype).name]
    writers = [row] if row is not None else [r for r in configs() if r.dtype == dtype]
    if not any(out_dtype in r.out_dtypes for r in writers):
        out_dtype = _ACCUMULATOR[dtype]  # and a conversion afterwards
    problem = make_problem(request.spec, shapes[0], shapes[1], dtype, out_dtype, *permutations)
    if row is None:
        return KernelCall(problem, select(problem, arch, configs()))
    if reason := why_not(row, problem, arch):
        raise ValueError(f"config {row.name!r} cannot compute {describe(request, lhs, rhs)}: {reason}")
    return KernelCall(problem, row)


def plan_call(
    platform: str, request: Request, lhs: Any, rhs: Any, permutations: tuple[Permutation, Permutation]
) -> KernelCall | None:
    """The kernel that computes a contraction in a program for `platform`; None if there is nothing to compute.

    Args:
      platform: "cpu", "cuda", or another one.
      request: what the caller asked for.
      lhs: as in find_kernel.
      rhs: likewise.
      permutations: likewise.

    Raises:
      NotServedError: no kernel can, or XLA is expected to be faster.
      ValueError: the config asked for cannot.
      NotImplementedError: the emulator is asked for in a program for a GPU.
    """
    on_cuda = platform == "cuda"
    if request.interpret is not None and platform != "cpu":
        raise NotImplementedError(
            f"interpret=True runs kernels in an emulator on the CPU, and this program is for {platform}: place its "
            "arrays on a CPU device, under e.g. jax.default_device(jax.devices('cpu')[0]), or leave out interpret"
        )
    call = find_kernel(request, lhs, rhs, permutations, _compat.cuda_arch() if on_cuda else None)
    if call is None:
        return None
    if not on_cuda and request.interpret is None:
        raise NotServedError(f"the program is for {platform}, where our kernels run only with interpret=True")

    insists = request.implementation == "moye" or request.config is not None
    if on_cuda and not insists:
        if lhs.dtype != rhs.dtype:
            raise NotServedError(f"no kernel takes operands of different dtypes, {lhs.dtype} and {rhs.dtype}")
        if call.problem.dtype == "f32" and not _wants_exact_f32(request.precision):
            raise NotServedError("f32 below precision 'highest' may use TF32, and our f32 kernels do not")
    reason = _ffi.why_unavailable(platform)
    # A program may be lowered here for another machine whose jax_moye has the kernels, if the caller insists on them.
    for_elsewhere = on_cuda and insists and _compat.cuda_arch() is None
    if reason is not None and not for_elsewhere:
        raise NotServedError(reason)
    return call
