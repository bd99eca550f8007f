"""fused_p: a contraction, and what its kernel makes of the sums before it writes them.

    z[o] = alpha * sum_k x[l] * w[r] + beta * c[o] + bias[o],   y[o] = activation(z[o]) + residual[o]

where the sum may be multiplied by a scale of lhs, which moves along its dimensions, and by one of rhs.

Not linear, hence a primitive of its own beside contract_p. Its second result, z, the pre-activation, is written by the
same kernel and only where somebody asks: the derivative does, and a rule for dead code takes back what nobody reads.
The derivatives are contractions and elementwise functions of the saved z, so that every order follows from contract_p's
rules, and no product is computed twice.

Lowering takes two steps, as contract_p's does; one decision is about product and epilogue. Where no kernel can do it
all (a program partitioned over devices, a platform without kernels, a broadcast that no stride describes) it is
`unfused`: a contraction, then elementwise functions, which XLA fuses, in the same precision: sums stay in the dtype
they have until y and z are rounded, once.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye import _compat
from jax_moye._kernels import own_epilogue
from jax_moye._log import say_once
from jax_moye._primitives import contraction
from jax_moye._primitives.autotune import decide_by_measuring
from jax_moye._primitives.contraction import contract, contract_p, linear_transpose
from jax_moye._primitives.custom_call import run_kernel_on, with_c_kept, with_lasting
from jax_moye._primitives.orders import with_orders_in_lowering
from jax_moye._primitives.transposes import operands_of, source
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import Decision, decide_unfused, why_not_unfused
from jax_moye._selection.epilogue import ACTIVATIONS, SCALES, Epilogue, compute_dtype, stored_dtype
from jax_moye._selection.problem import labels, parse_spec
from jax_moye._selection.request import Operands, Request, describe, label_sizes

# --------------------------------------------------------------------------------------------------- the primitive

fused_p = Primitive("jax_moye_fused")
fused_p.multiple_results = True
fused_p.def_impl(functools.partial(xla.apply_primitive, fused_p))


def fused(spec: str, x: Any, w: Any, operands: Sequence[Any], *, epilogue: Epilogue, **params: Any) -> Any:
    """Binds the primitive: y alone.

    Args:
      spec: as in `contract`.
      x: array with the dimensions that the specification names.
      w: likewise. Of a wider dtype than x it is rounded to x's for the product; its gradient keeps its own.
      operands: what epilogue.operands names, of any dtype: they are converted to stored_dtype of the result, scales to
        float32.
      epilogue: what becomes of the sums.
      params: as in `contract`, all of them but beta.

    Raises:
      ValueError: the shapes do not fit.
    """
    return fused_p.bind(
        *_compat.match_varying(x, w, *operands), spec=spec, epilogue=epilogue, preactivation=False, **params
    )[0]


def _contract_params(params: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The parameters of fused_p that `contract` takes, too."""
    of_fused = ("spec", "epilogue", "preactivation")
    return {name: value for name, value in params.items() if name not in of_fused} | changes


@fused_p.def_abstract_eval
def _abstract_eval(x, w, *operands, spec, epilogue, preactivation, **params):
    out, _ = contract_p.abstract_eval(x, w.update(dtype=x.dtype), spec=spec, beta=0.0, **params)
    out = out.update(weak_type=False)
    sizes = dict(zip(parse_spec(spec).out, out.shape, strict=True))
    for (name, labels_), operand in zip(epilogue.operands, operands, strict=True):
        expected = tuple(sizes[label] for label in labels_)
        if operand.shape != expected:
            raise ValueError(f"fused: {name} has shape {operand.shape}, and {spec} needs {expected}")
    return [out, out.update(dtype=stored_dtype(out.dtype))][: 1 + preactivation]


def _broadcast(operand: Any, labels_: str, out_labels: str) -> Any:
    """An operand with a dimension, of size 1 where it has none, for each label of the output."""
    order = sorted(range(len(labels_)), key=lambda i: out_labels.index(labels_[i]))
    if order != list(range(len(labels_))):
        operand = lax.transpose(operand, order)
    return lax.expand_dims(operand, [i for i, label in enumerate(out_labels) if label not in labels_])


def _finish(z, *operands, spec, epilogue, preactivation, out_dtype):
    """The epilogue in jax: from the product, in the dtype in which to compute, to y, or y and z."""
    out_labels, compute, stored = parse_spec(spec).out, z.dtype, stored_dtype(out_dtype)
    values = {
        name: _broadcast(operand.astype(jnp.float32 if name in SCALES else stored), labels_, out_labels).astype(compute)
        for (name, labels_), operand in zip(epilogue.operands, operands, strict=True)
    }

    def scaled(x, factor):
        return x if factor == 1 else x * np.asarray(factor, compute)

    z = scaled(z, epilogue.alpha)
    for name in SCALES:
        if name in values:
            z = z * values[name]
    for name in ("c", "bias"):
        if name in values:
            z = z + scaled(values[name], epilogue.factor(name))
    y = epilogue.function(z)
    if "residual" in values:
        y = y + values["residual"]
    return [y.astype(out_dtype), z.astype(stored)][: 1 + preactivation]


def unfused(x, w, *operands, spec, epilogue, preactivation, out_dtype, **params):
    """What the primitive computes, by a contraction and elementwise functions."""
    dtype = out_dtype if epilogue.is_nothing else compute_dtype(x.dtype, out_dtype)
    product = contract(spec, x, w.astype(x.dtype), out_dtype=dtype, **params)
    if epilogue.is_nothing and not preactivation:
        return [product]
    return _finish(
        product, *operands, spec=spec, epilogue=epilogue, preactivation=preactivation, out_dtype=jnp.dtype(out_dtype)
    )


# ------------------------------------------------------------------------------------------------- transformations


@functools.cache
def times_derivative(activation: str) -> Callable[[Any, Any], Any]:
    """(z, t) -> activation'(z) t. Of it nothing but z is kept for the transposed function."""
    return _times_derivative_of(ACTIVATIONS[activation])


def _times_derivative_of(activation: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def fun(z, tangent):
        return jax.jvp(activation, (z.astype(tangent.dtype),), (tangent,))[1]

    return jax.checkpoint(fun, prevent_cse=False)


def _is_live(tangent: Any) -> bool:
    return type(tangent) is not ad.Zero


def _jvp(primals, tangents, *, spec, epilogue, preactivation, out_dtype, **params):
    x, w, *_ = primals
    x_dot, w_dot, *operand_dots = tangents
    dots = {
        name: (labels_, dot)
        for (name, labels_), dot in zip(epilogue.operands, operand_dots, strict=True)
        if _is_live(dot)
    }
    moves_scales = any(name in dots for name in SCALES)
    moves_z = _is_live(x_dot) or _is_live(w_dot) or "c" in dots or "bias" in dots or moves_scales
    has_residual = any(name == "residual" for name, _ in epilogue.operands)
    # relu'(z) can be told from y, which somebody keeps anyway, unless y has 8 bits: many a positive z is 0 there.
    asks_y = epilogue.activation == "relu" and not has_residual and jnp.dtype(out_dtype) == stored_dtype(out_dtype)
    asks_z = moves_z and epilogue.activation != "none" and not asks_y
    of_primals = {"spec": spec, "epilogue": epilogue, "preactivation": preactivation or asks_z, "out_dtype": out_dtype}
    unscaled = None
    if moves_scales:  # a scale's derivative needs the product without it
        dtype = compute_dtype(x.dtype, out_dtype)
        unscaled = contract(spec, x, w.astype(x.dtype), **_contract_params(params, out_dtype=dtype))
        of_primals["out_dtype"] = jnp.dtype(out_dtype)
        y, *rest = _finish(unscaled, *primals[2:], **of_primals)
    else:
        y, *rest = fused_p.bind(*primals, **of_primals, **params)
    outs = [y, *rest][: 1 + preactivation]
    no_tangents = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if not moves_z and not dots:
        return outs, no_tangents

    stored, compute = stored_dtype(out_dtype), compute_dtype(x.dtype, out_dtype)
    out_labels = parse_spec(spec).out

    def wide(name):
        labels_, dot = dots[name]
        return _broadcast(dot, labels_, out_labels).astype(compute)

    # The config was meant for y.
    # Before it is scaled, a tangent may be beyond float16, as the product may.
    is_wide = epilogue.is_scaled and stored == jnp.float16
    of_contract = _contract_params(params, out_dtype=compute if is_wide else stored, config=None)
    product = z_dot = y_dot = None
    # With an activation, z's cotangent takes some work. XLA does it twice, or writes it in `compute`, if the bias' sum
    # reads what comes before the rounding: so that sum, too, reads what the products read. Not of a wider bias, whose
    # gradient has more digits than that.
    is_rounded_once = (
        epilogue.activation != "none"
        and epilogue.alpha == 1
        and not epilogue.is_scaled
        and "bias" in dots
        and dots["bias"][1].dtype == stored
        and stored != compute
        and (_is_live(x_dot) or _is_live(w_dot))
    )
    if is_rounded_once:
        product = jnp.broadcast_to(wide("bias"), y.shape).astype(stored)
        del dots["bias"]
    if _is_live(x_dot):
        product = contract(spec, x_dot, w.astype(x.dtype), product, **of_contract)
    if _is_live(w_dot):  # in w's dtype: its transposed product, x and z's cotangent, is written in it, unrounded
        product = contract(spec, x, w_dot, product, **of_contract)
    if product is not None:
        if is_rounded_once:  # or XLA leaves out the rounding between two conversions
            product = lax.optimization_barrier(product)
        z_dot = product.astype(compute)
        if epilogue.alpha != 1:
            z_dot = z_dot * np.asarray(epilogue.alpha, compute)
    scales = {
        name: _broadcast(scale.astype(jnp.float32), labels_, out_labels).astype(compute)
        for (name, labels_), scale in zip(epilogue.operands, primals[2:], strict=True)
        if name in SCALES
    }
    if z_dot is not None:
        for scale in scales.values():
            z_dot = z_dot * scale
    for name in scales:
        if name in dots:
            assert unscaled is not None
            term = unscaled * np.asarray(epilogue.alpha, compute) * wide(name)
            for other in scales.keys() - {name}:
                term = term * scales[other]
            z_dot = term if z_dot is None else z_dot + term
    for name in ("c", "bias"):
        if name in dots:
            factor = epilogue.factor(name)
            term = wide(name) if factor == 1 else wide(name) * np.asarray(factor, compute)
            z_dot = jnp.broadcast_to(term, y.shape) if z_dot is None else z_dot + term
    if z_dot is not None:
        saved = y if asks_y else rest[0] if rest else None
        if epilogue.own is not None:  # not cached: a function is the caller's to forget
            y_dot = _times_derivative_of(epilogue.own)(saved, z_dot)
        else:
            y_dot = z_dot if epilogue.activation == "none" else times_derivative(epilogue.activation)(saved, z_dot)
    if "residual" in dots:
        term = wide("residual")
        y_dot = jnp.broadcast_to(term, y.shape) if y_dot is None else y_dot + term
    assert y_dot is not None
    new = [y_dot.astype(out_dtype), no_tangents[-1] if z_dot is None else z_dot.astype(stored)]
    return outs, new[: 1 + preactivation]


ad.primitive_jvps[fused_p] = _jvp


def _transpose(cotangents, *operands, spec, epilogue, preactivation, out_dtype, **params):
    """That of the contraction and of what is done to it, one by one: without an activation they are linear."""
    if epilogue.activation != "none":
        raise NotImplementedError(f"jax.linear_transpose: activation {epilogue.activation!r} is not linear")

    def fun(x, w, *rest):
        # As in _jvp: a wider w is left as it is, so that its cotangent is written in its own dtype, unrounded.
        w = w if ad.is_undefined_primal(operands[1]) else w.astype(x.dtype)
        dtype = out_dtype if epilogue.is_nothing else compute_dtype(x.dtype, out_dtype)
        product = contract(spec, x, w, out_dtype=dtype, **params)
        finish = {"spec": spec, "epilogue": epilogue, "preactivation": preactivation, "out_dtype": jnp.dtype(out_dtype)}
        return _finish(product, *rest, **finish)

    return linear_transpose(fun, cotangents, operands)


ad.primitive_transposes[fused_p] = _transpose
_compat.check_for_nan(fused_p)


def _batch(axis_data, operands, dims, *, spec, epilogue, preactivation, out_dtype, out_sharding, **params):
    finish = {"preactivation": preactivation, "out_dtype": out_dtype}
    params |= {"out_dtype": out_dtype}
    if all(dim is None for dim in dims):  # rules that get axis_data are also called with nothing batched
        bind = functools.partial(fused_p.bind, preactivation=preactivation, out_sharding=out_sharding, **params)
        return bind(*operands, spec=spec, epilogue=epilogue), [None] * (1 + preactivation)
    mapped_axis = getattr(axis_data, "explicit_mesh_axis", None)
    x, w, *rest = operands
    if dims[0] is None and dims[1] is None and params["batch_invariant"]:  # no XLA's epilogue then
        x, dims = _compat.broadcast_batch(x, axis_data.size, 0, mapped_axis), (0, *dims[1:])
    elif dims[0] is None and dims[1] is None:  # one product with many epilogues
        dtype = compute_dtype(x.dtype, out_dtype)
        of_contract = _contract_params(params, out_dtype=dtype, out_sharding=out_sharding)
        product = contract(spec, x, w.astype(x.dtype), **of_contract)

        def finished(z, *values):
            return _finish(z, *values, spec=spec, epilogue=epilogue, **finish)

        return jax.vmap(finished, (None, *dims[2:]))(product, *rest), [0] * (1 + preactivation)

    parsed = parse_spec(spec)
    new = next(label for label in labels() if label not in spec)
    # The new dimension is where c has it, or the residual, so that a kernel reads and writes at the same places.
    out_dim = next(
        (
            dim
            for (name, _), dim in zip(epilogue.operands, dims[2:], strict=True)
            if dim is not None and name in ("c", "residual")
        ),
        0,
    )

    def batched(names, dim):
        return names if dim is None else names[:dim] + new + names[dim:]

    if out_sharding is not None:
        axes = [*out_sharding.spec, *[None] * (len(parsed.out) - len(out_sharding.spec))]
        axes.insert(out_dim, mapped_axis)
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(*axes))
    named = tuple(
        (name, batched(labels_, dim)) for (name, labels_), dim in zip(epilogue.operands, dims[2:], strict=True)
    )
    outs = fused_p.bind(
        x,
        w,
        *rest,
        spec=f"{batched(parsed.lhs, dims[0])},{batched(parsed.rhs, dims[1])}->{batched(parsed.out, out_dim)}",
        epilogue=dataclasses.replace(epilogue, operands=named),
        preactivation=preactivation,
        out_sharding=out_sharding,
        **params,
    )
    return outs, [out_dim] * (1 + preactivation)


batching.fancy_primitive_batchers[fused_p] = _batch


def without_preactivation(used, *rest):
    """Dead code of an equation whose results behind the first, the pre-activation, nobody reads: jaxprs' rule."""
    *_, equation = rest  # before it, from jax 0.12 on, which operands are live
    if not any(used):
        return [False] * len(equation.invars), None
    if equation.params["preactivation"] and not any(used[1:]):
        equation = equation.replace(params=equation.params | {"preactivation": False}, outvars=equation.outvars[:1])
    return [True] * len(equation.invars), equation


partial_eval.dce_rules[fused_p] = without_preactivation

# ------------------------------------------------------------------------------------------------------- lowering


fused_local_p = Primitive("jax_moye_fused_local")
fused_local_p.multiple_results = True
fused_local_p.def_impl(functools.partial(xla.apply_primitive, fused_local_p))


@fused_local_p.def_abstract_eval
def _local_abstract_eval(x, w, *operands, request, preactivation, permutations):
    del operands
    sizes = label_sizes(request.spec, operands_of((x, w), permutations))
    shape = [sizes[label] for label in parse_spec(request.spec).out]
    dtypes = [request.out_dtype, stored_dtype(request.out_dtype)]
    return [_compat.local_aval(shape, dtype) for dtype in dtypes[: 1 + preactivation]]


def with_own_activation(
    decision: Decision, operands: Operands, target: LoweringTarget, *, is_exported: bool, emulated: bool = True
) -> Decision:
    """The decision for a kernel, which is compiled with the epilogue's function, or for the product alone.

    It is waited for where the same program has to come out each time, and where the caller insists on our kernels.

    Args:
      decision: for a kernel.
      operands: as in `decide`.
      target: likewise.
      is_exported: whether the program is saved.
      emulated: whether the emulator compiles kernels for who does not insist on them.
    """
    request, call = decision.request, decision.call
    assert call is not None
    if request.epilogue is None:  # of the product alone: no kernel would finish it
        return decision
    assert request.epilogue.own is not None
    reason = None
    if is_exported or (target.platform == "cuda" and _compat.cuda_arch() is None):
        reason = "the program may run elsewhere, and what is compiled with a function is in this process alone"
    elif request.interpret is not None and not (emulated or request.insists):
        reason = "the emulator's kernels are compiled with a program's equations where implementation='moye' is given"
    if reason is not None:
        return decide_unfused(decision, operands, target, reason)
    is_awaited = request.insists or request.deterministic or request.interpret is not None
    name, reason = own_epilogue.kernel_of(
        call.config,
        request.epilogue.own.body,
        call.problem.launch_order,
        target.platform,
        target.arch,
        wait=is_awaited or _compat.key_value_store() is not None,
    )
    if reason is not None:
        return decide_unfused(decision, operands, target, reason)
    return decision._replace(call=dataclasses.replace(call, compiled=name))


def _lower_local(platform, ctx, *values, request: Request, preactivation: bool, permutations):
    x_aval, w_aval, *_ = ctx.avals_in
    # A decision is about w as it is behind its conversion to x's dtype.
    operands = operands_of((x_aval, w_aval.update(dtype=x_aval.dtype)), permutations)
    assert request.epilogue is not None
    target = LoweringTarget.of_platform(platform)
    of_request = {"spec": request.spec, "epilogue": request.epilogue, "out_dtype": jnp.dtype(request.out_dtype)}

    timed = dataclasses.replace(request.epilogue, activation=request.epilogue.timed_as)

    def by_xla(x, w, *operands):
        z = contraction.xlas_product(x, w, request=request.without_epilogue(x.dtype), permutations=permutations)
        return _finish(z, *operands, **(of_request | {"epilogue": timed}), preactivation=False)[0]

    shapes = {name: aval.shape for (name, _), aval in zip(request.epilogue.operands, ctx.avals_in[2:], strict=True)}
    decision = decide_by_measuring(request, operands, target, by_xla, shapes)
    if request.epilogue.own is not None and decision.kind == "kernel":
        decision = with_own_activation(decision, operands, target, is_exported=_compat.is_exported(ctx))
    out_shape = ctx.avals_out[0].shape
    call = decision.call
    if decision.kind == "kernel" and call is not None and call.epilogue is not None:
        run = functools.partial(
            run_kernel_on(platform),
            call=call,
            request=request,
            permutations=permutations,
            out_shape=out_shape,
            preactivation=preactivation,
        )

        # Before the conversion to what the kernel multiplies, which may be wider than x: float64 for such a result.
        def rounded(x, w, *operands):
            return run(x, w.astype(x.dtype), *operands)

        return mlir.lower_fun(rounded, multiple_results=True)(ctx, *values)

    if decision.epilogue_reason is not None:
        what = describe(request, operands)
        say_once(logging.INFO, f"the epilogue of {what} is not its kernel's: {decision.epilogue_reason}")
    if decision.kind != "xla" or decision.request.epilogue is None:  # else all is XLA's for the reason above
        contraction.heed(decision, operands)
    alone = decision.request.without_epilogue(x_aval.dtype)
    product = contraction.decided_product(decision, alone, permutations, platform, out_shape)

    def finished(x, w, *operands):
        z = product(x, w.astype(x.dtype))
        return _finish(z, *operands, **of_request, preactivation=preactivation)

    return mlir.lower_fun(finished, multiple_results=True)(ctx, *values)


mlir.register_lowering(fused_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(fused_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(fused_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, *values, epilogue, preactivation, out_sharding, **params):
    reason = _compat.why_not_local(ctx)
    if reason is not None and params["batch_invariant"] and not epilogue.is_nothing:
        operands = operands_of(ctx.avals_in, (None, None))
        raise NotImplementedError(why_not_unfused(Request(**params), operands, reason))
    if reason is not None or params["implementation"] == "xla" or epilogue.is_nothing:
        fun = functools.partial(
            unfused, epilogue=epilogue, preactivation=preactivation, out_sharding=out_sharding, **params
        )
        return mlir.lower_fun(fun, multiple_results=True)(ctx, *values)

    sources = [source(*pair) for pair in zip(values[:2], ctx.avals_in[:2], strict=True)]
    avals = [*(one.aval for one in sources), *ctx.avals_in[2:]]
    operands = (*(one.value for one in sources), *values[2:])
    request = with_lasting(ctx, with_c_kept(Request(**params, epilogue=epilogue), values), operands)
    return _compat.lower_equation(
        ctx,
        fused_local_p,
        operands,
        avals,
        request=with_orders_in_lowering(ctx, request, sources),
        preactivation=preactivation,
        permutations=tuple(one.permutation for one in sources),
    )


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(fused_p, _lower, cacheable=False)
