"""weights_p: products with weights of 8 and 4 bits, which are dequantized on their way to the tensor core.

    out[..., n] = sum over k of x[..., k] * (w[k, n] - zeros[g(k), n]) * scales[g(k), n]

It is linear in x and in the scales, so that a tangent of either takes its place in the same primitive. Its transposes
are other products: that to x of the cotangent and the dequantized weights, by contract_p, and that to the scales sums
in f32, which are XLA's. Integers have no derivative; weights of float8_e4m3fn have that of `by_dequantized`.

Lowering takes two steps, as contract_p's does; the second decides. What no kernel computes is `by_dequantized`, a
product of contract_p, and what is partitioned over devices outside of shard_map is the same by lax.dot_general.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Sequence
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
from jax_moye._kernels.dtypes import numpy_dtype
from jax_moye._log import say_once
from jax_moye._primitives.contraction import contract, heed
from jax_moye._primitives.custom_call import call_attributes
from jax_moye._primitives.grouped import one_after_the_other
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import left_to_xla
from jax_moye._selection.problem import labels
from jax_moye._selection.request import Operand, Operands, Request, describe
from jax_moye._selection.weights import SPEC, WeightsCall, decide_weights, is_for_kernels, served_weights

# --------------------------------------------------------------------------------------------------- the primitive

weights_p = Primitive("jax_moye_weights")
weights_p.def_impl(functools.partial(xla.apply_primitive, weights_p))


def multiply_weights(x: Any, w: Any, scales: Any, zeros: Any | None, **params: Any) -> Any:
    """Binds the primitive.

    Args:
      x: (..., K), bfloat16 or float16.
      w: (K, N), int8, int4, uint4 or float8_e4m3fn.
      scales: (groups, N), float32, bfloat16 or float16; groups divide K.
      zeros: (groups, N), int8, or None.
      **params: as in `contract`: out_dtype, config, implementation, interpret, deterministic, batch_invariant,
        autotune.
    """
    operands = [x, w, scales, *([] if zeros is None else [zeros])]
    return weights_p.bind(*_compat.match_varying(*operands), **params)


@weights_p.def_abstract_eval
def _abstract_eval(x, w, scales, *zeros, out_dtype, **unused):
    del scales, zeros, unused
    sharding = NamedSharding(x.sharding.mesh, PartitionSpec(*[None] * x.ndim))
    return x.update(shape=(*x.shape[:-1], w.shape[1]), dtype=out_dtype, weak_type=False, sharding=sharding)


def dequantized(w: Any, scales: Any, zeros: Sequence[Any], dtype: Any) -> Any:
    """(w - zeros) * scales, computed in f32 and rounded once.

    Args:
      w: (K, N).
      scales: (groups, N).
      zeros: one of (groups, N), or none.
      dtype: of the result, (K, N).
    """
    groups, (k, n) = scales.shape[0], w.shape
    grouped = w.astype(jnp.float32).reshape(groups, k // groups, n)
    for x in zeros:
        grouped -= x.astype(jnp.float32)[:, None]
    return (grouped * scales.astype(jnp.float32)[:, None]).astype(dtype).reshape(k, n)


def by_dequantized(x: Any, w: Any, scales: Any, *zeros: Any, out_dtype: Any, config: Any = None, **options: Any) -> Any:
    """What the primitive computes, as a product of contract_p by weights of x's dtype.

    One row of scales multiplies the sums in f32, and weights less zeros are exact in 16 bits. Weights of several groups
    are rounded once.
    """
    del config  # it was named for the product with weights
    product: Any = functools.partial(
        contract, _spec(x, "k", "n"), precision=None, out_sharding=None, config=None, **options
    )
    if scales.shape[0] > 1:
        return product(x, dequantized(w, scales, zeros, x.dtype), out_dtype=out_dtype)
    exact = w.astype(jnp.float32) - zeros[0].astype(jnp.float32) if zeros else w  # in 16 bits, too
    sums = product(x, exact.astype(x.dtype), out_dtype=jnp.float32)
    return (sums * scales[0].astype(jnp.float32)).astype(out_dtype)


def _spec(x: Any, summed: str, kept: str) -> str:
    """Of the product of x, whose last dimension is `summed`, with an array (k, n)."""
    rows = "".join(itertools.islice((label for label in labels() if label not in "kn"), x.ndim - 1))
    return f"{rows}{summed},kn->{rows}{kept}"


def _jvp(primals, tangents, **params):
    x, w, scales, *zeros = primals
    x_dot, w_dot, scales_dot, *_ = tangents  # integers have none
    out = weights_p.bind(*primals, **params)
    terms = []
    if type(x_dot) is not ad.Zero:
        terms.append(weights_p.bind(x_dot, w, scales, *zeros, **params))
    if type(scales_dot) is not ad.Zero:
        terms.append(weights_p.bind(x, w, scales_dot, *zeros, **params))
    if type(w_dot) is not ad.Zero and jnp.issubdtype(w.dtype, jnp.floating):
        terms.append(by_dequantized(x, w_dot, scales, **params))
    if not terms:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, functools.reduce(lax.add, terms)


def _transpose(cotangent, x, w, scales, *zeros, config, out_dtype, **options):
    del config, out_dtype  # meant for the forward product
    cotangents = [None] * (3 + len(zeros))
    if type(cotangent) is ad.Zero:
        return cotangents
    if ad.is_undefined_primal(x):
        spec, weights = _spec(cotangent, "n", "k"), dequantized(w, scales, zeros, x.aval.dtype)
        of_product = {"out_dtype": x.aval.dtype, "precision": None, "out_sharding": None, "config": None, **options}
        cotangents[0] = contract(spec, cotangent, weights, **of_product)
    elif ad.is_undefined_primal(scales):
        cotangents[2] = _to_scales(cotangent, x, w, scales.aval, *zeros)
    elif ad.is_undefined_primal(w):  # of jax.linear_transpose alone: weights of floats
        of_product = {"out_dtype": cotangent.dtype, **options}
        (cotangents[1],) = jax.linear_transpose(lambda w: by_dequantized(x, w, scales, **of_product), w.aval)(cotangent)
    return cotangents


def _to_scales(cotangent, x, w, scales, *zeros):
    """(groups, N): of each column the cotangent's products with those of a group, summed over rows in f32."""
    groups, n = scales.shape
    by_group = dequantized(w, jnp.ones(scales.shape, jnp.float32), zeros, jnp.float32)
    rows = math.prod(x.shape[:-1])
    with _compat.lax_itself():
        sums = jnp.einsum(
            "mgk,gkn,mn->gn",
            x.reshape(rows, groups, w.shape[0] // groups).astype(jnp.float32),
            by_group.reshape(groups, w.shape[0] // groups, n),
            cotangent.reshape(rows, n).astype(jnp.float32),
            precision="highest",
        )
    return sums.astype(scales.dtype)


def _batch(operands, dims, **params):
    """Many x are many rows; all else is one product after the other."""
    if any(dim is not None for dim in dims[1:]):
        return one_after_the_other(weights_p, operands, dims, **params)
    x, *others = operands
    return weights_p.bind(jnp.moveaxis(x, dims[0], 0), *others, **params), 0


ad.primitive_jvps[weights_p] = _jvp
ad.primitive_transposes[weights_p] = _transpose
batching.primitive_batchers[weights_p] = _batch
_compat.check_for_nan(weights_p)


# ------------------------------------------------------------------------------------------------------- lowering


weights_local_p = Primitive("jax_moye_weights_local")
weights_local_p.def_impl(functools.partial(xla.apply_primitive, weights_local_p))


@weights_local_p.def_abstract_eval
def _local_abstract_eval(x, w, scales, *zeros, request):
    del scales, zeros
    return _compat.local_aval((*x.shape[:-1], w.shape[1]), request.out_dtype)


def operands_of(x: Any, w: Any) -> Operands:
    """What a decision is about: x, its leading dimensions folded into rows, and w.

    Args:
      x: its type, (..., K).
      w: likewise, (K, N).
    """
    rows = x.shape[0] if x.ndim == 2 else math.prod(x.shape[:-1])
    return Operand((rows, x.shape[-1]), x.dtype), Operand(tuple(w.shape), w.dtype)


def _options(request: Request) -> dict[str, Any]:
    """The parameters of the primitive that `by_dequantized` heeds."""
    names = ("out_dtype", "implementation", "interpret", "deterministic", "batch_invariant", "autotune")
    return {name: getattr(request, name) for name in names}


def _run_kernel(x: Any, w: Any, scales: Any, *zeros: Any, call: WeightsCall, interpret: Any) -> Any:
    """The custom call."""
    problem = call.problem
    result = jax.ShapeDtypeStruct((problem.m, problem.n), numpy_dtype(problem.out_dtype))
    attributes = call_attributes(call.config, problem, interpret)
    attributes |= {"group": np.int64(problem.group), "parts": np.int64(call.parts)}
    with jax.named_scope(call.config.name):  # what a profiler shows
        run = jax.ffi.ffi_call(ffi.WEIGHTS_TARGET, result)
        out = run(x.reshape(problem.m, problem.k), w, scales, *zeros, **attributes)
    return out.reshape(*x.shape[:-1], problem.n)


def is_for_weights(x: Any, w: Any, groups: int, k: int, **params: Any) -> bool:
    """Whether a product by weights that a program dequantizes itself is for a kernel, as far as a trace tells.

    Args:
      x: its type, of any shape whose last dimensions are the K that is summed over.
      w: likewise, of K x N elements.
      groups: of rows of w, each with a row of scales.
      k: K.
      **params: of the primitive, but for config.
    """
    request, operands = product_of_program(x, w, k, **params)
    return is_for_kernels(request, groups, operands)


def product_of_program(x: Any, w: Any, k: int, **params: Any) -> tuple[Request, Operands]:
    """The same product as a decision sees it.

    Args:
      x: as of `is_for_weights`, likewise the following.
      w: K x N elements.
      k: K.
      **params: of the primitive.
    """
    m, n = math.prod(x.shape) // k, math.prod(w.shape) // k
    return Request(SPEC, precision=None, config=None, **params), (Operand((m, k), x.dtype), Operand((k, n), w.dtype))


def kernel_of_program(
    x: Any, w: Any, groups: int, k: int, platform: str, **params: Any
) -> Callable[..., jax.Array] | None:
    """A kernel for such a product, of x (M,K), w (K,N), scales and perhaps zeros; None where it is left as it was.

    Args:
      x: as of `is_for_weights`, likewise the following.
      w: K x N elements.
      groups: of rows of w.
      k: K.
      platform: for which the program is lowered.
      **params: of the primitive.
    """
    request, operands = product_of_program(x, w, k, **params)
    target = LoweringTarget.of_platform(platform)
    decision, call = decide_weights(request, groups, operands, target, of_program=True)
    if decision.kind != "kernel" or call is None:
        if decision.cause not in ("caller", None):
            what = describe(request, operands)
            say_once(logging.INFO, f"{what} is left to the program, which dequantizes: {decision.reason}")
        return None
    ffi.register(platform)
    return functools.partial(_run_kernel, call=call, interpret=request.interpret)


def _lower_local(platform, ctx, *values, request: Request):
    x, w, scales, *_ = ctx.avals_in
    operands, (out,) = operands_of(x, w), ctx.avals_out
    decision, call = decide_weights(request, scales.shape[0], operands, LoweringTarget.of_platform(platform))
    if decision.kind == "error":
        heed(decision, operands, served_weights)
    if decision.kind == "nothing":
        fun: Any = lambda *_: jnp.zeros(out.shape, out.dtype)  # noqa: E731
    elif decision.kind == "kernel" and call is not None:
        ffi.register(platform)
        fun = functools.partial(_run_kernel, call=call, interpret=request.interpret)
    else:
        if decision.cause != "caller":
            what = describe(request, operands)
            say_once(logging.INFO, f"{what} is a product by dequantized weights: {decision.reason}")
        fun = functools.partial(by_dequantized, **_options(request))
    return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)


mlir.register_lowering(weights_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(weights_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(weights_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, *values: Sequence[Any], **params):
    request = Request(SPEC, precision=None, **params)
    reason = _compat.why_not_local(ctx)
    if reason is not None:
        for platform in _compat.platforms(ctx):
            decision = left_to_xla(request, "place", reason, platform)
            heed(decision, operands_of(*ctx.avals_in[:2]), served_weights)
        of_xla = _options(request) | {"implementation": "xla", "interpret": None, "deterministic": False}
        fun = functools.partial(by_dequantized, **of_xla)
        return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)
    return _compat.lower_equation(ctx, weights_local_p, values, ctx.avals_in, request=request)


# Not cacheable: whether it is one device's depends on the place.
mlir.register_lowering(weights_p, _lower, cacheable=False)
