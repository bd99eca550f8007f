"""Which kernel computes a contraction on one device, or why none of ours does."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye import _compat
from jax_moye._kernels import devices, ffi, target
from jax_moye._kernels.configs import ConfigTable, GemmConfig, configs, find_config
from jax_moye._kernels.dtypes import SHORT_NAMES, USUAL_ACCUMULATOR
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import measurements
from jax_moye._selection.cost import in_program_us, predicted_split_us, predicted_us
from jax_moye._selection.cost_xla import XLA_MARGIN, xla_us
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.problem import GemmProblem, NotServedError, make_problem
from jax_moye._selection.select import batch_invariant_rows, reference_problem, select, why_not

Permutation = tuple[int, ...] | None

_FLOATS = ("bf16", "f16", "f32", "f64", "e4m3", "e5m2")
# Results of int8 operands: sums in int32 that wrap around, and what a conversion of int32 gives, which wraps or rounds.
_INTEGER_RESULTS = ("int8", "int16", "int32", "bfloat16", "float16", "float32")
_MAX_EXACT_K = (2**31 - 1) // 128**2  # products of int8 whose sum is in int32's range

# Which operands our kernels multiply at least as precisely as an algorithm asks: products of bf16 and f16 are exact and
# summed in f32, f32 and f64 kernels use fused multiply-adds. What is not here converts the operands first: XLA's.
_SERVED_PRESETS: dict[str, tuple[str, ...]] = {
    "DEFAULT": ("bf16", "f16", "f32", "f64", "s8", "e4m3", "e5m2"),
    "ANY_F8_ANY_F8_F32_FAST_ACCUM": ("e4m3", "e5m2"),
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
# Precisions at which a kernel that multiplies in TF32, or sums in f16, may be named. (bf16 has fewer bits than TF32.)
_TF32_PRESETS = ("DEFAULT", "TF32_TF32_F32", "BF16_BF16_F32", "BF16_BF16_BF16")
_F16_SUM_PRESETS = ("DEFAULT", "F16_F16_F16")
# The same of a kernel that leaves sums of 8-bit floats in the tensor core; chosen for the second alone.
_FAST_SUM_PRESETS = ("DEFAULT", "ANY_F8_ANY_F8_F32_FAST_ACCUM")

_EXPECTED = "XLA is expected to take"


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
      beta: of a third operand c, out = lhs rhs + beta c; 0.0 where there is none.
      deterministic: the same operands give the same bits in every run.
      batch_invariant: a row's bits depend neither on m nor on the other rows.
    """

    spec: str
    out_dtype: Any
    precision: Any
    config: str | None
    implementation: Literal["moye", "xla"] | None
    interpret: InterpretParams | None
    beta: float = 0.0
    deterministic: bool = False
    batch_invariant: bool = False


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """How a kernel of ours computes a contraction.

    Attributes:
      problem: of one launch.
      config: the kernel.
      split: launch it three times, on the parts of both operands that `split.split_tf32` makes: f32 as 3 x TF32.
      measured: what `tune` found, and the config is from; None where the model chose, or the caller.
    """

    problem: GemmProblem
    config: GemmConfig
    split: bool = False
    measured: measurements.Choice | None = dataclasses.field(default=None, compare=False)


class Way(NamedTuple):
    """A way to multiply the operands of a contraction: the kernel's dtype and accumulator, and KernelCall.split."""

    dtype: str
    accumulator: str
    split: bool = False


def describe(request: Request, lhs: Any, rhs: Any) -> str:
    """The contraction in a message."""
    out_dtype = jnp.dtype(request.out_dtype)
    what = f"{request.spec} on {lhs.dtype}{list(lhs.shape)} and {rhs.dtype}{list(rhs.shape)}"
    if request.beta != 0:
        what += f" plus {request.beta} c"
    return f"{what} into {out_dtype}"


def served() -> str:
    """What our kernels compute, for error messages."""
    lines = []
    for dtype in dict.fromkeys(row.dtype for row in configs()):
        rows = [row for row in configs() if row.dtype == dtype]
        out_dtypes = dict.fromkeys(itertools.chain.from_iterable(row.out_dtypes for row in rows))
        arch = min(row.min_arch for row in rows)
        operands = "f32 operands as TF32" if dtype == "tf32" else f"{dtype} operands"
        lines.append(f"{operands} with a result of {' or '.join(out_dtypes)} (sm_{arch} or newer)")
    return "Served is any contraction that is one batched matrix product: " + "; ".join(lines)


def _precision_reason(precision: Any, dtype: str) -> str | None:
    """Why `precision` keeps kernels for `dtype` from serving; None if they are at least as precise."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        if dtype in _SERVED_PRESETS.get(precision.name, ()):
            return None
        return f"no kernel computes {precision!r} on {dtype} operands"
    if isinstance(precision, lax.DotAlgorithm):
        return "a lax.DotAlgorithm is XLA's to interpret (a lax.DotAlgorithmPreset may be served)"
    if dtype in ("e4m3", "e5m2") and not _is_default(precision):
        return f"tensor cores sum products of {dtype} in fewer bits than f32 has, which only precision 'default' allows"
    return None  # a pair of lax.Precision: our kernels are as precise as HIGHEST


def _is_default(precision: Any) -> bool:
    """Whether nothing better than a platform's default is asked for."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name == "DEFAULT"
    return precision is None or tuple(precision) == (lax.Precision.DEFAULT,) * 2


def _is_preset(precision: Any, name: str) -> bool:
    return isinstance(precision, lax.DotAlgorithmPreset) and precision.name == name


def _wants_exact_f32(precision: Any) -> bool:
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name == "F32_F32_F32"
    return precision is not None and tuple(precision) == (lax.Precision.HIGHEST,) * 2


def operand_dtype(lhs_dtype: Any, rhs_dtype: Any, out_dtype: Any) -> str:
    """The dtype in which a kernel can multiply the operands without loss, e.g. "bf16".

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
    try:
        # Derivatives under jax_numpy_dtype_promotion="strict" have such operands, too: nothing the caller promotes.
        with jax.numpy_dtype_promotion("standard"):
            return SHORT_NAMES[jnp.dtype(jnp.promote_types(lhs_dtype, rhs_dtype)).name]
    except ValueError:  # JAX promotes no 8-bit float
        raise NotServedError(f"no kernel multiplies {names[0]} by {names[1]}") from None


def _is_high(precision: Any) -> bool:
    """Whether f32 operands may be multiplied in three products of their TF32 parts, and not in one."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name == "TF32_TF32_F32_X3"
    return precision is not None and tuple(precision) == (lax.Precision.HIGH,) * 2


def possible_ways(dtype: str, precision: Any, platform: str, may_split: bool) -> list[Way]:
    """The ways in which operands of `dtype` may be multiplied, the best first.

    Less than f32 only where JAX computes in less: TF32 on a GPU at default precision, f16 sums and sums of 8-bit floats
    in fewer bits by their presets. 3 x TF32 stands first where it may be used: find_kernel asks the cost model.

    Args:
      dtype: what operand_dtype says.
      precision: as in Request.
      platform: "cuda", or another one.
      may_split: as in find_kernel.
    """
    exact = Way(dtype, USUAL_ACCUMULATOR[dtype])
    on_cuda = platform == "cuda"
    if dtype == "f32" and (_is_preset(precision, "TF32_TF32_F32") or (on_cuda and _is_default(precision))):
        return [Way("tf32", "f32"), exact]
    # On other platforms lax.Precision.HIGH has no effect on f32, and the preset means the same.
    may_split = may_split and (on_cuda or _is_preset(precision, "TF32_TF32_F32_X3"))
    if dtype == "f32" and may_split and _is_high(precision):
        return [Way("tf32", "f32", split=True), exact]
    if dtype == "f16" and _is_preset(precision, "F16_F16_F16"):
        return [Way(dtype, "f16"), exact]
    if dtype in ("e4m3", "e5m2") and _is_preset(precision, "ANY_F8_ANY_F8_F32_FAST_ACCUM"):
        return [Way(dtype, "f32_fast"), exact]
    return [exact]


def _way_of_row(row: GemmConfig, dtype: str, precision: Any, may_split: bool) -> Way:
    """The way in which a row that was named computes on operands of `dtype`.

    Raises:
      ValueError: in less than the precision asks for.
    """
    presets: tuple[str, ...] | None = None
    if row.dtype == "tf32" and dtype == "f32" and may_split and _is_high(precision):
        return Way("tf32", "f32", split=True)
    if row.dtype == "tf32" and dtype == "f32":
        presets, dtype, less = _TF32_PRESETS, "tf32", "multiplies in TF32"
    elif row.accumulator == "f16":
        presets, less = _F16_SUM_PRESETS, "sums in f16"
    elif row.accumulator == "f32_fast":
        presets, less = _FAST_SUM_PRESETS, "sums in fewer bits than f32 has"
    if presets is None:
        return Way(dtype, USUAL_ACCUMULATOR[dtype])
    of_preset = isinstance(precision, lax.DotAlgorithmPreset) and precision.name in presets
    if not of_preset and not _is_default(precision):
        raise ValueError(f"config {row.name!r} {less}, and precision {precision!r} asks for more")
    return Way(dtype, row.accumulator)


@functools.cache
def usable_rows(platform: str, arch: int | None) -> ConfigTable:
    """The rows that a program for `platform` can use; where the GPU is not known, none that are one GPU's alone."""
    rows = configs()
    if platform != "cuda":
        return rows
    built = ffi.built("cuda")
    return ConfigTable(
        row for row in rows if (built is None or row.name in built) and (arch is not None or row.max_arch == 0)
    )


def find_kernel(
    request: Request,
    lhs: Any,
    rhs: Any,
    permutations: tuple[Permutation, Permutation],
    arch: int | None,
    platform: str = "cpu",
    may_split: bool = False,
    device: devices.Device | None = None,
    epilogue: Epilogue | None = None,
) -> KernelCall | None:
    """The kernel that can compute a contraction; None if there is nothing to compute.

    Args:
      request: what the caller asked for.
      lhs: what is in memory (shape and dtype); transposed by its permutation it is what the specification names.
      rhs: likewise.
      permutations: of lhs and rhs, None where the operand is used as it is.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
      platform: "cuda", or another one: it decides whether f32 may be TF32.
      may_split: whether the caller can launch a kernel as KernelCall.split says.
      device: the GPU whose measurements count; None: none do.
      epilogue: of a fused product.

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
    dtype = operand_dtype(lhs.dtype, rhs.dtype, request.out_dtype)
    if reason := _precision_reason(request.precision, dtype):
        raise NotServedError(reason)
    if 0 in shapes[0] or 0 in shapes[1]:
        return None

    row = None if request.config is None else find_config(request.config)
    built = ffi.built(platform) if platform == "cuda" else None
    if row is not None and built is not None and row.name not in built:
        raise ValueError(f"config {row.name!r} is not in this build, which has no code of its architecture")
    table = usable_rows(platform, arch)
    ways = possible_ways(dtype, request.precision, platform, may_split)
    if row is not None:
        ways = [_way_of_row(row, dtype, request.precision, may_split)]
    elif request.batch_invariant:
        ways = [_fixed_way(ways, arch, table)]
    reasons = []
    calls = []
    for kernel_dtype, accumulator, is_split in ways:
        rows = [r for r in table if (r.dtype, r.accumulator) == (kernel_dtype, accumulator)]
        out_dtype = "f32" if is_split else SHORT_NAMES.get(jnp.dtype(request.out_dtype).name)
        if out_dtype is None or not any(out_dtype in r.out_dtypes for r in ([row] if row is not None else rows)):
            # And a conversion afterwards. Half-precision sums are written from f32 as well.
            out_dtype = {"f16": "f32", "f32_fast": "f32"}.get(accumulator, accumulator)
        finishes = not is_split and (request.beta != 0 or not (epilogue is None or epilogue.is_nothing))
        problem = make_problem(
            request.spec, *shapes, kernel_dtype, out_dtype, *permutations, accumulator=accumulator, epilogue=finishes
        )
        if problem.out_dtype == "s32" and request.beta not in (0, 1):
            raise NotServedError(f"integers are added to c as it is, and beta is {request.beta}")
        if kernel_dtype == "s8" and problem.k > _MAX_EXACT_K and jnp.issubdtype(request.out_dtype, jnp.floating):
            raise NotServedError(f"sums of {problem.k} products of int8 may be beyond int32, and a float is wanted")
        if row is not None:
            if reason := why_not(row, problem, arch):
                raise ValueError(f"config {row.name!r} cannot compute {describe(request, lhs, rhs)}: {reason}")
            if request.batch_invariant:
                _check_batch_invariant(row, problem, arch, table)
            return KernelCall(problem, row, is_split)
        try:
            measured = None
            if device is not None and not request.batch_invariant:
                variant = measurements.variant(epilogue, request.beta, is_split)
                measured = measurements.find(problem, variant, device.kind, arch, table)
            best = measured.config if measured else select(problem, arch, table, request.batch_invariant)
            calls.append(KernelCall(problem, best, is_split, measured))
        except NotServedError as error:
            reasons.append(str(error))
            continue
        if not is_split:
            break
    if not calls:
        raise NotServedError("; ".join(reasons))
    return min(calls, key=lambda call: _call_us(call, arch))


def _call_us(call: KernelCall, arch: int | None) -> float:
    if call.measured is not None:
        return call.measured.us
    predicted = predicted_split_us if call.split else predicted_us
    return predicted(call.config, call.problem, arch)


def _fixed_way(ways: list[Way], arch: int | None, table: ConfigTable) -> Way:
    """The one of `ways` that serves batch_invariant=True, whatever the sizes and strides of a call are."""

    def us(way: Way) -> float:
        problem = reference_problem(way.dtype, USUAL_ACCUMULATOR[way.dtype], way.accumulator)
        rows = batch_invariant_rows(way.dtype, problem.out_dtype, way.accumulator, arch, table)
        return min((_call_us(KernelCall(problem, row, way.split), arch) for row in rows), default=math.inf)

    if any(way.split for way in ways):
        return min(ways, key=us)
    return next((way for way in ways if us(way) < math.inf), ways[0])


def _check_batch_invariant(row: GemmConfig, problem: GemmProblem, arch: int | None, table: ConfigTable) -> None:
    """Raises ValueError if batch_invariant=True does not choose among rows that sum as this one does."""
    rows = batch_invariant_rows(problem.dtype, problem.out_dtype, problem.sums, arch, table)
    if row not in rows:
        raise ValueError(
            f"config {row.name!r} sums in another order than the kernels of batch_invariant=True, which are "
            f"{', '.join(r.name for r in rows)}"
        )


def insists(request: Request) -> bool:
    """Whether the caller wants our kernels where XLA may be faster, too."""
    return request.implementation == "moye" or request.config is not None or request.batch_invariant


def why_rather_xla(
    request: Request,
    lhs: Any,
    rhs: Any,
    call: KernelCall,
    arch: int | None,
    may_split: bool = False,
    epilogue: Epilogue | None = None,
) -> str | None:
    """Why a contraction that `call` can compute on a GPU is left to XLA; None if it is not.

    Args:
      request: what the caller asked for.
      lhs: as in find_kernel.
      rhs: likewise.
      call: what find_kernel said.
      arch: as in find_kernel, likewise the following.
      may_split: whether the caller can launch a kernel as KernelCall.split says.
      epilogue: of a fused product.
    """
    if insists(request) or request.deterministic:
        return None
    if lhs.dtype != rhs.dtype:
        return f"no kernel takes operands of different dtypes, {lhs.dtype} and {rhs.dtype}"
    is_high = may_split and _is_high(request.precision)
    if call.problem.dtype == "f32" and not _wants_exact_f32(request.precision) and not is_high:
        return "f32 below precision 'high' may use TF32, and our f32 kernels do not"
    measured = call.measured
    if measured is not None:
        xla = measured.xla_us(measurements.signature(lhs.dtype, rhs.dtype, request.out_dtype, request.precision))
        if xla is not None and not measured.entry.host_bound:
            return measured.why_xla(xla)
    if is_high:
        return None  # XLA's products are of less precision, or were not measured
    return _why_xla_is_faster(call, arch, request.beta != 0 or epilogue is not None)


def _why_xla_is_faster(call: KernelCall, arch: int | None, is_finished: bool) -> str | None:
    """Why the models leave a product to XLA; None if they do not.

    Args:
      call: ours.
      arch: the GPU's.
      is_finished: our kernel also does what comes after the product, for which XLA may need one more.
    """
    xla = xla_us(call.problem, arch, passes=int(is_finished))
    if xla is None:
        return None
    if call.measured is not None and call.measured.entry.host_bound:
        call = dataclasses.replace(call, measured=None)
    ours = in_program_us(_call_us(call, arch))
    if ours <= XLA_MARGIN * xla:
        return None
    return f"{_EXPECTED} {xla:.1f} us, and the best kernel {ours:.1f}"


def is_about_time(reason: str) -> bool:
    """Whether a reason of why_rather_xla is that XLA is faster: then what comes after the product is XLA's, too."""
    return reason.startswith((measurements.MEASURED, _EXPECTED))


def plan_call(
    platform: str,
    request: Request,
    lhs: Any,
    rhs: Any,
    permutations: tuple[Permutation, Permutation],
    may_split: bool = False,
    epilogue: Epilogue | None = None,
) -> KernelCall | None:
    """The kernel that computes a contraction in a program for `platform`; None if there is nothing to compute.

    Args:
      platform: "cpu", "cuda", or another one.
      request: what the caller asked for.
      lhs: as in find_kernel.
      rhs: likewise.
      permutations: likewise.
      may_split: likewise.
      epilogue: likewise.

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
    arch = target.cuda_arch() if on_cuda else None
    device = _device_meant(arch) if arch is not None else None
    call = find_kernel(request, lhs, rhs, permutations, arch, platform, may_split, device, epilogue)
    if call is None:
        return None
    if not on_cuda and request.interpret is None:
        raise NotServedError(f"the program is for {platform}, where our kernels run only with interpret=True")

    if on_cuda and (reason := why_rather_xla(request, lhs, rhs, call, arch, may_split, epilogue)):
        raise NotServedError(reason)
    reason = ffi.why_unavailable(platform)
    # A program may be lowered here for another machine whose jax_moye has the kernels, if the caller insists on them.
    for_elsewhere = on_cuda and insists(request) and _compat.cuda_arch() is None
    if reason is not None and not for_elsewhere:
        raise NotServedError(reason)
    return call


def _device_meant(arch: int) -> devices.Device | None:
    """The GPU that a program is lowered for; None if nobody knows one of this architecture."""
    try:
        return devices.find_device(None if _compat.cuda_arch() == arch else arch)
    except ValueError:
        return None


def why_not_xla(platform: str, request: Request) -> str | None:
    """Why lax.dot_general in a program for `platform` would break a contract of the request; None if it would not."""
    if request.batch_invariant:
        return "batch_invariant=True: how XLA sums a row depends on the number of rows"
    if request.deterministic and platform != "cpu" and not _xla_is_deterministic():
        return (
            f"deterministic=True: on {platform} XLA promises the same bits in every run only with "
            f"XLA_FLAGS={_DETERMINISM_FLAGS[0]}=true or {_DETERMINISM_FLAGS[1]}=true"
        )
    return None


_DETERMINISM_FLAGS = ("--xla_gpu_deterministic_ops", "--xla_gpu_exclude_nondeterministic_ops")


def _xla_is_deterministic() -> bool:
    """Whether XLA_FLAGS asks XLA for the same bits in every run on a GPU. Of a flag given twice the last one counts."""
    values = dict.fromkeys(_DETERMINISM_FLAGS, False)
    for flag in os.environ.get("XLA_FLAGS", "").split():
        name, equals, value = flag.partition("=")
        if name in values:
            values[name] = not equals or value.lower() in ("true", "1")
    return any(values.values())
