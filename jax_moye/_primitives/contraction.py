"""contract_p: one bilinear primitive, a contraction of two arrays named by an einsum string.

    out[o] = sum_k lhs[l] * rhs[r] (+ beta * c[o])        spec = "l,r->o", e.g. "bmk,kn->bmn"

Specifications are closed under transposition (swap the roles of the three strings) and under vmap (add a label), so no
rule below emits a transpose, and every derivative order follows from two rules. A third operand c is what is already
there: a kernel adds to it while it writes, in place where c is not needed any more (overwriting.py).

Lowering takes two steps. `contract_p` is lowered where it stands: it sees the operands, and the transposes in front of
them, and where several devices take part sharding.py says what each one does. `contract_local_p`, what then runs on one
device, has a rule for each platform: it asks `decide`, once, and does what it says. Of equal products of a program one
is decided and lowered. In which order a kernel's arrays lie in memory orders.py says.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core.primitives import add_p, transpose_p
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye import _compat
from jax_moye._log import say_once
from jax_moye._primitives import sharding
from jax_moye._primitives.autotune import decide_by_measuring
from jax_moye._primitives.custom_call import run_kernel_on, with_c_kept, with_lasting
from jax_moye._primitives.orders import Lies, Orders, how_it_lies, in_their_orders, made_in_lowering
from jax_moye._primitives.reference import (
    as_cotangent,
    cotangent_dtype,
    lax_aval,
    lax_form,
    lax_result_dtype,
    permute_sharding,
    reference,
)
from jax_moye._primitives.transposes import Permutations, operands_of, source, transposed
from jax_moye._selection.capability import LoweringTarget, served
from jax_moye._selection.decide import Decision, left_to_xla
from jax_moye._selection.problem import NotServedError, labels, parse_spec
from jax_moye._selection.request import Operands, Request, describe, label_sizes

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
    autotune=None,
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
      config: name of a config, or None.
      implementation: None, "moye" or "xla".
      interpret: InterpretParams or None.
      deterministic: see Request.
      batch_invariant: likewise.
      autotune: likewise.

    Raises:
      ValueError: c has not the result's shape, or beta is no integer and the result is one.
    """
    out_dtype, beta = jnp.dtype(out_dtype), 0.0 if c is None else float(beta)
    if not jnp.issubdtype(out_dtype, jnp.inexact) and not beta.is_integer():
        raise ValueError(f"contract: beta is an integer where the result is {out_dtype}, not {beta}")
    operands = [lhs, rhs] if beta == 0 else [lhs, rhs, lax.convert_element_type(c, out_dtype)]
    _compat.give_sparse_rule(contract_p, _with_sparse)  # whoever has sparse operands has imported them by now
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
        autotune=autotune,
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
        dtype, sharding = wanted.aval.dtype, wanted.aval.sharding
        out = contract_p.bind(
            left,
            right,
            spec=spec,
            # The kernel writes the primal's dtype: no conversion follows, but of complex numbers.
            out_dtype=cotangent_dtype(left.dtype, right.dtype, dtype),
            precision=precision,
            beta=0.0,
            out_sharding=None if sharding.mesh.empty else sharding,
            config=None,
            **params,
        )
        return as_cotangent(out, dtype)

    if ad.is_undefined_primal(lhs):
        cotangents[0] = bind(cotangent, rhs, f"{parsed.out},{parsed.rhs}->{parsed.lhs}", lhs)
    elif ad.is_undefined_primal(rhs):
        # The cotangent first here, too, as lax has it: what XLA makes of a program may depend on that.
        cotangents[1] = bind(cotangent, lhs, f"{parsed.out},{parsed.lhs}->{parsed.rhs}", rhs)
    if c and ad.is_undefined_primal(c[0]):
        cotangents[2] = _scaled(cotangent, beta)
    return cotangents


ad.primitive_jvps[contract_p] = _jvp
ad.primitive_transposes[contract_p] = _transpose


def linear_transpose(fun: Callable[..., Any], cotangents: Any, operands: Sequence[Any]) -> list[Any]:
    """A primitive's transpose rule by the linear transpose of what it computes.

    Args:
      fun: of all operands, linear in those that are undefined.
      cotangents: as JAX gives them to the rule: a list, or the one of a primitive with one result, which is no zero.
      operands: as JAX gives them to the rule.

    Returns:
      The cotangents of the operands that are undefined, None for the others.
    """
    is_linear = [ad.is_undefined_primal(x) for x in operands]

    def of_linear(*values):
        given = iter(values)
        return fun(*(next(given) if linear else x for linear, x in zip(is_linear, operands, strict=True)))

    avals = [x.aval for x in operands if ad.is_undefined_primal(x)]
    is_list = isinstance(cotangents, (list, tuple))
    given = [ad.instantiate_zeros(x) for x in cotangents] if is_list else cotangents
    found = iter(jax.linear_transpose(of_linear, *avals)(given))
    return [next(found) if linear else None for linear in is_linear]


def _dim_of_new(lhs: str, rhs: str, out: str) -> int:
    """Where lax's rule for vmap has the label that operands have and their result has not; 0 without a batch.

    Behind the batch, where one operand brings it, among that operand's own labels.
    """
    batch = [label for label in out if label in lhs and label in rhs]
    of_one = [label for label in lhs if label not in rhs], [label for label in rhs if label not in lhs]
    order = [*batch, *of_one[0], *of_one[1]]
    new = [i for i, label in enumerate(order) if label not in out]
    return out.index(order[new[0] - 1]) + 1 if batch and new else 0


def _batch(axis_data, operands, dims, *, spec, beta, out_sharding, **params):
    if all(dim is None for dim in dims):  # rules that get axis_data are also called with nothing batched
        return contract_p.bind(*operands, spec=spec, beta=beta, out_sharding=out_sharding, **params), None
    parsed = parse_spec(spec)
    lhs, rhs, *c = operands
    c_dim = dims[2] if c else None
    new = next(label for label in labels() if label not in spec)

    def batched(names, dim):
        return names if dim is None else names[:dim] + new + names[dim:]

    lhs_names, rhs_names = batched(parsed.lhs, dims[0]), batched(parsed.rhs, dims[1])
    # The new dimension is where c has it, so that c stays where it is; else in front, where a kernel stores it at no
    # cost. But where XLA may compute a batch it is where lax has it: of other programs XLA makes less, as of the
    # gradients of attention with grouped queries.
    out_dim = c_dim or 0
    if c_dim is None and params["implementation"] != "moye":
        out_dim = _dim_of_new(lhs_names, rhs_names, parsed.out)
    mapped_axis = getattr(axis_data, "explicit_mesh_axis", None)

    def broadcast(x):
        return _compat.broadcast_batch(x, axis_data.size, out_dim, mapped_axis)

    if dims[0] is None and dims[1] is None:  # one product, added to many c
        out = contract_p.bind(lhs, rhs, spec=spec, beta=0.0, out_sharding=out_sharding, **params)
        return lax.add(broadcast(out), _scaled(c[0], beta)), out_dim
    if c and c_dim is None:
        c = [broadcast(c[0])]
    if out_sharding is not None:
        axes = [*out_sharding.spec, *[None] * (len(parsed.out) - len(out_sharding.spec))]
        axes.insert(out_dim, mapped_axis)
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(*axes))
    out = contract_p.bind(
        lhs,
        rhs,
        *c,
        spec=f"{lhs_names},{rhs_names}->{batched(parsed.out, out_dim)}",
        beta=beta,
        out_sharding=out_sharding,
        **params,
    )
    return out, out_dim


batching.fancy_primitive_batchers[contract_p] = _batch
_compat.check_for_nan(contract_p)


def _with_sparse(*operands, **params):
    """A contraction of JAX's sparse arrays: JAX's, as lax.dot_general of them is."""
    asked_for = {
        name: params.pop(name) for name in ("config", "implementation", "deterministic", "batch_invariant", "interpret")
    }
    contracts = [f"{name}={value!r}" for name, value in asked_for.items() if value and name != "interpret"]
    if contracts and asked_for["implementation"] != "xla":
        raise NotImplementedError(f"{', '.join(contracts)}: no kernel of ours multiplies sparse operands")
    del params["autotune"]
    params.pop("keeps_c", None)
    return reference(*operands, **params)


# ------------------------------------------------------------------------------------------------------- lowering


contract_local_p = Primitive("jax_moye_contract_local")
contract_local_p.def_impl(functools.partial(xla.apply_primitive, contract_local_p))


@contract_local_p.def_abstract_eval
def _local_abstract_eval(lhs, rhs, *c, request, permutations, lie):
    del c, lie
    sizes = label_sizes(request.spec, operands_of((lhs, rhs), permutations))
    return _compat.local_aval([sizes[label] for label in parse_spec(request.spec).out], request.out_dtype)


def heed(decision: Decision, operands: Operands, served: Callable[[], str] = served) -> None:
    """Says once in the log why XLA computes a product.

    Args:
      decision: about it.
      operands: lhs and rhs.
      served: what kernels of ours compute, in words.

    Raises:
      ValueError: the config that the caller named cannot compute it.
      NotImplementedError: the caller insists on our kernels, or on a contract that XLA would break.
    """
    what = describe(decision.request, operands)
    if decision.cause == "config":
        raise ValueError(decision.reason)
    if decision.kind == "error":
        of_dtypes = decision.contract is not None and decision.cause == "capability"
        raise NotImplementedError(decision.error(what) + (f".\n{served()}" if of_dtypes else ""))
    if decision.kind == "xla" and decision.cause != "caller":
        say_once(logging.INFO, f"XLA computes {what}: {decision.reason}")


def decided_product(decision: Decision, request: Request, permutations: Permutations, platform: str, out_shape: Any):
    """A product of lhs, rhs and perhaps c, as it was decided.

    Args:
      decision: of a kernel, of XLA, or of nothing to compute.
      request: what was asked for, without an epilogue.
      permutations: of the transposes behind lhs and rhs.
      platform: for which the program is lowered.
      out_shape: of the result.
    """
    # Not functools.partial: mlir.lower_fun asks for the signature, which takes a tenth of a millisecond of one.
    call = decision.call
    if decision.kind != "kernel" or call is None:
        return lambda *operands: xlas_product(*operands, request=request, permutations=permutations)
    launch = run_kernel_on(platform)
    of_call = {"call": call, "request": request, "permutations": permutations, "out_shape": out_shape}
    return lambda *operands: launch(*operands, **of_call)[0]


def _moved(decision: Decision, orders: Orders, platform: str, out_shape: Any):
    """A product by a kernel, whose arrays lie in other orders than the program's."""
    left, right, back = orders.moved
    if back is not None:
        out_shape = [out_shape[back.index(dim)] for dim in range(len(back))]
    request = orders.request.lasting_where([left is None, right is None])
    product = decided_product(decision, request, orders.permutations, platform, out_shape)
    if left is right is back is None:
        return product

    def fun(lhs, rhs, *c):
        lhs, rhs = transposed((lhs, rhs), (left, right))
        out = product(lhs, rhs, *c)
        return out if back is None else lax.transpose(out, back)

    return fun


def xlas_product(lhs, rhs, *c, request: Request, permutations: Permutations = (None, None), out_sharding=None):
    lhs, rhs = transposed((lhs, rhs), permutations)
    of_request = {name: getattr(request, name) for name in ("spec", "out_dtype", "precision", "beta")}
    return reference(lhs, rhs, *c, **of_request, out_sharding=out_sharding)


def _lower_local(platform, ctx, *values, request: Request, permutations, lie):
    operands = operands_of(ctx.avals_in, permutations)
    target = LoweringTarget.of_platform(platform)
    orders = in_their_orders(request, operands, lie)
    xla = functools.partial(xlas_product, request=orders.request, permutations=orders.permutations)
    others = dict.fromkeys(["c"][: len(values) - 2], ctx.avals_out[0].shape)
    decision = decide_by_measuring(orders.request, orders.operands, target, xla, others)
    heed(decision, orders.operands)
    if decision.kind == "kernel":
        fun = _moved(decision, orders, platform, ctx.avals_out[0].shape)
    else:  # XLA lays out the arrays of its own product
        fun = decided_product(decision, request, permutations, platform, ctx.avals_out[0].shape)
    return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)


mlir.register_lowering(contract_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(contract_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(contract_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _bind_local(request: Request, *operands):
    """The contraction on the device where it stands."""
    return contract_local_p.bind(*operands, request=request, permutations=(None, None), lie=(Lies(), Lies()))


def _lower(ctx, *values, out_sharding, **params):
    request = with_c_kept(Request(**params), values)
    reason = _compat.why_not_local(ctx)
    if request.implementation == "xla":
        return _lower_as_xlas(ctx, values, request, out_sharding, "caller", "implementation='xla'")
    if reason is not None:
        try:
            return sharding.lower(ctx, values, request, _bind_local)
        except NotServedError as error:
            return _lower_as_xlas(ctx, values, request, out_sharding, "place", f"{reason}, and {error}")

    sources = [source(*pair) for pair in zip(values[:2], ctx.avals_in[:2], strict=True)]
    (out_aval,) = ctx.avals_out
    operands = (*(one.value for one in sources), *values[2:])
    request = with_lasting(ctx, request, operands)
    avals = [*(one.aval for one in sources), *[out_aval] * len(values[2:])]
    permutations = tuple(one.permutation for one in sources)
    made = functools.partial(made_in_lowering, ctx)
    lie = tuple(Lies() if request.insists else how_it_lies(one.value, one.aval.ndim, made) for one in sources)
    of_local = {"request": request, "permutations": permutations, "lie": lie}
    return _compat.lower_equation(ctx, contract_local_p, operands, avals, **of_local)


def _lower_as_xlas(ctx, values, request: Request, out_sharding, cause, reason):
    """The contraction as XLA computes it, on several devices as on one, if it may."""
    for platform in _compat.platforms(ctx):
        heed(left_to_xla(request, cause, reason, platform), operands_of(ctx.avals_in, (None, None)))
    fun = functools.partial(xlas_product, request=request, out_sharding=out_sharding)
    return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(contract_p, _lower, cacheable=False)
