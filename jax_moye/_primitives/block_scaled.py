"""block_scaled_p: products of 8-bit floats that have a scale for every 128 along k, and of n as well where rhs has so.

    out[b, m, n] = sum over k of lhs[b, m, k] * lhs_scales[b, m, k / 128] * rhs[b, n, k] * rhs_scales[...]

A kernel multiplies the sums of a block by its scales in f32. What it is not taken for is `by_dequantized`, a product of
contract_p by the operands times their scales, and so are derivatives. jax.nn.scaled_matmul's other blocks have no
kernel, and are that, too.

Lowering takes two steps, as contract_p's does; the second decides, and on a GPU it measures first. What is partitioned
over devices outside of shard_map is `by_dequantized` by lax.dot_general.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import GemmConfig, find_config
from jax_moye._kernels.dtypes import numpy_dtype
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._log import say_once
from jax_moye._primitives.autotune import settle, would_measure
from jax_moye._primitives.contests import Contest, measured
from jax_moye._primitives.contraction import contract, heed, linear_transpose
from jax_moye._primitives.custom_call import call_attributes
from jax_moye._selection.block_scaled import (
    BLOCK,
    FLOAT8_NAMES,
    SPEC,
    BlockScales,
    able_configs,
    decide_block_scaled,
    flops,
    is_exact,
)
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import Decision
from jax_moye._selection.entry import Entry
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.request import Operand, Operands, Request, describe

# --------------------------------------------------------------------------------------------------- the primitive

block_scaled_p = Primitive("jax_moye_block_scaled")
block_scaled_p.def_impl(functools.partial(xla.apply_primitive, block_scaled_p))


def multiply_blocks(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, **params: Any) -> Any:
    """Binds the primitive.

    Args:
      lhs: (B, M, K), float8_e4m3fn or float8_e5m2; K is a multiple of 128.
      rhs: (B, N, K), likewise.
      lhs_scales: (B, M, K / 128), floats.
      rhs_scales: (B, N, K / 128) or (B, N / 128 rounded up, K / 128), floats.
      **params: as in `contract`: out_dtype, config, implementation, interpret, deterministic, batch_invariant,
        autotune.
    """
    return block_scaled_p.bind(*_compat.match_varying(lhs, rhs, lhs_scales, rhs_scales), **params)


def is_for_kernels(operands: Sequence[Any], scales: Sequence[Any], config: str | None) -> bool:
    """Whether there may be a kernel for it: 8-bit floats, blocks of 128 along k, no explicit axes of a mesh.

    Args:
      operands: lhs and rhs, as of `multiply_blocks`, of any dtype.
      scales: theirs, of blocks of any length.
      config: name of a config, or None.
    """
    return (
        all(str(x.dtype) in FLOAT8_NAMES for x in operands)
        and operands[0].shape[2] == BLOCK * scales[0].shape[2]
        and (config is None or find_config(config).block_scales)
        and not any(_compat.has_explicit_axes(jax.typeof(x)) for x in (*operands, *scales))
    )


def _result_shape(lhs: Any, rhs: Any) -> tuple[int, ...]:
    return (*lhs.shape[:2], rhs.shape[1])


@block_scaled_p.def_abstract_eval
def _abstract_eval(lhs, rhs, *scales, out_dtype, **unused):
    del scales, unused
    sharding = NamedSharding(lhs.sharding.mesh, PartitionSpec(None, None, None))
    return lhs.update(shape=_result_shape(lhs, rhs), dtype=out_dtype, weak_type=False, sharding=sharding)


def by_dequantized(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, *, out_dtype: Any, config: Any = None, **options: Any
) -> Any:
    """The product as one of contract_p by operands that were multiplied by their scales, in float32.

    That is exact in bfloat16 where both are 8-bit floats, and the scales powers of two. Else the product is of float32
    at precision "highest". Blocks along k may have any length.
    """
    operands, scales = (lhs, rhs), (lhs_scales, rhs_scales)
    types = ((str(x.dtype), str(y.dtype)) for x, y in zip(operands, scales, strict=True))
    exact = is_exact(*zip(*types, strict=True))
    dtype = jnp.bfloat16 if exact else jnp.float32
    left, right = (_times_scales(x, scale).astype(dtype) for x, scale in zip(operands, scales, strict=True))
    precision = None if exact else (lax.Precision.HIGHEST,) * 2
    of_product = {"out_dtype": out_dtype, "config": config, "precision": precision, "out_sharding": None, **options}
    return contract(SPEC, left, right, **of_product)


def rows_of_scales(n: int) -> tuple[int, int]:
    """How many rows the scales of rhs may have, of its n: one for each, or for 128 of them."""
    return n, -(-n // BLOCK)


def of_rows(x: Any, scales: Any) -> Any:
    """An operand's scales, one for each row: those of rhs may be of 128 rows."""
    return scales if scales.shape[1] == x.shape[1] else jnp.repeat(scales, BLOCK, axis=1)[:, : x.shape[1]]


def _times_scales(x: Any, scales: Any) -> Any:
    """An operand times the scales of its blocks, in float32."""
    scales = of_rows(x, scales)
    blocks = x.astype(jnp.float32).reshape(*scales.shape, x.shape[2] // scales.shape[2])
    return (blocks * scales.astype(jnp.float32)[..., None]).reshape(x.shape)


def _jvp(primals, tangents, *, config, **params):
    """The tangent is that of the formula, whose rules are contract_p's."""
    out = block_scaled_p.bind(*primals, config=config, **params)
    live = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    if not live:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())

    def formula(*moving):
        operands = list(primals)
        for i, x in zip(live, moving, strict=True):
            operands[i] = x
        return by_dequantized(*operands, **params)

    return out, jax.jvp(formula, [primals[i] for i in live], [tangents[i] for i in live])[1]


def _transpose(cotangent, *operands, config, **params):
    """Of jax.linear_transpose alone: tangents are products of contract_p."""
    del config
    if type(cotangent) is ad.Zero:
        return [None] * len(operands)
    return linear_transpose(functools.partial(by_dequantized, **params), cotangent, operands)


def _batch(operands, dims, **params):
    """Many lhs are many rows, if they are all that there are several of; else there are as many matrices more."""
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)

    def moved(i):
        x, dim = operands[i], dims[i]
        return jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)

    if dims[1] is None and dims[3] is None:
        rows = [jnp.moveaxis(moved(i), 0, 1) for i in (0, 2)]  # (B,V,M,..)
        batch, _, m, _ = rows[0].shape
        rows = [x.reshape(batch, size * m, x.shape[3]) for x in rows]
        out = block_scaled_p.bind(rows[0], operands[1], rows[1], operands[3], **params)
        return out.reshape(batch, size, m, out.shape[2]), 1
    matrices = [moved(i) for i in range(len(operands))]  # (V,B,..)
    batch = matrices[0].shape[1]
    out = block_scaled_p.bind(*(x.reshape(size * batch, *x.shape[2:]) for x in matrices), **params)
    return out.reshape(size, batch, *out.shape[1:]), 0


ad.primitive_jvps[block_scaled_p] = _jvp
ad.primitive_transposes[block_scaled_p] = _transpose
batching.primitive_batchers[block_scaled_p] = _batch
_compat.check_for_nan(block_scaled_p)


# ------------------------------------------------------------------------------------------------------- lowering


block_scaled_local_p = Primitive("jax_moye_block_scaled_local")
block_scaled_local_p.def_impl(functools.partial(xla.apply_primitive, block_scaled_local_p))


@block_scaled_local_p.def_abstract_eval
def _local_abstract_eval(lhs, rhs, *scales, request):
    del scales
    return _compat.local_aval(_result_shape(lhs, rhs), request.out_dtype)


def product_of(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any) -> tuple[BlockScales, Operands]:
    """What a decision is about.

    Args:
      lhs: its type, as of `multiply_blocks`; likewise the following.
      rhs: (B, N, K).
      lhs_scales: (B, M, K / 128).
      rhs_scales: (B, N or N / 128, K / 128).
    """
    operands = Operand(tuple(lhs.shape), lhs.dtype), Operand(tuple(rhs.shape), rhs.dtype)
    return BlockScales.of(lhs_scales, rhs_scales, rhs.shape[1]), operands


def _options(request: Request) -> dict[str, Any]:
    """The parameters of the primitive that `by_dequantized` heeds."""
    names = ("out_dtype", "implementation", "interpret", "deterministic", "batch_invariant", "autotune")
    return {name: getattr(request, name) for name in names}


def _run_kernel(
    lhs: Any,
    rhs: Any,
    lhs_scales: Any,
    rhs_scales: Any,
    *,
    config: GemmConfig,
    problem: GemmProblem,
    of_columns: bool,
    interpret: InterpretParams | None,
) -> Any:
    """The custom call. A kernel reads scales of columns side by side, and whole blocks of them."""
    scales = [x.astype(jnp.float32) for x in (lhs_scales, rhs_scales)]
    if of_columns:
        no_padding = (0, 0, 0)
        padding = (no_padding, no_padding, (0, -problem.n % BLOCK, 0))
        scales[1] = lax.pad(lax.transpose(scales[1], (0, 2, 1)), np.float32(0), padding)
    attributes = call_attributes(config, problem, interpret)
    attributes = {name: value for name, value in attributes.items() if not name.endswith("_strides")}
    result = jax.ShapeDtypeStruct((problem.batch, problem.m, problem.n), numpy_dtype(problem.out_dtype))
    with jax.named_scope(config.name):  # what a profiler shows
        run = jax.ffi.ffi_call(ffi.BLOCK_SCALED_TARGET, result)
        return run(lhs, rhs, *scales, **attributes, of_columns=of_columns)


def _decided(request: Request, avals: Sequence[Any], target: LoweringTarget) -> Decision:
    """The decision, behind a measurement unless that is done or would change nothing."""
    scales, operands = product_of(*avals)
    decision = decide_block_scaled(request, scales, operands, target)
    is_a_choice = decision.kind == "kernel" or (decision.kind == "xla" and decision.cause == "time")
    if decision.call is None or request.insists or not is_a_choice or not would_measure(request, target):
        return decision
    problem, of = decision.call.problem, scales.variant

    def measure(stop: threading.Event) -> Entry:
        ffi.register(target.platform)

        def ours(config: GemmConfig, *values: Any) -> list[Any]:
            return [_run_kernel(*values, config=config, problem=problem, of_columns=scales.of_columns, interpret=None)]

        able = able_configs(request, operands, problem, target)
        by_config: dict[tuple[GemmConfig, ...], Any] = {(config,): functools.partial(ours, config) for config in able}
        by_xla = functools.partial(by_dequantized, **_options(request) | {"implementation": "xla"})
        types = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals)
        contest = Contest(by_config, lambda *values: [by_xla(*values)], types, 1.0, flops(problem))
        return measured(problem, of, contest, stop)

    is_new = settle((of, problem, of), decision.entry, target, describe(request, operands), measure)
    return decide_block_scaled(request, scales, operands, target) if is_new else decision


def _lower_local(platform, ctx, *values, request: Request):
    scales, operands = product_of(*ctx.avals_in)
    (out,) = ctx.avals_out
    decision = _decided(request, ctx.avals_in, LoweringTarget.of_platform(platform))
    if decision.kind == "error":
        heed(decision, operands)
    if decision.kind == "nothing":
        fun: Any = lambda *_: jnp.zeros(out.shape, out.dtype)  # noqa: E731
    elif decision.kind == "kernel" and decision.call is not None:
        ffi.register(platform)
        of_call: dict[str, Any] = {"config": decision.call.config, "problem": decision.call.problem}
        of_call["interpret"] = request.interpret
        fun = functools.partial(_run_kernel, of_columns=scales.of_columns, **of_call)
    else:
        if decision.cause != "caller":
            what = describe(request, operands)
            say_once(logging.INFO, f"{what} is a product by dequantized operands: {decision.reason}")
        fun = functools.partial(by_dequantized, **_options(request))
    return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)


mlir.register_lowering(block_scaled_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(block_scaled_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(block_scaled_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, *values, **params):
    request = Request(SPEC, precision=None, **params)
    if _compat.why_not_local(ctx) is not None:
        fun = functools.partial(by_dequantized, **_options(request))
        return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)
    return _compat.lower_equation(ctx, block_scaled_local_p, values, ctx.avals_in, request=request)


# Not cacheable: whether it is one device's depends on the place.
mlir.register_lowering(block_scaled_p, _lower, cacheable=False)
