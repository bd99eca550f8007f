"""grouped_p: products of groups, of which only the device knows where one ends; grouped_fused_p: with an epilogue.

Its specifications (`_selection.grouped`) are closed under transposition: the derivative of a product whose m is ragged
is one of the same kind to lhs, and one whose k is ragged to rhs; and the other way round. The sizes of the groups have
no derivative. Lowering takes two steps, as contract_p's does: the first sees a transpose in front of rhs, which is a
stride to a kernel; the second decides. What no kernel computes, and whatever is partitioned over devices outside of
shard_map, is lax.ragged_dot_general's.

grouped_fused_p is y = activation(z), z = the product, times scales of its rows and of a group's columns, plus the bias
of a row's group; or y = activation(z) * s, s being the product with a second matrix of each group. As fused_p it has z,
and s, as further results where the derivative asks for them, and derivatives that are products of grouped_p and
elementwise functions: that of the bias is a product with ones. Where no kernel can finish a product, it is products and
what XLA does behind them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import numpy_dtype
from jax_moye._log import say_once
from jax_moye._primitives.contraction import heed, linear_transpose
from jax_moye._primitives.custom_call import call_attributes, epilogue_attributes
from jax_moye._primitives.fused import times_derivative, without_preactivation
from jax_moye._primitives.reference import as_cotangent, cotangent_dtype, lax_result_dtype
from jax_moye._primitives.transposes import Permutations, Source, operands_of, source, transposed
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import Decision, left_to_xla, why_not_unfused
from jax_moye._selection.epilogue import ACTIVATIONS, SCALES, Epilogue, compute_dtype, stored_dtype
from jax_moye._selection.grouped import (
    RAGGED_K,
    RAGGED_M,
    RAGGED_M_BY_K,
    GroupedCall,
    decide_grouped,
    served_groups,
)
from jax_moye._selection.request import Request, describe

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
        left, right = _in_one_dtype(left, right)
        dtype = cotangent_dtype(left.dtype, right.dtype, wanted.aval.dtype)
        out = grouped_p.bind(left, right, group_sizes, spec=spec, config=None, out_dtype=dtype, **params)
        return as_cotangent(out, wanted.aval.dtype)

    if spec == RAGGED_K:  # a matrix of each group has a cotangent
        if ad.is_undefined_primal(lhs):
            return bind(RAGGED_M_BY_K, rhs, cotangent, lhs), None, None
        return None, bind(RAGGED_M, lhs, cotangent, rhs), None
    if ad.is_undefined_primal(lhs):
        return bind(RAGGED_M_BY_K if spec == RAGGED_M else RAGGED_M, cotangent, rhs, lhs), None, None
    left, right = (lhs, cotangent) if spec == RAGGED_M else (cotangent, lhs)
    return None, bind(RAGGED_K, left, right, rhs), None


def _in_one_dtype(left, right):
    """A cotangent and what it is multiplied with: of 8-bit floats the latter, which 16 bits hold."""
    if (left.dtype.itemsize == 1) == (right.dtype.itemsize == 1):
        return left, right
    dtype = max(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
    return lax.convert_element_type(left, dtype), lax.convert_element_type(right, dtype)


def one_after_the_other(primitive, operands, dims, **params):
    """Batching of what no kernel computes several of: of products of groups each has groups of its own."""
    moved = [jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True) if dim is not None]

    def one(values):
        values = iter(values)
        all_operands = (x if dim is None else next(values) for x, dim in zip(operands, dims, strict=True))
        return primitive.bind(*_compat.match_varying(*all_operands), **params)

    outs = lax.map(one, tuple(moved))
    return outs, [0] * len(outs) if primitive.multiple_results else 0


ad.primitive_jvps[grouped_p] = _jvp
ad.primitive_transposes[grouped_p] = _transpose
batching.primitive_batchers[grouped_p] = functools.partial(one_after_the_other, grouped_p)
_compat.check_for_nan(grouped_p)


# ------------------------------------------------------------------------------------------------------- lowering

LAX_DIMENSIONS = {
    RAGGED_M: lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0]),
    RAGGED_M_BY_K: lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0]),
    RAGGED_K: lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], []),
}
OF_ROWS = (RAGGED_M, RAGGED_M_BY_K)  # those that may have an epilogue


def _ends(group_sizes: Any, length: int) -> Any:
    """Where groups end: none is below zero, and none ends beyond the length of the ragged mode."""

    def limited(x, y):  # both lie between 0 and the length: their sum may be beyond int32
        return jnp.where(x > length - y, length, x + y)

    return lax.associative_scan(limited, jnp.clip(group_sizes, 0, length))


def grouped_reference(lhs: Any, rhs: Any, group_sizes: Any, *, spec: str, out_dtype: Any, precision: Any) -> Any:
    """The product by lax.ragged_dot_general, of sizes as kernels read them: none below zero, none beyond the end."""
    if group_sizes.shape[0] > 0:
        group_sizes = jnp.diff(_ends(group_sizes, lhs.shape[0]), prepend=0)
    with _compat.lax_itself():
        out = _ragged_dot_general(
            lhs,
            rhs,
            group_sizes,
            LAX_DIMENSIONS[spec],
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
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *operands: Any,
    call: GroupedCall,
    request: Request,
    permutations: Permutations,
    preactivation: bool = False,
    scatters: bool = False,
) -> list[Any]:
    """The custom call: the result, and what the activation is applied to if it is wanted, and its other factor."""
    problem, config = call.problem, call.config
    epilogue = request.epilogue or Epilogue()
    left, right = call.operands
    as_read = left.permutation, right.permutation
    shape = (problem.groups, problem.m, problem.n) if problem.ragged == "k" else (problem.m, problem.n)
    result = jax.ShapeDtypeStruct(shape, numpy_dtype(problem.out_dtype))
    attributes = call_attributes(config, problem, request.interpret)
    strides = [problem.operand_strides(labels) for _, labels in epilogue.operands]
    attributes |= epilogue_attributes(epilogue, strides, with_scales=epilogue.is_scaled or scatters)
    count = len(epilogue.operands)
    operands, indices = operands[:count], operands[count : count + scatters]
    if epilogue.is_of_pair:  # lies as rhs does
        operands = tuple(transposed((lhs, x), permutations, as_read)[1] for x in operands)
    else:
        operands = tuple(
            lax.convert_element_type(x, jnp.float32 if name in SCALES else result.dtype)
            for (name, _), x in zip(epilogue.operands, operands, strict=True)
        )
    lhs, rhs = transposed((lhs, rhs), permutations, as_read)
    target = ffi.SCALED_GROUPED_TARGET if epilogue.is_scaled else ffi.GROUPED_TARGET
    target = ffi.SCATTERED_GROUPED_TARGET if scatters else target
    with jax.named_scope(config.name):  # what a profiler shows
        run = jax.ffi.ffi_call(target, [result] * (1 + preactivation * (1 + epilogue.is_of_pair)))
        out, *kept = run(lhs, rhs, group_sizes, *indices, *operands, ragged=problem.ragged, **attributes)
    return [lax.convert_element_type(out, request.out_dtype), *kept]


def _lower_local(platform, ctx, lhs, rhs, group_sizes, *, request: Request, permutations):
    operands, groups = operands_of(ctx.avals_in, permutations), ctx.avals_in[2].shape[0]
    decision, call = decide_grouped(request, groups, operands, LoweringTarget.of_platform(platform))
    heed(decision, operands, served_groups)
    (out,) = ctx.avals_out
    if decision.kind == "nothing":
        fun: Any = lambda *_: jnp.zeros(out.shape, out.dtype)  # noqa: E731
    elif decision.kind == "kernel" and call is not None:
        ffi.register(platform)
        run = functools.partial(_run_kernel, call=call, request=request, permutations=permutations)
        fun = lambda *operands: run(*operands)[0]  # noqa: E731
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
            heed(
                left_to_xla(request, "place", reason, platform), operands_of(ctx.avals_in, (None, None)), served_groups
            )
        return mlir.lower_fun(functools.partial(_xlas, request=request), multiple_results=False)(
            ctx, lhs, rhs, group_sizes
        )
    before = source(rhs, ctx.avals_in[1])
    return _compat.lower_equation(
        ctx,
        grouped_local_p,
        (lhs, before.value, group_sizes),
        [ctx.avals_in[0], before.aval, ctx.avals_in[2]],
        request=request,
        permutations=(None, before.permutation),
    )


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(grouped_p, _lower, cacheable=False)


# ------------------------------------------------------------------------------------------------- with an epilogue

grouped_fused_p = Primitive("jax_moye_grouped_fused")
grouped_fused_p.multiple_results = True
grouped_fused_p.def_impl(functools.partial(xla.apply_primitive, grouped_fused_p))

BIAS = (("bias", "gn"),)
_ONES = 8  # columns of ones and zeros that pick a bias: 16 bytes, which TMA needs


def grouped_fused(
    spec: str, lhs: Any, rhs: Any, group_sizes: Any, *operands: Any, epilogue: Epilogue, **params: Any
) -> Any:
    """Binds the primitive: y alone.

    Args:
      spec: RAGGED_M or RAGGED_M_BY_K.
      lhs: as in `grouped`, likewise the following.
      rhs: matrices of the groups.
      group_sizes: (groups,), int32.
      *operands: a bias, (groups, n), of which a row of no group has none, and scales; or matrices like rhs; or nothing.
      epilogue: an activation of ACTIVATIONS, and as its operands BIAS and SCALES, of lhs' labels "m" or none, of rhs'
        "gn", "g" or none; or SECOND_B with rhs' labels; or nothing.
      **params: as in `grouped`.
    """
    return grouped_fused_p.bind(
        *_compat.match_varying(lhs, rhs, group_sizes, *operands),
        spec=spec,
        epilogue=epilogue,
        preactivation=False,
        **params,
    )[0]


@grouped_fused_p.def_abstract_eval
def _fused_abstract_eval(lhs, rhs, group_sizes, *operands, spec, epilogue, preactivation, **params):
    del operands
    out, _ = grouped_p.abstract_eval(lhs, rhs, group_sizes, spec=spec, **params)
    return [out, *[out.update(dtype=stored_dtype(out.dtype))] * (preactivation * (1 + epilogue.is_of_pair))]


def _bias_of_rows(bias: Any, group_sizes: Any, rows: int, *, product: Any = grouped, **params: Any) -> Any:
    """(rows, n): of each row the bias of its group, and zeros where it has none. Its transpose sums over groups."""
    ones = jnp.broadcast_to(jnp.arange(_ONES) == 0, (rows, _ONES)).astype(bias.dtype)
    matrices = jnp.pad(bias[:, None, :], ((0, 0), (0, _ONES - 1), (0, 0)))
    if params["implementation"] == "moye":  # was asked of the caller's product; this one may be of f32
        params["implementation"] = None
    return product(RAGGED_M, ones, matrices, group_sizes, **params)


def _scales_of_rows(epilogue: Epilogue, operands: Sequence[Any], group_sizes: Any, rows: int) -> list[Any]:
    """What the product is multiplied by, one after the other, in float32: what is broadcast to (rows, n)."""
    ends = _ends(group_sizes, rows) if group_sizes.shape[0] > 0 else jnp.zeros(1, jnp.int32)
    row = jnp.arange(rows)
    is_of_group = (row < ends[-1])[:, None]  # where it is not, the factor is 0 and the scale may be NaN
    group = jnp.searchsorted(ends, row, side="right", method="compare_all")
    factors = []
    for (name, labels), x in zip(epilogue.operands, operands, strict=True):
        if name not in SCALES:
            continue
        x = x.astype(jnp.float32)
        if labels.startswith("g"):
            x = jnp.take(x if x.shape[0] > 0 else jnp.zeros((1, *x.shape[1:])), group, axis=0, mode="clip")
        factors.append(jnp.where(is_of_group, x[:, None] if labels in ("m", "g") else x, 0))
    return factors


def unfused(lhs, rhs, group_sizes, *operands, spec, epilogue, preactivation, out_dtype, config=None, **params):
    """What the primitive computes, by products, no config's, and elementwise functions, in f32 until y is rounded."""
    compute, stored = compute_dtype(lhs.dtype, out_dtype), stored_dtype(out_dtype)
    params |= {"out_dtype": compute, "config": None}
    factors = []  # of y, beside the activation
    z = grouped(spec, lhs, rhs, group_sizes, **params)
    for scale in _scales_of_rows(epilogue, operands, group_sizes, lhs.shape[0]) if epilogue.is_scaled else ():
        z = z * scale
    for (name, _), x in zip(epilogue.operands, operands, strict=True):
        if epilogue.is_of_pair:
            factors.append(grouped(spec, lhs, x, group_sizes, **params))
        elif name not in SCALES:
            z = z + _bias_of_rows(x.astype(stored), group_sizes, lhs.shape[0], **params)
    y = ACTIVATIONS[epilogue.activation](z)
    for factor in factors:
        y = y * factor
    return [y.astype(out_dtype), *(x.astype(stored) for x in (z, *factors) if preactivation)]


@functools.cache
def _gate_tangent(activation: str) -> Callable[..., Any]:
    """(z, s, dz, ds) -> the tangent of activation(z) * s. Of it nothing but z and s is kept for its transpose."""

    def gate(z, other):
        return ACTIVATIONS[activation](z) * other

    def fun(z, other, z_dot, other_dot):
        primals = z.astype(z_dot.dtype), other.astype(other_dot.dtype)
        return jax.jvp(gate, primals, (z_dot, other_dot))[1]

    return jax.checkpoint(fun, prevent_cse=False)


def _is_live(dot: Any) -> bool:
    return type(dot) is not ad.Zero


def fused_jvp(primals, tangents, *, spec, epilogue, preactivation, out_dtype, config, ways=None, **params):
    """The rule. ways: of permuted rows, what binds their primitive, multiplies them, and stores rows of a bias."""
    bind, product, of_bias = ways or (grouped_fused_p.bind, grouped, grouped)
    lhs, rhs, group_sizes, *others = primals
    lhs_dot, rhs_dot, _, *other_dots = tangents
    is_live = [_is_live(dot) for dot in (lhs_dot, rhs_dot, *other_dots)]
    activation, is_of_pair = epilogue.activation, epilogue.is_of_pair
    asks_z = any(is_live) and (activation != "none" or is_of_pair)
    of_product = {"spec": spec, "out_dtype": out_dtype, "config": config, **params}
    y, *kept = bind(*primals, epilogue=epilogue, preactivation=preactivation or asks_z, **of_product)
    outs = [y, *kept] if preactivation else [y]
    if not any(is_live):
        return outs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    # The config was meant for y.
    compute, stored = compute_dtype(lhs.dtype, out_dtype), stored_dtype(out_dtype)
    # Before it is scaled, a tangent may be beyond float16, as the product may.
    is_wide = epilogue.is_scaled and stored == jnp.float16
    params |= {"out_dtype": compute if is_wide else stored, "config": None}

    def product_dot(matrices, matrices_dot, *terms):
        if type(matrices_dot) is not ad.Zero:
            terms = (product(spec, lhs, matrices_dot, group_sizes, **params), *terms)
        if is_live[0]:
            terms = (product(spec, lhs_dot, matrices, group_sizes, **params), *terms)
        if not terms:
            return _compat.match_varying(jnp.zeros(y.shape, compute), y)[0]
        return functools.reduce(lax.add, (term.astype(compute) for term in terms))

    def scaled_dot(terms, moves_scales):
        def scaled(z, *others):
            for scale in _scales_of_rows(epilogue, others, group_sizes, y.shape[0]):
                z = z * scale
            return z

        if moves_scales:  # their derivative needs the product without them
            unscaled = product(spec, lhs, rhs, group_sizes, **(params | {"out_dtype": compute}))
            scale_dots = [ad.instantiate_zeros(dot) for dot in other_dots]
            terms.append(jax.jvp(functools.partial(scaled, unscaled), others, scale_dots)[1])
        if is_live[0] or is_live[1]:
            terms.append(scaled(product_dot(rhs, rhs_dot), *others))
        return functools.reduce(lax.add, (term.astype(compute) for term in terms))

    if is_of_pair:
        dots = [product_dot(rhs, rhs_dot), product_dot(others[0], other_dots[0])]
        y_dot = _gate_tangent(activation)(*kept, *dots)
    else:
        live = [(name, dot) for (name, _), dot in zip(epilogue.operands, other_dots, strict=True) if _is_live(dot)]
        biases = [
            _bias_of_rows(dot.astype(stored), group_sizes, y.shape[0], product=of_bias, **params)
            for name, dot in live
            if name not in SCALES
        ]
        moves_scales = any(name in SCALES for name, _ in live)
        dots = [scaled_dot(biases, moves_scales) if epilogue.is_scaled else product_dot(rhs, rhs_dot, *biases)]
        y_dot = times_derivative(activation)(kept[0], dots[0]) if activation != "none" else dots[0]
    return outs, [y_dot.astype(out_dtype), *(dot.astype(stored) for dot in dots if preactivation)]


def _fused_transpose(cotangents, *operands, epilogue, **params):
    """Without an activation it is linear in lhs or in rhs, and in the bias; of two matrices in one of them."""
    if epilogue.activation != "none":
        raise NotImplementedError(f"jax.linear_transpose: activation {epilogue.activation!r} is not linear")
    return linear_transpose(functools.partial(unfused, epilogue=epilogue, **params), cotangents, operands)


ad.primitive_jvps[grouped_fused_p] = fused_jvp
ad.primitive_transposes[grouped_fused_p] = _fused_transpose
batching.primitive_batchers[grouped_fused_p] = functools.partial(one_after_the_other, grouped_fused_p)
partial_eval.dce_rules[grouped_fused_p] = without_preactivation
_compat.check_for_nan(grouped_fused_p)

grouped_fused_local_p = Primitive("jax_moye_grouped_fused_local")
grouped_fused_local_p.multiple_results = True
grouped_fused_local_p.def_impl(functools.partial(xla.apply_primitive, grouped_fused_local_p))


@grouped_fused_local_p.def_abstract_eval
def _fused_local_abstract_eval(lhs, rhs, group_sizes, *operands, request, permutations, preactivation):
    del operands
    left, right = operands_of((lhs, rhs), permutations)
    shape = _result_shape(request.spec, left.seen_shape, right.seen_shape, group_sizes.shape[0])
    kept = [stored_dtype(request.out_dtype)] * (preactivation * (1 + request.epilogue.is_of_pair))
    return [_compat.local_aval(shape, dtype) for dtype in (request.out_dtype, *kept)]


def lower_by_kernel(
    platform: str,
    ctx: Any,
    values: Sequence[Any],
    request: Request,
    permutations: Permutations,
    preactivation: bool,
    scatters: bool = False,
) -> tuple[Any, Decision]:
    """What a product of groups with an epilogue is lowered to where a kernel does it all, else None; and why.

    Args:
      platform: for which it is lowered.
      ctx: of the lowering.
      values: lhs, rhs, the sizes of groups, the epilogue's operands, if it scatters the permutation, and what no
        kernel reads.
      request: what was asked for.
      permutations: of the transposes behind lhs and rhs.
      preactivation: whether all results are wanted.
      scatters: whether row i of the results is stored where the permutation says.
    """
    groups, target = ctx.avals_in[2].shape[0], LoweringTarget.of_platform(platform)
    decision, call = decide_grouped(request, groups, operands_of(ctx.avals_in, permutations), target)
    if decision.kind != "kernel" or call is None:
        return None, decision
    ffi.register(platform)
    of_request: dict[str, Any] = {"call": call, "request": request, "permutations": permutations}
    fun = functools.partial(_run_kernel, **of_request, preactivation=preactivation, scatters=scatters)
    return mlir.lower_fun(fun, multiple_results=True)(ctx, *values), decision


def _lower_fused_local(platform, ctx, *values, request: Request, permutations, preactivation):
    lowered, decision = lower_by_kernel(platform, ctx, values, request, permutations, preactivation)
    if lowered is not None:
        return lowered
    operands = operands_of(ctx.avals_in, permutations)
    if decision.cause == "config":
        heed(decision, operands, served_groups)
    if decision.kind != "nothing" and request.batch_invariant:  # sizes must not decide whose tanh it is
        raise NotImplementedError(why_not_unfused(request, operands, decision.reason))
    if decision.kind != "nothing":
        what = describe(request, operands)
        say_once(logging.INFO, f"the epilogue of {what} is not its kernel's: {decision.reason}")
    epilogue = request.epilogue
    assert epilogue is not None
    params = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    del params["beta"], params["alone"], params["keeps_c"]

    def by_products(lhs, rhs, group_sizes, *others):
        if epilogue.is_of_pair:
            others = tuple(transposed((lhs, x), permutations)[1] for x in others)
        lhs, rhs = transposed((lhs, rhs), permutations)
        return unfused(lhs, rhs, group_sizes, *others, preactivation=preactivation, **params)

    return mlir.lower_fun(by_products, multiple_results=True)(ctx, *values)


mlir.register_lowering(grouped_fused_local_p, functools.partial(_lower_fused_local, "another platform"))
mlir.register_lowering(grouped_fused_local_p, functools.partial(_lower_fused_local, "cpu"), platform="cpu")
mlir.register_lowering(grouped_fused_local_p, functools.partial(_lower_fused_local, "cuda"), platform="cuda")


def request_of_program(params: Mapping[str, Any]) -> Request:
    """What an equation asks for that `jax_moye.optimize` found in a program; without an epilogue it is the product.

    Args:
      params: of the equation, but for those that say what the program had.
    """
    request = Request(**params)
    alone = None if request.epilogue is None else dataclasses.replace(request, epilogue=None)
    return dataclasses.replace(request, alone=alone)


def lower_to_local(ctx: Any, primitive: Primitive, values: Sequence[Any], request: Request, **params: Any) -> Any:
    """The first step: the operands as they are in memory. Two matrices of a group are read in one way.

    Args:
      ctx: of the lowering.
      primitive: of the second step.
      values: as in `lower_by_kernel`.
      request: likewise.
      **params: what else the primitive has.
    """
    at = [1, 3] if request.epilogue is not None and request.epilogue.is_of_pair else [1]
    sources = [Source(value, aval, None) for value, aval in zip(values, ctx.avals_in, strict=True)]
    found = [source(values[i], ctx.avals_in[i]) for i in at]
    if len({one.permutation for one in found}) == 1:
        for i, one in zip(at, found, strict=True):
            sources[i] = one
    return _compat.lower_equation(
        ctx,
        primitive,
        tuple(one.value for one in sources),
        [one.aval for one in sources],
        request=request,
        permutations=(None, sources[1].permutation),
        **params,
    )


def _lower_fused(ctx, *values, preactivation, **params):
    request = Request(**params)
    reason = _compat.why_not_local(ctx)
    if reason is not None or request.implementation == "xla":
        if request.batch_invariant:
            avals = operands_of(ctx.avals_in, (None, None))
            raise NotImplementedError(why_not_unfused(request, avals, reason or "implementation='xla'"))
        fun = functools.partial(unfused, preactivation=preactivation, **params)
        return mlir.lower_fun(fun, multiple_results=True)(ctx, *values)
    return lower_to_local(ctx, grouped_fused_local_p, values, request, preactivation=preactivation)


mlir.register_lowering(grouped_fused_p, _lower_fused, cacheable=False)
