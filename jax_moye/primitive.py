"""contract_p: one bilinear primitive, a contraction of two arrays named by an einsum string.

    out[o] = sum_k lhs[l] * rhs[r]        spec = "l,r->o", e.g. "bmk,kn->bmn"

Specifications are closed under transposition (swap the roles of the three strings) and under vmap (add a label), so no
rule below emits a transpose, and every derivative order follows from two rules.

Lowering takes two steps. `contract_p` is lowered where it stands: it sees the operands, folds transposes in front of
them into strides, and leaves to XLA what is partitioned over devices. `contract_local_p`, what then runs on one device,
has a rule for each platform.
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
from jax.extend.core.primitives import dot_general_p, transpose_p
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye import _compat, _ffi
from jax_moye.interpret import InterpretParams
from jax_moye.plan import SHORT_NAMES, KernelCall, Request, describe, find_kernel, plan_call, served
from jax_moye.problem import NotServedError, labels, parse_spec
from jax_moye.reference import lax_form, lax_result_dtype, permute_sharding, reference

_logger = logging.getLogger("jax_moye")
_NUMPY_DTYPES = {short: jnp.dtype(name) for name, short in SHORT_NAMES.items()} | {"tf32": jnp.dtype("float32")}

# --------------------------------------------------------------------------------------------------- the primitive

contract_p = Primitive("jax_moye_contract")
contract_p.def_impl(functools.partial(xla.apply_primitive, contract_p))


def contract(spec, lhs, rhs, *, out_dtype, precision, out_sharding, config, implementation, interpret):
    """Binds the primitive.

    Args:
      spec: e.g. "bmk,kn->bmn".
      lhs: array with the dimensions that the specification names.
      rhs: likewise.
      out_dtype: of the result.
      precision: None, a pair of lax.Precision, a lax.DotAlgorithmPreset or a lax.DotAlgorithm.
      out_sharding: None or a NamedSharding on an abstract mesh.
      config: name of a row of the table, or None.
      implementation: None, "moye" or "xla".
      interpret: InterpretParams or None.
    """
    lhs, rhs = _compat.match_varying(lhs, rhs)
    return contract_p.bind(
        lhs,
        rhs,
        spec=spec,
        out_dtype=jnp.dtype(out_dtype),
        precision=precision,
        out_sharding=out_sharding,
        config=config,
        implementation=implementation,
        interpret=interpret,
    )


@contract_p.def_abstract_eval
def _abstract_eval(lhs, rhs, *, spec, out_dtype, precision, out_sharding, config, implementation, interpret):
    del config, implementation, interpret
    parsed = parse_spec(spec)
    if len(parsed.lhs) != lhs.ndim or len(parsed.rhs) != rhs.ndim:
        raise ValueError(f"contract: {spec!r} does not fit the shapes {lhs.shape} and {rhs.shape}")
    dimension_numbers, permutation = lax_form(spec)
    # Shapes, sharding-in-types, varying axes and the messages about them are lax's own.
    out, _ = dot_general_p.abstract_eval(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=lax_result_dtype(lhs.dtype, rhs.dtype, out_dtype),
        out_sharding=permute_sharding(out_sharding, permutation),
    )
    if permutation != tuple(range(len(permutation))):
        out, _ = transpose_p.abstract_eval(out, permutation=permutation)
    return out.update(dtype=out_dtype, weak_type=False)


def _jvp(primals, tangents, **params):
    lhs, rhs = primals
    lhs_dot, rhs_dot = tangents
    out = contract_p.bind(lhs, rhs, **params)
    terms = []
    if type(lhs_dot) is not ad.Zero:
        terms.append(contract_p.bind(lhs_dot, rhs, **params))
    if type(rhs_dot) is not ad.Zero:
        terms.append(contract_p.bind(lhs, rhs_dot, **params))
    if not terms:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, functools.reduce(lax.add, terms)


def _transpose(cotangent, lhs, rhs, *, spec, out_dtype, precision, out_sharding, config, **params):
    del out_dtype, out_sharding, config  # the config was meant for the forward product
    if type(cotangent) is ad.Zero:
        return [None, None]
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
            out_sharding=None if sharding.mesh.empty else sharding,
            config=None,
            **params,
        )
        return lax.convert_element_type(lax.real(out), dtype) if is_real_part else out

    if ad.is_undefined_primal(lhs):
        return [bind(cotangent, rhs, f"{parsed.out},{parsed.rhs}->{parsed.lhs}", lhs), None]
    return [None, bind(lhs, cotangent, f"{parsed.lhs},{parsed.out}->{parsed.rhs}", rhs)]


ad.primitive_jvps[contract_p] = _jvp
ad.primitive_transposes[contract_p] = _transpose


def _batch(axis_data, operands, dims, *, spec, out_sharding, **params):
    if all(dim is None for dim in dims):  # rules that get axis_data are also called with nothing batched
        return contract_p.bind(*operands, spec=spec, out_sharding=out_sharding, **params), None
    parsed = parse_spec(spec)
    new = next(label for label in labels() if label not in spec)

    def batched(names, dim):
        return names if dim is None else names[:dim] + new + names[dim:]

    if out_sharding is not None:
        mapped_axis = getattr(axis_data, "explicit_mesh_axis", None)
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(mapped_axis, *out_sharding.spec))
    out = contract_p.bind(
        *operands,
        spec=f"{batched(parsed.lhs, dims[0])},{batched(parsed.rhs, dims[1])}->{new}{parsed.out}",
        out_sharding=out_sharding,
        **params,
    )
    return out, 0


batching.fancy_primitive_batchers[contract_p] = _batch

# ------------------------------------------------------------------------------------------------------- lowering


def _run_kernel(lhs, rhs, *, call: KernelCall, out_shape, out_dtype, interpret: InterpretParams | None):
    """Emits the custom call, and the conversions of operands and result where the kernel has other dtypes."""
    problem = call.problem
    lhs, rhs = (lax.convert_element_type(x, _NUMPY_DTYPES[problem.dtype]) for x in (lhs, rhs))
    a, b = (rhs, lhs) if problem.swapped else (lhs, rhs)
    workspace_bytes = _ffi.workspace_bytes(call.config, problem)
    # The one place where attributes get their width: np.int64(3) and np.int32(3) are the same key of a cache.
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
    # Operands and result are row-major arrays for XLA; the strides say what they are for the kernel. The workspace is a
    # result too: memory from an allocator inside the handler could not be captured into a CUDA graph.
    result = jax.ShapeDtypeStruct(out_shape, _NUMPY_DTYPES[problem.out_dtype])
    workspace = jax.ShapeDtypeStruct((workspace_bytes,), jnp.uint8)
    with jax.named_scope(call.config.name):  # what a profiler shows
        out, _ = jax.ffi.ffi_call(_ffi.TARGET, (result, workspace))(a, b, **attributes)
    return lax.convert_element_type(out, out_dtype)


contract_local_p = Primitive("jax_moye_contract_local")
contract_local_p.def_impl(functools.partial(xla.apply_primitive, contract_local_p))


@contract_local_p.def_abstract_eval
def _local_abstract_eval(lhs, rhs, *, request, permutations):
    parsed = parse_spec(request.spec)
    sizes: dict[str, Any] = {}
    for labels_, x, permutation in zip(parsed[:2], (lhs, rhs), permutations, strict=True):
        shape = x.shape if permutation is None else [x.shape[axis] for axis in permutation]
        sizes |= zip(labels_, shape, strict=True)
    return _compat.local_aval([sizes[label] for label in parsed.out], request.out_dtype)


@functools.lru_cache(maxsize=4096)
def _log_once(message: str) -> None:
    _logger.info("%s", message)


def _leave_to_xla(reason: str, request: Request, lhs: Any, rhs: Any) -> None:
    """Says once in the log why XLA computes a contraction.

    Raises:
      NotImplementedError: the caller insists on our kernels.
    """
    what = describe(request, lhs, rhs)
    if request.implementation == "moye":
        raise NotImplementedError(f"implementation='moye': {what}: {reason}.\n{served()}")
    _log_once(f"XLA computes {what}: {reason}")


def _lower_local(platform, ctx, lhs, rhs, *, request: Request, permutations):
    lhs_aval, rhs_aval = ctx.avals_in
    (out_aval,) = ctx.avals_out
    call = None
    try:
        call = plan_call(platform, request, lhs_aval, rhs_aval, permutations)
    except NotServedError as error:
        _leave_to_xla(str(error), request, lhs_aval, rhs_aval)
    if call is None:
        fun = functools.partial(
            reference,
            spec=request.spec,
            out_dtype=request.out_dtype,
            precision=request.precision,
            permutations=permutations,
        )
    else:
        _ffi.register(platform)
        fun = functools.partial(
            _run_kernel,
            call=call,
            out_shape=out_aval.shape,
            out_dtype=request.out_dtype,
            interpret=request.interpret,
        )
    return mlir.lower_fun(fun, multiple_results=False)(ctx, lhs, rhs)


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


def _fold_transposes(request: Request, values: Sequence[Any], avals: Sequence[Any]) -> Sequence[_Operand]:
    """The operands, with the transposes in front of them turned into strides where a kernel takes those."""
    pairs = list(zip(values, avals, strict=True))
    plain = [_Operand(value, _compat.local_aval(aval.shape, aval.dtype), None) for value, aval in pairs]
    folded = [_look_through_transpose(value, aval) for value, aval in pairs]
    for operands in itertools.product(*zip(folded, plain, strict=True)):
        if all(operand.permutation is None for operand in operands):
            continue
        left, right = operands
        try:
            find_kernel(request, left.aval, right.aval, (left.permutation, right.permutation), arch=None)
        except (NotServedError, ValueError):
            continue
        return operands
    return plain


def _lower(ctx, lhs, rhs, *, out_sharding, **params):
    request = Request(**params)
    reason = _compat.why_not_local(ctx)
    if reason is not None or request.implementation == "xla":
        if reason is not None and request.implementation != "xla":
            _leave_to_xla(reason, request, *ctx.avals_in)
        fun = functools.partial(
            reference,
            spec=request.spec,
            out_dtype=request.out_dtype,
            precision=request.precision,
            out_sharding=out_sharding,
        )
        return mlir.lower_fun(fun, multiple_results=False)(ctx, lhs, rhs)

    operands = _fold_transposes(request, (lhs, rhs), ctx.avals_in)
    permutations = tuple(operand.permutation for operand in operands)
    (out_aval,) = ctx.avals_out
    local_ctx = ctx.replace(
        avals_in=[operand.aval for operand in operands],
        avals_out=[_compat.local_aval(out_aval.shape, request.out_dtype)],
    )
    fun = functools.partial(contract_local_p.bind, request=request, permutations=permutations)
    return mlir.lower_fun(fun, multiple_results=False)(local_ctx, *(operand.value for operand in operands))


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(contract_p, _lower, cacheable=False)
