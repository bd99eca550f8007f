"""Which arithmetic a product may be computed in without being less precise than was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import FLOAT8, MULTIPLIED_AS, SHORT_NAMES, USUAL_ACCUMULATOR
from jax_moye._selection.problem import ConfigError, GemmProblem, NotServedError

_FLOATS = ("bf16", "f16", "f32", "f64", "e4m3", "e5m2")
# Results of int8 operands: sums in int32 that wrap around, and what a conversion of int32 gives, which wraps or rounds.
_INTEGER_RESULTS = ("int8", "int16", "int32", "bfloat16", "float16", "float32")
_MAX_EXACT_K = (2**31 - 1) // 128**2  # products of int8 whose sum is in int32's range

# Which operands our kernels multiply at least as precisely as an algorithm asks: products of bf16 and f16 are exact and
# summed in f32, f32 and f64 kernels use fused multiply-adds, or parts of f32 that are as precise. What is not here
# converts the operands first: XLA's.
SERVED_PRESETS: dict[str, tuple[str, ...]] = {
    "DEFAULT": ("bf16", "f16", "f32", "f64", "s8", *FLOAT8),
    "ANY_F8_ANY_F8_F32_FAST_ACCUM": FLOAT8,
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
# Precisions at which a kernel that multiplies in TF32 or in two parts of bf16, or sums in f16, may be named. (bf16 has
# fewer bits than TF32.)
_TF32_PRESETS = ("DEFAULT", "TF32_TF32_F32", "BF16_BF16_F32", "BF16_BF16_BF16")
_X3_PRESETS = (*_TF32_PRESETS, "BF16_BF16_F32_X3")
_F16_SUM_PRESETS = ("DEFAULT", "F16_F16_F16")
# The same of a kernel that leaves sums of 8-bit floats in the tensor core; chosen for the second alone.
_FAST_SUM_PRESETS = ("DEFAULT", "ANY_F8_ANY_F8_F32_FAST_ACCUM")


class Arithmetic(NamedTuple):
    """What operands are multiplied and summed in.

    Attributes:
      dtype: of the kernel's operands.
      accumulator: what their products are summed in.
      split: f32 as 3 x TF32: the kernel runs three times, on the parts of both operands.
    """

    dtype: str
    accumulator: str
    split: bool = False


def operand_dtype(lhs_dtype: Any, rhs_dtype: Any, out_dtype: Any) -> str:
    """The dtype in which a kernel can multiply the operands without loss, e.g. "bf16", or "e4m3xe5m2" of two.

    Args:
      lhs_dtype: of NumPy or JAX.
      rhs_dtype: likewise.
      out_dtype: of the result.

    Raises:
      NotServedError: there is none.
    """
    names = [jnp.dtype(dtype).name for dtype in (lhs_dtype, rhs_dtype, out_dtype)]
    if names[0] == names[1] == "int8" and names[2] in _INTEGER_RESULTS:
        return "s8"
    if any(SHORT_NAMES.get(name) not in _FLOATS for name in names):
        raise NotServedError(f"no kernel multiplies {names[0]} by {names[1]} into {names[2]}")
    if names[2] == "float64":
        return "f64"
    if names[0] == names[1]:
        return SHORT_NAMES[names[0]]
    if (both := f"{SHORT_NAMES[names[0]]}x{SHORT_NAMES[names[1]]}") in FLOAT8:
        return both
    try:
        # Derivatives under jax_numpy_dtype_promotion="strict" have such operands, too: nothing the caller promotes.
        with jax.numpy_dtype_promotion("standard"):
            return SHORT_NAMES[jnp.dtype(jnp.promote_types(lhs_dtype, rhs_dtype)).name]
    except ValueError:  # JAX promotes no 8-bit float
        raise NotServedError(f"no kernel multiplies {names[0]} by {names[1]}") from None


def why_not_precise(precision: Any, dtype: str) -> str | None:
    """Why `precision` keeps kernels for `dtype` from serving; None if they are at least as precise."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        if dtype in SERVED_PRESETS.get(precision.name, ()):
            return None
        return f"no kernel computes {precision!r} on {dtype} operands"
    if isinstance(precision, lax.DotAlgorithm):
        return "a lax.DotAlgorithm is XLA's to interpret (a lax.DotAlgorithmPreset may be served)"
    if dtype in FLOAT8 and not _is_default(precision):
        return f"tensor cores sum products of {dtype} in fewer bits than f32 has, which only precision 'default' allows"
    return None  # a pair of lax.Precision: our kernels are as precise as HIGHEST


def _is_default(precision: Any) -> bool:
    """Whether nothing better than a platform's default is asked for."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name == "DEFAULT"
    return precision is None or tuple(precision) == (lax.Precision.DEFAULT,) * 2


def _is_preset(precision: Any, name: str) -> bool:
    return isinstance(precision, lax.DotAlgorithmPreset) and precision.name == name


def wants_exact_f32(precision: Any) -> bool:
    """Whether f32 operands are to be multiplied in f32."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name in ("F32_F32_F32", "BF16_BF16_F32_X6")
    return precision is not None and tuple(precision) == (lax.Precision.HIGHEST,) * 2


def _parts_asked_for(precision: Any) -> str | None:
    """How f32 operands are to be multiplied at least, where a preset counts products of bfloat16 parts.

    None of six: their error is f32's.
    """
    return next((f"bf16x{n}" for n in (3, 9) if _is_preset(precision, f"BF16_BF16_F32_X{n}")), None)


def is_high(precision: Any) -> bool:
    """Whether f32 operands may be multiplied in three products of their TF32 parts, and not in one."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name == "TF32_TF32_F32_X3"
    return precision is not None and tuple(precision) == (lax.Precision.HIGH,) * 2


def possible_arithmetics(dtype: str, precision: Any, platform: str, may_split: bool) -> list[Arithmetic]:
    """What operands of `dtype` may be multiplied and summed in, the best first.

    Less than f32 only where JAX computes in less: TF32 on a GPU at default precision, f16 sums and sums of 8-bit floats
    in fewer bits by their presets. 3 x TF32 stands first where it may be used: which one is faster the cost model says.

    Args:
      dtype: what operand_dtype says.
      precision: as in Request.
      platform: "cuda", or another one.
      may_split: whether 3 x TF32 can be launched: not with an epilogue.
    """
    exact = Arithmetic(dtype, USUAL_ACCUMULATOR[dtype])
    on_cuda = platform == "cuda"
    if dtype == "f32" and (_is_preset(precision, "TF32_TF32_F32") or (on_cuda and _is_default(precision))):
        return [Arithmetic("tf32", "f32"), exact]
    # On other platforms lax.Precision.HIGH has no effect on f32, and the preset means the same.
    may_split = may_split and (on_cuda or _is_preset(precision, "TF32_TF32_F32_X3"))
    if dtype == "f32" and may_split and is_high(precision):
        return [Arithmetic("tf32", "f32", split=True), exact]
    if dtype == "f32" and (parts := _parts_asked_for(precision)):
        return [Arithmetic(parts, "f32")]
    if dtype == "f16" and _is_preset(precision, "F16_F16_F16"):
        return [Arithmetic(dtype, "f16"), exact]
    if dtype in FLOAT8 and _is_preset(precision, "ANY_F8_ANY_F8_F32_FAST_ACCUM"):
        return [Arithmetic(dtype, "f32_fast"), exact]
    return [exact]


def may_be_tf32(precision: Any, platform: str) -> bool:
    """Whether f32 operands may be multiplied in TF32, and in one product.

    Args:
      precision: as in Request.
      platform: "cuda", or another one.
    """
    return possible_arithmetics("f32", precision, platform, may_split=False)[0].dtype == "tf32"


def arithmetic_of_config(config: GemmConfig, dtype: str, precision: Any, may_split: bool) -> Arithmetic:
    """What a config that was named computes operands of `dtype` in.

    Args:
      config: the caller's.
      dtype: as in possible_arithmetics, likewise the following.
      precision: as in Request.
      may_split: whether 3 x TF32 can be launched.

    Raises:
      ConfigError: it is less than the precision asks for.
    """
    presets: tuple[str, ...] | None = None
    if config.dtype == "tf32" and dtype == "f32" and may_split and is_high(precision):
        return Arithmetic("tf32", "f32", split=True)
    if config.dtype == "tf32" and dtype == "f32":
        presets, dtype, less = _TF32_PRESETS, "tf32", "multiplies in TF32"
    elif config.dtype == "bf16x3" and dtype == "f32":
        presets, dtype, less = _X3_PRESETS, "bf16x3", "multiplies in two bfloat16 parts"
    elif dtype == "f32" and (parts := _parts_asked_for(precision)):
        return Arithmetic(parts, "f32")
    elif config.accumulator == "f16":
        presets, less = _F16_SUM_PRESETS, "sums in f16"
    elif config.accumulator == "f32_fast":
        presets, less = _FAST_SUM_PRESETS, "sums in fewer bits than f32 has"
    if presets is None:
        return Arithmetic(dtype, USUAL_ACCUMULATOR[dtype])
    of_preset = isinstance(precision, lax.DotAlgorithmPreset) and precision.name in presets
    if not of_preset and not _is_default(precision):
        raise ConfigError(f"config {config.name!r} {less}, and precision {precision!r} asks for more")
    return Arithmetic(dtype, config.accumulator)


def written_dtype(arithmetic: Arithmetic, out_dtype: Any, configs: Iterable[GemmConfig]) -> str:
    """The dtype that a kernel writes for a result of out_dtype: that one, or its sums', which are converted behind it.

    Args:
      arithmetic: what the result is summed in. The sums of 3 x TF32 are f32 between its launches, and so at its end.
      out_dtype: of NumPy or JAX.
      configs: that may compute it.
    """
    name = "f32" if arithmetic.split else SHORT_NAMES.get(jnp.dtype(out_dtype).name)
    dtypes = MULTIPLIED_AS.get(arithmetic.dtype, (arithmetic.dtype,))
    able = (c for c in configs if c.dtype in dtypes and c.accumulator == arithmetic.accumulator)
    if name is not None and any(name in config.out_dtypes for config in able):
        return name
    # Half-precision sums are written from f32 as well.
    return {"f16": "f32", "f32_fast": "f32"}.get(arithmetic.accumulator, arithmetic.accumulator)


def check_integers(problem: GemmProblem, out_dtype: Any, beta: float) -> None:
    """Refuses sums of integers that a kernel would get wrong.

    Args:
      problem: what a kernel would compute.
      out_dtype: of the result.
      beta: of a third operand.

    Raises:
      NotServedError: they are beyond int32, or added to a multiple of c.
    """
    if problem.out_dtype == "s32" and beta not in (0, 1):
        raise NotServedError(f"integers are added to c as it is, and beta is {beta}")
    if problem.dtype == "s8" and problem.k > _MAX_EXACT_K and jnp.issubdtype(out_dtype, jnp.floating):
        raise NotServedError(f"sums of {problem.k} products of int8 may be beyond int32, and a float is wanted")
