"""grouped_p: products of groups, of which only the device knows where one ends.

Its specifications (`_selection.grouped`) are closed under transposition: the derivative of a product whose m is ragged
is one of the same kind to lhs, and one whose k is ragged to rhs; and the other way round. The sizes of the groups have
no derivative. Lowering takes two steps, as contract_p's does: the first sees a transpose in front of rhs, which is a
stride to a kernel; the second decides. What no kernel computes, and whatever is partitioned over devices outside of
shard_map, is lax.ragged_dot_general's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import numpy_dtype
from jax_moye._primitives.contraction import heed
from jax_moye._primitives.custom_call import call_attributes, epilogue_attributes
from jax_moye._primitives.reference import lax_result_dtype
from jax_moye._primitives.transposes import Permutations, operands_of, source, transposed
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import left_to_xla
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.grouped import RAGGED_K, RAGGED_M, RAGGED_M_BY_K, GroupedCall, decide_grouped
from jax_moye._selection.request import Request

_ragged_dot_general = lax.ragged_dot_general  # bound now: whoever replaces it by ours must not send us in a circle

# --------------------------------------------------------------------------------------------------- the primitive

grouped_p = Primitive("jax_moye_grouped")
grouped_p.def_impl(functools.partial(xla.apply_primitive, grouped_p))


def grouped(spec: str, lhs: Any, rhs: Any, group_sizes: Any, **params: Any) -> Any:
    """Binds the primitive.

    Args:
      spec: one of `_selection.grouped.SPECS`.
      lhs: array with the dimensions that the specification names.
      rhs: likewise.
      group_sizes: (groups,), int32. One below zero counts as zero, and groups end where the ragged mode does.
      **params: as in `contract`: out_dtype, precision, config, implementation, interpret, deterministic,
        batch_invariant, autotune.
    """
    return grouped_p.bind(*_compat.match_varying(lhs, rhs, group_sizes), spec=spec, **params)


def _result_shape(spec: str, lhs: Sequence[int], rhs: Sequence[int], groups: int) -> tuple[int, ...]:
    labels_of_left, labels_of_right = spec.partition("->")[0].split(",")
    sizes = dict(zip(labels_of_left, lhs, strict=True)) | dict(zip(labels_of_right, rhs, strict=True)) | {"g": groups}
    return tuple(sizes[label] for label in spec.partition("->")[2])


@grouped_p.def_abstract_eval
def _abstract_eval(lhs, rhs, group_sizes, *, spec, out_dtype, **unused):
    del unused
    shape = _result_shape(spec, lhs.shape, rhs.shape, group_sizes.shape[0])
    # What varies over manual axes is lhs's, as all operands'.
    sharding = NamedSharding(lhs.sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return lhs.update(shape=shape, dtype=out_dtype, weak_type=False, sharding=sharding)


def _jvp(primals, tangents, **params):
    lhs, rhs, group_sizes = primals
    lhs_dot, rhs_dot, _ = tangents
    out = grouped_p.bind(*primals, **params)
    terms = []
    if type(lhs_dot) is not ad.Zero:
        terms.append(grouped_p.bind(lhs_dot, rhs, group_sizes, **params))
    if type(rhs_dot) is not ad.Zero:
        terms.append(grouped_p.bind(lhs, rhs_dot, group_sizes, **params))
    if not terms:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, functools.reduce(lax.add, terms)


def _transpose(cotangent, lhs, rhs, group_sizes, *, spec, config, out_dtype, **params):
    del config, out_dtype  # meant for the forward product
    if type(cotangent) is ad.Zero:
        return None, None, None

    def bind(spec, left, right, wanted):
        return grouped_p.bind(left, right, group_sizes, spec=spec, config=None, out_dtype=wanted.aval.dtype, **params)

    if spec == RAGGED_K:  # a matrix of each group has a cotangent
        if ad.is_undefined_primal(lhs):
            return bind(RAGGED_M_BY_K, rhs, cotangent, lhs), None, None
        return None, bind(RAGGED_M, lhs, cotangent, rhs), None
    if ad.is_undefined_primal(lhs):
        return bind(RAGGED_M_BY_K if spec == RAGGED_M else RAGGED_M, cotangent, rhs, lhs), None, None
    left, right = (lhs, cotangent) if spec == RAGGED_M else (cotangent, lhs)
    return None, bind(RAGGED_K, left, right, rhs), None


def _batch(operands, dims, **params):
    """One product after the other: each has groups of its own."""
    mapped = [x for x, dim in zip(operands, dims, strict=True) if dim is not None]
    moved = [jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True) if dim is not None]
    if not mapped:
        return grouped_p.bind(*operands, **params), None

    def one(values):
        values = iter(values)
        all_operands = (x if dim is None else next(values) for x, dim in zip(operands, dims, strict=True))
        return grouped_p.bind(*_compat.match_varying(*all_operands), **params)

    return lax.map(one, tuple(moved)), 0


ad.primitive_jvps[grouped_p] = _jvp
ad.primitive_transposes[grouped_p] = _transpose
batching.primitive_batchers[grouped_p] = _batch
_compat.check_for_nan(grouped_p)


# ------------------------------------------------------------------------------------------------------- lowering


_LAX_DIMENSIONS = {
    RAGGED_M: lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0]),
    RAGGED_M_BY_K: lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0]),
    RAGGED_K: lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], []),
}


def grouped_reference(lhs: Any, rhs: Any, group_sizes: Any, *, spec: str, out_dtype: Any, precision: Any) -> Any:
    """The product by lax.ragged_dot_general."""
    with _compat.lax_itself():
        out = _ragged_dot_general(
            lhs,
            rhs,
            group_sizes,
            _LAX_DIMENSIONS[spec],
            precision=precision,
            preferred_element_type=lax_result_dtype(lhs.dtype, rhs.dtype, out_dtype),
        )
    return lax.convert_element_type(out, out_dtype)


grouped_local_p = Primitive("jax_moye_grouped_local")
grouped_local_p.def_impl(functools.partial(xla.apply_primitive, grouped_local_p))


@grouped_local_p.def_abstract_eval
def _local_abstract_eval(lhs, rhs, group_sizes, *, request, permutations):
    left, right = operands_of((lhs, rhs), permutations)
    shape = _result_shape(request.spec, left.seen_shape, right.seen_shape, group_sizes.shape[0])
    return _compat.local_aval(shape, request.out_dtype)


def _xlas(lhs: Any, rhs: Any, group_sizes: Any, *, request: Request, permutations: Permutations = (None, None)) -> Any:
    lhs, rhs = transposed((lhs, rhs), permutations)
    of_request = {"spec": request.spec, "out_dtype": request.out_dtype, "precision": request.precision}
    return grouped_reference(lhs, rhs, group_sizes, **of_request)


def _run_kernel(
    lhs: Any, rhs: Any, group_sizes: Any, *, call: GroupedCall, request: Request, permutations: Permutations
) -> Any:
    """The custom call."""
    problem, config = call.problem, call.config
    left, right = call.operands
    lhs, rhs = transposed((lhs, rhs), permutations, (left.permutation, right.permutation))
    shape = (problem.groups, problem.m, problem.n) if problem.ragged == "k" else (problem.m, problem.n)
    result = jax.ShapeDtypeStruct(shape, numpy_dtype(problem.out_dtype))
    attributes = call_attributes(config, problem, request.interpret) | epilogue_attributes(Epilogue(), ())
    with jax.named_scope(config.name):  # what a profiler shows
        return jax.ffi.ffi_call(ffi.GROUPED_TARGET, result)(lhs, rhs, group_sizes, ragged=problem.ragged, **attributes)


def _lower_local(platform, ctx, lhs, rhs, group_sizes, *, request: Request, permutations):
    operands = operands_of(ctx.avals_in, permutations)
    groups = ctx.avals_in[2].shape[0]
    decision, call = decide_grouped(request, groups, operands, LoweringTarget.of_platform(platform))
    heed(decision, operands)
    (out,) = ctx.avals_out
    if decision.kind == "nothing":
        fun: Any = lambda *_: jnp.zeros(out.shape, out.dtype)  # noqa: E731
    elif decision.kind == "kernel" and call is not None:
        ffi.register(platform)
        fun = functools.partial(_run_kernel, call=call, request=request, permutations=permutations)
    else:
        fun = functools.partial(_xlas, request=request, permutations=permutations)
    return mlir.lower_fun(fun, multiple_results=False)(ctx, lhs, rhs, group_sizes)


mlir.register_lowering(grouped_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(grouped_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(grouped_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, lhs, rhs, group_sizes, **params):
    request = Request(**params)
    reason = _compat.why_not_local(ctx)
    if reason is not None:
        for platform in _compat.platforms(ctx):
            heed(left_to_xla(request, "place", reason, platform), operands_of(ctx.avals_in, (None, None)))
        return mlir.lower_fun(functools.partial(_xlas, request=request), multiple_results=False)(
            ctx, lhs, rhs, group_sizes
        )
    before = source(rhs, ctx.avals_in[1])
    avals = [ctx.avals_in[0], before.aval, ctx.avals_in[2], *ctx.avals_out]
    *avals_in, out = (_compat.local_aval(aval.shape, aval.dtype) for aval in avals)
    return _compat.lower_equation(
        ctx,
        grouped_local_p,
        (lhs, before.value, group_sizes),
        avals_in,
        [out],
        request=request,
        permutations=(None, before.permutation),
    )


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(grouped_p, _lower, cacheable=False)
