"""Products of 8-bit floats that have a scale for every 128 along k: what a kernel computes of them, and which kernel.

    d[b, m, n] = sum over k of lhs[b, m, k] * lhs_scales[b, m, k / 128] * rhs[b, n, k] * rhs_scales[b, n, k / 128]

or with scales of rhs for 128 of n as well. What no kernel computes, or what XLA is measured to compute faster, is a
product by the dequantized operands (`dequantized_product`), which is decided about for itself.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye._kernels.configs import ConfigTable, GemmConfig, block_scaled_configs, find_config
from jax_moye._kernels.dtypes import FLOAT8, SHORT_NAMES
from jax_moye._selection import measurements
from jax_moye._selection.capability import LoweringTarget, usable_of, why_not, why_not_built
from jax_moye._selection.decide import Cause, Decision, KernelCall, Times, left_to_xla
from jax_moye._selection.problem import ConfigError, GemmProblem, NotServedError
from jax_moye._selection.ranking import rank
from jax_moye._selection.request import Operand, Operands, Request, describe

SPEC = "bmk,bnk->bmn"  # of all of them
BLOCK = 128  # kScaledBlock of cuda/gemm/config.h
ACCUMULATOR = "f32_blocks"
FLOAT8_NAMES = ("float8_e4m3fn", "float8_e5m2")


class BlockScales(NamedTuple):
    """The scales of both operands.

    Attributes:
      of_columns: those of rhs are of each n; else of 128 of them.
      lhs: their dtype.
      rhs: likewise.
    """

    of_columns: bool
    lhs: str
    rhs: str

    @classmethod
    def of(cls, lhs_scales: jax.ShapeDtypeStruct, rhs_scales: jax.ShapeDtypeStruct, n: int) -> BlockScales:
        """Of the types of both arrays, (batch, m, k / 128) and (batch, n or n / 128, k / 128)."""
        return cls(rhs_scales.shape[1] == n, str(lhs_scales.dtype), str(rhs_scales.dtype))

    @property
    def variant(self) -> str:
        """The word of a file of measurements: what XLA does depends on it, too."""
        return " ".join(["columns" if self.of_columns else "blocks", self.lhs, self.rhs])


def is_exact(dtypes: tuple[str, str], scales: tuple[str, str]) -> bool:
    """Whether operands times their scales are bfloat16 numbers, but below 2^-133: 8-bit floats, powers of two."""
    return all(dtype in FLOAT8_NAMES for dtype in dtypes) and all(scale == "float8_e8m0fnu" for scale in scales)


def make_block_scaled_problem(request: Request, operands: Operands) -> GemmProblem:
    """The product as a kernel sees it.

    Raises:
      NotServedError: it is none of its kind.
    """
    (batch, m, k), (_, n, _) = shapes = [x.seen_shape for x in operands]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        raise NotServedError(f"the sizes in {shapes[0]} and {shapes[1]} are not all known")
    of_lhs, of_rhs = (SHORT_NAMES.get(str(x.dtype), "") for x in operands)
    dtype = of_lhs if of_lhs == of_rhs else f"{of_lhs}x{of_rhs}"
    out_dtype = SHORT_NAMES.get(str(request.out_dtype), "")
    if dtype not in FLOAT8 or out_dtype not in ("bf16", "f16", "f32"):
        types = f"{operands[0].dtype} by {operands[1].dtype} into {request.out_dtype}"
        raise NotServedError(f"no kernel multiplies blocks that have scales of {types}")
    return GemmProblem(
        batch=batch,
        m=m,
        n=n,
        k=k,
        a_strides=(m * k, k, 1),
        b_strides=(n * k, k, 1),
        d_strides=(m * n, n, 1),
        dtype=dtype,
        out_dtype=out_dtype,
        swapped=False,
        accumulator=ACCUMULATOR,
        scaled=True,
    )


def usable_block_scaled_configs(platform: str, arch: int | None) -> ConfigTable:
    """The configs that a program for `platform` can use; where the GPU is not known, none."""
    return usable_of(block_scaled_configs(), platform, arch)


def dequantized_product(request: Request, scales: BlockScales, operands: Operands) -> tuple[Request, Operands]:
    """The product that is computed where no kernel of blocks is: of operands that were multiplied by their scales."""
    exact = is_exact((str(operands[0].dtype), str(operands[1].dtype)), (scales.lhs, scales.rhs))
    dtype = jnp.dtype("bfloat16" if exact else "float32")
    precision = None if exact else (lax.Precision.HIGHEST,) * 2
    left, right = (Operand(x.seen_shape, dtype) for x in operands)
    return dataclasses.replace(request, config=None, precision=precision), (left, right)


def decide_block_scaled(request: Request, scales: BlockScales, operands: Operands, target: LoweringTarget) -> Decision:
    """Who computes a product of blocks that have scales on one device.

    Args:
      request: what the caller asked for; its specification is `SPEC`.
      scales: of both operands.
      operands: lhs and rhs.
      target: what is lowered for.

    Returns:
      The decision. "xla" stands for a product by the dequantized operands, which keeps all that was asked for, or says
      that it cannot.
    """
    on_cuda = target.platform == "cuda"

    def dequantized(cause: Cause, reason: str, call: KernelCall | None = None) -> Decision:
        unbound = dataclasses.replace(request, deterministic=False, batch_invariant=False, implementation=None)
        decision = left_to_xla(unbound, cause, reason, target.platform)
        return decision._replace(call=call, problem=None if call is None else call.problem)

    if request.implementation == "xla":
        return dequantized("caller", "implementation='xla'")
    if any(0 in x.seen_shape for x in operands):
        return Decision("nothing", request, reason="a size is 0")
    try:
        problem = make_block_scaled_problem(request, operands)
        able = able_configs(request, operands, problem, target)
    except ConfigError as error:
        return Decision("error", request, reason=str(error), cause="config")
    except NotServedError as error:
        return dequantized("capability", str(error))
    call = KernelCall(problem, able[0], False, operands)
    if request.interpret is not None and target.platform != "cpu":
        return dequantized("place", "interpret=True runs kernels in an emulator on the CPU")
    if not on_cuda and request.interpret is None:
        reason = f"the program is for {target.platform}, where our kernels run only with interpret=True"
        return dequantized("place", reason)
    if target.unavailable is not None and not (on_cuda and request.insists and target.is_elsewhere):
        return dequantized("place", target.unavailable)
    decision = Decision("kernel", request, call, problem=problem, source="model")
    if request.config is not None:
        return decision._replace(source="explicit")
    if not on_cuda or request.batch_invariant:  # whatever was measured with some other number of rows
        return decision
    own = not request.deterministic and measurements.autotune_mode(request.autotune) != "off"
    choice = None
    if target.device is not None:
        choice = measurements.find(problem, scales.variant, target.device.kind, target.arch, ConfigTable(able), own)
    if choice is not None:
        times = Times(choice.us, choice.entry.xla_us.get(scales.variant))
        call = dataclasses.replace(call, config=choice.config)
        decision = decision._replace(call=call, entry=choice.entry, source=choice.source, measured=times)
    if request.insists or request.deterministic:
        return decision
    if choice is None or decision.measured is None:
        reason = "nobody has timed a kernel of ours next to XLA's product by dequantized operands, as lowering does"
        return dequantized("time", reason, call)
    if choice.entry.is_won_by_ours(scales.variant):
        return decision
    times = decision.measured
    of_xla = "was not timed" if times.xla is None else f"{times.xla:.4g} us"
    reason = f"measured: XLA by dequantized operands {of_xla}, our best {choice.entry.config} {times.ours:.4g} us"
    return dequantized("time", reason, call)._replace(entry=choice.entry, measured=times, source=choice.source)


def able_configs(
    request: Request, operands: Operands, problem: GemmProblem, target: LoweringTarget
) -> list[GemmConfig]:
    """The kernel that was named; or those that can compute the product, in the model's order, at least one.

    Raises:
      NotServedError: none can.
      ConfigError: the one that was named cannot.
    """
    if request.config is not None:
        config = find_config(request.config)
        reason = why_not_built(config, target.platform) or why_not(config, problem, target.arch)
        if reason is not None:
            raise ConfigError(f"config {config.name!r} cannot compute {describe(request, operands)}: {reason}")
        return [config]
    ranked = rank(problem, target.arch, usable_block_scaled_configs(target.platform, target.arch))
    able = [config for config, reason in ranked if reason is None]
    if able:
        return able
    of_dtype = [reason for config, reason in ranked if config.dtype == problem.dtype and reason is not None]
    raise NotServedError(next(iter(of_dtype), "no kernel for blocks that have scales was built for this GPU"))


def flops(problem: GemmProblem) -> int:
    """Multiplications and additions of a product."""
    return 2 * math.prod(problem.sizes)
