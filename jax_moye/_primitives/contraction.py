"""contract_p: one bilinear primitive, a contraction of two arrays named by an einsum string.

    out[o] = sum_k lhs[l] * rhs[r] (+ beta * c[o])        spec = "l,r->o", e.g. "bmk,kn->bmn"

Specifications are closed under transposition (swap the roles of the three strings) and under vmap (add a label), so no
rule below emits a transpose, and every derivative order follows from two rules. A third operand c is what is already
there: a kernel adds to it while it writes, in place where c is not needed any more.

Lowering takes two steps. `contract_p` is lowered where it stands: it sees the operands, folds transposes in front of
them into strides, and where several devices take part sharding.py says what each one does. `contract_local_p`, what
then runs on one device, has a rule for each platform.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core.primitives import add_p, transpose_p
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import numpy_dtype
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives import sharding
from jax_moye._primitives.reference import lax_aval, lax_form, lax_result_dtype, permute_sharding, reference
from jax_moye._primitives.split_tf32 import split_tf32
from jax_moye._selection.plan import (
    KernelCall,
    Request,
    describe,
    find_kernel,
    plan_call,
    served,
    why_not_xla,
)
from jax_moye._selection.problem import NotServedError, labels, parse_spec

_logger = logging.getLogger("jax_moye")

# --------------------------------------------------------------------------------------------------- the primitive

contract_p = Primitive("jax_moye_contract")
contract_p.def_impl(functools.partial(xla.apply_primitive, contract_p))


def contract(
    spec,
    lhs,
    rhs,
    c=None,
    *,
    beta=1.0,
    out_dtype,
    precision,
    out_sharding,
    config,
    implementation,
    interpret,
    deterministic=False,
    batch_invariant=False,
):
    """Binds the primitive: lhs rhs + beta c.

    Args:
      spec: e.g. "bmk,kn->bmn".
      lhs: array with the dimensions that the specification names.
      rhs: likewise.
      c: None, or an array of the result's shape, which is converted to the result's dtype. Where beta is 0 it is left
        out: NaN in it does not reach the result.
      beta: a number known while tracing, an integer where the result is one.
      out_dtype: of the result.
      precision: None, a pair of lax.Precision, a lax.DotAlgorithmPreset or a lax.DotAlgorithm.
      out_sharding: None or a NamedSharding on an abstract mesh.
      config: name of a row of the table, or None.
      implementation: None, "moye" or "xla".
      interpret: InterpretParams or None.
      deterministic: see plan.Request.
      batch_invariant: likewise.

    Raises:
      ValueError: c has not the result's shape, or beta is no integer and the result is one.
    """
    out_dtype, beta = jnp.dtype(out_dtype), 0.0 if c is None else float(beta)
    if not jnp.issubdtype(out_dtype, jnp.inexact) and not beta.is_integer():
        raise ValueError(f"contract: beta is an integer where the result is {out_dtype}, not {beta}")
    operands = [lhs, rhs] if beta == 0 else [lhs, rhs, lax.convert_element_type(c, out_dtype)]
    return contract_p.bind(
        *_compat.match_varying(*operands),
        spec=spec,
        out_dtype=out_dtype,
        precision=precision,
        beta=beta,
        out_sharding=out_sharding,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )


@contract_p.def_abstract_eval
def _abstract_eval(lhs, rhs, *c, spec, out_dtype, precision, beta, out_sharding, **unused):
    del unused
    assert len(c) == (beta != 0)
    parsed = parse_spec(spec)
    if len(parsed.lhs) != lhs.ndim or len(parsed.rhs) != rhs.ndim:
        raise ValueError(f"contract: {spec!r} does not fit the shapes {lhs.shape} and {rhs.shape}")
    dimension_numbers, permutation = lax_form(spec)
    # Shapes, sharding-in-types, varying axes and the messages about them are lax's own.
    out = lax_aval(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=lax_result_dtype(lhs.dtype, rhs.dtype, out_dtype),
        out_sharding=permute_sharding(out_sharding, permutation),
    )
    if permutation != tuple(range(len(permutation))):
        out, _ = transpose_p.abstract_eval(out, permutation=permutation)
    out = out.update(dtype=out_dtype)
    if not c:
        return out
    if c[0].shape != out.shape or c[0].dtype != out.dtype:
        raise ValueError(
            f"contract: c is {c[0].dtype}{list(c[0].shape)}, and {spec} on shapes {lhs.shape} and {rhs.shape} gives "
            f"{out.dtype}{list(out.shape)}: they are the same"
        )
    out, _ = add_p.abstract_eval(out, c[0])  # what lax says about two shardings
    return out


def _scaled(c, beta):
    return c if beta == 1 else lax.mul(c, lax.full_like(c, beta))


def _jvp(primals, tangents, *, beta, **params):
    lhs, rhs, *_ = primals
    lhs_dot, rhs_dot, *c_dot = tangents
    out = contract_p.bind(*primals, beta=beta, **params)
    total = c_dot[0] if c_dot and type(c_dot[0]) is not ad.Zero else None
    factor = beta  # of the total so far
    for left, right in ((lhs_dot, rhs), (lhs, rhs_dot)):
        if type(left) is ad.Zero or type(right) is ad.Zero:
            continue
        # A second term is added to the first where the kernel writes it: no addition of its own.
        total = (
            contract_p.bind(left, right, beta=0.0, **params)
            if total is None
            else contract_p.bind(left, right, total, beta=factor, **params)
        )
        factor = 1.0
    if total is None:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, _scaled(total, factor)


def _transpose(cotangent, lhs, rhs, *c, spec, out_dtype, precision, beta, out_sharding, config, **params):
    del out_dtype, out_sharding, config  # the config was meant for the forward product
    cotangents = [None] * (2 + len(c))
    if type(cotangent) is ad.Zero:
        return cotangents
    parsed = parse_spec(spec)

    def bind(left, right, spec, wanted):
        dtype = wanted.aval.dtype
        is_real_part = jnp.issubdtype(cotangent.dtype, jnp.complexfloating) and jnp.issubdtype(dtype, jnp.floating)
        sharding = wanted.aval.sharding
        out = contract_p.bind(
            left,
            right,
            spec=spec,
            # The kernel writes the primal's dtype: no conversion follows.
            out_dtype=cotangent.dtype if is_real_part else dtype,
            precision=precision,
            beta=0.0,
            out_sharding=None if sharding.mesh.empty else sharding,
            config=None,
            **params,
        )
        return lax.convert_element_type(lax.real(out), dtype) if is_real_part else out

    if ad.is_undefined_primal(lhs):
        cotangents[0] = bind(cotangent, rhs, f"{parsed.out},{parsed.rhs}->{parsed.lhs}", lhs)
    elif ad.is_undefined_primal(rhs):
        cotangents[1] = bind(lhs, cotangent, f"{parsed.lhs},{parsed.out}->{parsed.rhs}", rhs)
    if c and ad.is_undefined_primal(c[0]):
        cotangents[2] = _scaled(cotangent, beta)
    return cotangents


ad.primitive_jvps[contract_p] = _jvp
ad.primitive_transposes[contract_p] = _transpose


def _batch(axis_data, operands, dims, *, spec, beta, out_sharding, **params):
    if all(dim is None for dim in dims):  # rules that get axis_data are also called with nothing batched
        return contract_p.bind(*operands, spec=spec, beta=beta, out_sharding=out_sharding, **params), None
    parsed = parse_spec(spec)
    lhs, rhs, *c = operands
    c_dim = dims[2] if c else None
    # The new dimension is where c has it, so that c stays where it is.
    out_dim = 0 if c_dim is None else c_dim
    mapped_axis = getattr(axis_data, "explicit_mesh_axis", None)

    def broadcast(x):
        return _compat.broadcast_batch(x, axis_data.size, out_dim, mapped_axis)

    if dims[0] is None and dims[1] is None:  # one product, added to many c
        out = contract_p.bind(lhs, rhs, spec=spec, beta=0.0, out_sharding=out_sharding, **params)
        return lax.add(broadcast(out), _scaled(c[0], beta)), out_dim
    if c and c_dim is None:
        c = [broadcast(c[0])]
    new = next(label for label in labels() if label not in spec)

    def batched(names, dim):
        return names if dim is None else names[:dim] + new + names[dim:]

    if out_sharding is not None:
        axes = [*out_sharding.spec, *[None] * (len(parsed.out) - len(out_sharding.spec))]
        axes.insert(out_dim, mapped_axis)
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(*axes))
    out = contract_p.bind(
        lhs,
        rhs,
        *c,
        spec=f"{batched(parsed.lhs, dims[0])},{batched(parsed.rhs, dims[1])}->{batched(parsed.out, out_dim)}",
        beta=beta,
        out_sharding=out_sharding,
        **params,
    )
    return out, out_dim


batching.fancy_primitive_batchers[contract_p] = _batch

# ------------------------------------------------------------------------------------------------------- lowering


def call_attributes(call: KernelCall, interpret: InterpretParams | None) -> dict[str, Any]:
    """The attributes of a custom call that say which kernel computes what, of both targets.

    The one place where they get their width: np.int64(3) and np.int32(3) are the same key of a cache.
    """
    problem = call.problem
    attributes: dict[str, Any] = {
        "config": call.config.name,
        "sizes": np.array(problem.sizes, np.int64),
        "a_strides": np.array(problem.a_strides, np.int64),
        "b_strides": np.array(problem.b_strides, np.int64),
        "d_strides": np.array(problem.d_strides, np.int64),
    }
    if interpret is not None:
        attributes["mode"] = interpret.mode
        attributes["seed"] = np.int64(interpret.seed)
        attributes["detect_races"] = interpret.detect_races
    return attributes


def _run_kernel(lhs, rhs, *c, call: KernelCall, beta, out_shape, out_dtype, interpret: InterpretParams | None):
    """Emits the custom call, and the conversions of operands and result where the kernel has other dtypes."""
    if call.split:
        return _run_split(
            lhs, rhs, *c, call=call, beta=beta, out_shape=out_shape, out_dtype=out_dtype, interpret=interpret
        )
    problem = call.problem
    lhs, rhs = (lax.convert_element_type(x, numpy_dtype(problem.dtype)) for x in (lhs, rhs))
    a, b = (rhs, lhs) if problem.swapped else (lhs, rhs)
    workspace_bytes = ffi.workspace_bytes(call.config, problem)
    attributes = call_attributes(call, interpret)
    target, aliases = ffi.TARGET, {}
    kernel_dtype = numpy_dtype(problem.out_dtype)
    if c:
        target, no_strides = ffi.FUSED_TARGET, np.zeros(3, np.int64)
        attributes |= {
            "activation": "none",
            "alpha": np.float64(1),
            "beta": np.float64(beta),
            "operands": "c",
            "c_strides": attributes["d_strides"],
            "bias_strides": no_strides,
            "residual_strides": no_strides,
        }
        # The result is written over c, element by element: every kernel reads an element of c in the thread that then
        # writes that element of d. XLA copies c first where anybody else still needs it.
        c = (lax.convert_element_type(c[0], kernel_dtype),)
        aliases = {2: 0}
    # Operands and result are row-major arrays for XLA; the strides say what they are for the kernel. The workspace is a
    # result too: memory from an allocator inside the handler could not be captured into a CUDA graph.
    result = jax.ShapeDtypeStruct(out_shape, kernel_dtype)
    workspace = jax.ShapeDtypeStruct((workspace_bytes,), jnp.uint8)
    with jax.named_scope(call.config.name):  # what a profiler shows
        run = jax.ffi.ffi_call(target, (result, workspace), input_output_aliases=aliases)
        out, _ = run(a, b, *c, **attributes)
    return lax.convert_element_type(out, out_dtype)


def _run_split(lhs, rhs, *c, call: KernelCall, beta, out_shape, out_dtype, interpret: InterpretParams | None):
    """f32 as 3 x TF32: the small products first, and each launch adds to what the one before wrote, in place."""
    run = functools.partial(
        _run_kernel,
        call=dataclasses.replace(call, split=False),
        out_shape=out_shape,
        out_dtype=jnp.float32,
        interpret=interpret,
    )
    lhs, rhs = (lax.convert_element_type(x, jnp.float32) for x in (lhs, rhs))
    (lhs_high, lhs_low), (rhs_high, rhs_low) = split_tf32(lhs), split_tf32(rhs)
    total = run(lhs_low, rhs_high, *c, beta=beta)
    total = run(lhs_high, rhs_low, total, beta=1.0)
    return lax.convert_element_type(run(lhs_high, rhs_high, total, beta=1.0), out_dtype)


contract_local_p = Primitive("jax_moye_contract_local")
contract_local_p.def_impl(functools.partial(xla.apply_primitive, contract_local_p))


@contract_local_p.def_abstract_eval
def _local_abstract_eval(lhs, rhs, *c, request, permutations):
    del c
    parsed = parse_spec(request.spec)
    sizes: dict[str, Any] = {}
    for labels_, x, permutation in zip(parsed[:2], (lhs, rhs), permutations, strict=True):
        shape = x.shape if permutation is None else [x.shape[axis] for axis in permutation]
        sizes |= zip(labels_, shape, strict=True)
    return _compat.local_aval([sizes[label] for label in parsed.out], request.out_dtype)


@functools.lru_cache(maxsize=4096)
def log_once(message: str) -> None:
    """Once in a process: every program says anew why XLA computes the same product."""
    _logger.info("%s", message)


def _leave_to_xla(reason: str, request: Request, lhs: Any, rhs: Any, platforms: Sequence[str]) -> None:
    """Says once in the log why XLA computes a contraction.

    Raises:
      NotImplementedError: the caller insists on our kernels, or on a contract that XLA would break.
    """
    what = describe(request, lhs, rhs)
    if request.implementation == "moye":
        raise NotImplementedError(f"implementation='moye': {what}: {reason}.\n{served()}")
    for platform in platforms:
        if broken := why_not_xla(platform, request):
            raise NotImplementedError(f"{broken}, and no kernel of ours computes {what}: {reason}.\n{served()}")
    if request.implementation != "xla":
        log_once(f"XLA computes {what}: {reason}")


def _lower_local(platform, ctx, *operands, request: Request, permutations):
    lhs_aval, rhs_aval, *_ = ctx.avals_in
    (out_aval,) = ctx.avals_out
    call = None
    try:
        call = plan_call(platform, request, lhs_aval, rhs_aval, permutations, may_split=True)
    except NotServedError as error:
        _leave_to_xla(str(error), request, lhs_aval, rhs_aval, [platform])
    if call is None:
        fun = functools.partial(
            reference,
            spec=request.spec,
            out_dtype=request.out_dtype,
            precision=request.precision,
            beta=request.beta,
            permutations=permutations,
        )
    else:
        ffi.register(platform)
        fun = functools.partial(
            _run_kernel,
            call=call,
            beta=request.beta,
            out_shape=out_aval.shape,
            out_dtype=request.out_dtype,
            interpret=request.interpret,
        )
    return mlir.lower_fun(fun, multiple_results=False)(ctx, *operands)


mlir.register_lowering(contract_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(contract_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(contract_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


@dataclasses.dataclass(frozen=True)
class _Operand:
    """A value of the program, and the transpose that makes an operand of it; None where it is the operand."""

    value: Any
    aval: Any
    permutation: tuple[int, ...] | None


def _look_through_transpose(value: Any, aval: Any) -> _Operand:
    source, permutation = _compat.transposed_source(value)
    if permutation is None:
        return _Operand(value, _compat.local_aval(aval.shape, aval.dtype), None)
    shape = [0] * len(aval.shape)
    for size, axis in zip(aval.shape, permutation, strict=True):
        shape[axis] = size
    return _Operand(source, _compat.local_aval(shape, aval.dtype), permutation)


def first_served(request: Request, folded: Sequence[Any], plain: Sequence[Any]) -> Sequence[Any]:
    """The operands with as many transposes as a kernel takes: each one of `folded`, or of `plain`.

    Args:
      request: what the caller asked for.
      folded: lhs and rhs, with `aval` of what is in memory and `permutation`, None where there is no transpose.
      plain: the same as if there were no transposes.
    """
    for operands in itertools.product(*zip(folded, plain, strict=True)):
        if all(operand.permutation is None for operand in operands):
            continue
        left, right = operands
        try:
            find_kernel(
                request, left.aval, right.aval, (left.permutation, right.permutation), arch=None, may_split=True
            )
        except (NotServedError, ValueError):
            continue
        return operands
    return plain


def fold_transposes(request: Request, values: Sequence[Any], avals: Sequence[Any]) -> Sequence[_Operand]:
    """The operands, with the transposes in front of them turned into strides where a kernel takes those."""
    pairs = list(zip(values, avals, strict=True))
    plain = [_Operand(value, _compat.local_aval(aval.shape, aval.dtype), None) for value, aval in pairs]
    folded = [_look_through_transpose(value, aval) for value, aval in pairs]
    return first_served(request, folded, plain)


def _bind_local(request: Request, *operands):
    """The contraction on the device where it stands."""
    return contract_local_p.bind(*operands, request=request, permutations=(None, None))


def _lower(ctx, *values, out_sharding, **params):
    request = Request(**params)
    reason = _compat.why_not_local(ctx)
    if reason is not None or request.implementation == "xla":
        if request.implementation == "xla":
            reason = "implementation='xla'"
        else:
            try:
                return sharding.lower(ctx, values, request, _bind_local)
            except NotServedError as error:
                reason = f"{reason}, and {error}"
        lhs_aval, rhs_aval, *_ = ctx.avals_in
        _leave_to_xla(reason, request, lhs_aval, rhs_aval, _compat.platforms(ctx))
        fun = functools.partial(
            reference,
            spec=request.spec,
            out_dtype=request.out_dtype,
            precision=request.precision,
            beta=request.beta,
            out_sharding=out_sharding,
        )
        return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)

    operands = fold_transposes(request, values[:2], ctx.avals_in[:2])
    permutations = tuple(operand.permutation for operand in operands)
    c = values[2:]
    (out_aval,) = ctx.avals_out
    local_out = _compat.local_aval(out_aval.shape, request.out_dtype)
    local_ctx = ctx.replace(
        avals_in=[operand.aval for operand in operands] + [local_out] * len(c),
        avals_out=[local_out],
    )
    fun = functools.partial(contract_local_p.bind, request=request, permutations=permutations)
    return mlir.lower_fun(fun, multiple_results=False)(local_ctx, *(operand.value for operand in operands), *c)


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(contract_p, _lower, cacheable=False)
